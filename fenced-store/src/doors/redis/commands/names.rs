//! Replies that list names: Fencepost's own are left out.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::is_own_name;
use crate::doors::redis::resp::request::Command;
use crate::doors::redis::resp::{Protocol, encode};

/// How often RANDOMKEY is sent for one reply, so that a name which is not Fencepost's own is among
/// the replies even where most keys are.
const RANDOM_TRIES: u32 = 32;
/// Arrays in arrays that a listing can have.
const DEPTH_MAX: u32 = 3;

/// The error in place of a reply that is too large to be held.
pub(crate) const TOO_LARGE: &str = "DENIED the reply lists more names than the guard may hold for one \
                                    client (--max-redis-buffer-bytes); use SCAN, or a narrower pattern";

/// A command whose reply lists names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// KEYS, SCAN, PUBSUB CHANNELS: own names are left out.
    All,
    /// RANDOMKEY: one of several replies.
    Random,
}

impl Listing {
    /// Whether the reply to `command` lists names, and how.
    pub(crate) fn of(command: Command<'_>) -> Option<Self> {
        let is = |at: usize, word: &[u8]| command.arg(at).eq_ignore_ascii_case(word);
        if is(0, b"keys") || is(0, b"scan") || is_of_channels(command) {
            return Some(Self::All);
        }
        is(0, b"randomkey").then_some(Self::Random)
    }

    /// How often the command is sent, and so how many replies come.
    pub(crate) fn replies(self) -> u32 {
        match self {
            Self::All => 1,
            Self::Random => RANDOM_TRIES,
        }
    }

    /// The reply for the client, made of `replies` of Redis. Replies that cannot be read as names,
    /// errors among them, are passed on as they came.
    pub(crate) fn reply(self, replies: Bytes, protocol: Protocol) -> Bytes {
        match self {
            Self::All => without_own(&replies).map_or(replies, Bytes::from),
            Self::Random => first_foreign(&replies, protocol),
        }
    }
}

/// Whether it is PUBSUB CHANNELS or PUBSUB SHARDCHANNELS.
pub(crate) fn is_of_channels(command: Command<'_>) -> bool {
    let is = |at: usize, word: &[u8]| command.arg(at).eq_ignore_ascii_case(word);
    is(0, b"pubsub") && (is(1, b"channels") || is(1, b"shardchannels"))
}

/// A value of a reply: where it ends, and where its text is if it is a string.
struct Item {
    end: usize,
    text: Option<Range<usize>>,
}

/// The line that begins at `from`, without its kind, and where it ends.
fn line(reply: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let rest = reply.get(from..)?;
    let len = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((rest.get(1..len)?, from + len + 2))
}

/// A value that is no array.
fn item(reply: &[u8], from: usize) -> Option<Item> {
    let (head, behind) = line(reply, from)?;
    let len = std::str::from_utf8(head).ok().and_then(|head| head.parse::<usize>().ok());
    match (reply.get(from)?, len) {
        (b'$', Some(len)) => {
            let end = behind.checked_add(len)?.checked_add(2)?;
            (end <= reply.len()).then_some(Item { end, text: Some(behind..end - 2) })
        }
        _ => Some(Item { end: behind, text: None }),
    }
}

/// The reply without own names; `None` where it cannot be read.
fn without_own(reply: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(reply.len());
    let end = copy(reply, 0, DEPTH_MAX, &mut out)?;
    (end == reply.len()).then_some(out)
}

/// Copies the value at `from`, and says where it ends.
fn copy(reply: &[u8], from: usize, depth: u32, out: &mut Vec<u8>) -> Option<usize> {
    if reply.get(from)? != &b'*' {
        let item = item(reply, from)?;
        out.extend_from_slice(&reply[from..item.end]);
        return Some(item.end);
    }
    let depth = depth.checked_sub(1)?;
    let (head, mut at) = line(reply, from)?;
    let count: usize = std::str::from_utf8(head).ok()?.parse().ok()?;
    let (mut kept, mut values) = (0, Vec::new());
    for _ in 0..count {
        let begin = values.len();
        let next = copy(reply, at, depth, &mut values)?;
        let text = item(reply, at).and_then(|item| item.text);
        if text.is_some_and(|text| is_own_name(&reply[text])) {
            values.truncate(begin);
        } else {
            kept += 1;
        }
        at = next;
    }
    out.extend_from_slice(format!("*{kept}\r\n").as_bytes());
    out.extend_from_slice(&values);
    Some(at)
}

/// The first of several values that is no own name. If all are, there is no other key, as far as
/// was seen: the reply is that of an empty database.
fn first_foreign(replies: &Bytes, protocol: Protocol) -> Bytes {
    let mut at = 0;
    while let Some(item) = item(replies, at) {
        if !item.text.is_some_and(|text| is_own_name(&replies[text])) {
            return replies.slice(at..item.end);
        }
        at = item.end;
    }
    let mut null = BytesMut::new();
    encode::null(&mut null, protocol);
    null.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reply: &str) -> String {
        let reply = Bytes::copy_from_slice(reply.as_bytes());
        let reply = Listing::All.reply(reply, Protocol::Resp2);
        String::from_utf8(reply.to_vec()).unwrap()
    }

    #[test]
    fn own_names_are_left_out() {
        let own = "$12\r\n{fence:x}:ab\r\n";
        let prefixed = "$11\r\np:{fence:x}\r\n";
        let keys = format!("*3\r\n{own}$1\r\na\r\n{prefixed}");
        assert_eq!(all(&keys), "*1\r\n$1\r\na\r\n");
        let scan = format!("*2\r\n$2\r\n17\r\n*2\r\n{own}$1\r\na\r\n");
        assert_eq!(all(&scan), "*2\r\n$2\r\n17\r\n*1\r\n$1\r\na\r\n");
        for same in ["*0\r\n", "-ERR no\r\n", "+QUEUED\r\n", "*2\r\n$1\r\na\r\n", "*-1\r\n"] {
            assert_eq!(all(same), same);
        }
    }

    #[test]
    fn a_random_name_is_none_of_the_own() {
        let own = "$12\r\n{fence:x}:ab\r\n";
        let random = |replies: String| Listing::Random.reply(Bytes::from(replies), Protocol::Resp3);
        assert_eq!(random(format!("{own}{own}$1\r\na\r\n$1\r\nb\r\n")), "$1\r\na\r\n");
        assert_eq!(random(format!("{own}{own}")), "_\r\n");
        assert_eq!(random("-ERR no\r\n-ERR no\r\n".to_owned()), "-ERR no\r\n");
        assert_eq!(random("_\r\n".repeat(2)), "_\r\n");
    }
}

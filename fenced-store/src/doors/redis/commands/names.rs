//! Replies that list names, without Fencepost's own.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::is_own_name;
use crate::doors::redis::resp::request::Command;
use crate::doors::redis::resp::{Protocol, encode};

/// Number of times RANDOMKEY is sent for one reply, so that most likely a key that is not
/// Fencepost's own is among the replies.
const RANDOM_TRIES: u32 = 128;
/// Maximum depth of arrays in a listing.
const DEPTH_MAX: u32 = 3;

/// Error in place of a reply that is too large to be held.
pub(crate) const TOO_LARGE: &str = "DENIED the reply lists more names than the guard may hold for one \
                                    client (--max-redis-buffer-bytes); use SCAN, or a narrower \
                                    pattern";

/// A command whose reply lists names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// KEYS, SCAN, CLUSTERSCAN, PUBSUB CHANNELS: own names are removed.
    All,
    /// RANDOMKEY: one of several replies.
    Random,
}

impl Listing {
    /// Returns the kind of listing in the reply to `command`, if any.
    pub(crate) fn from_command(command: Command<'_>) -> Option<Self> {
        let lists_keys = ["keys", "scan", "clusterscan"].iter().any(|name| command.begins(&[name]));
        if lists_keys || is_of_channels(command) {
            return Some(Self::All);
        }
        command.begins(&["randomkey"]).then_some(Self::Random)
    }

    /// Returns the number of times that the command is sent, and so of replies.
    pub(crate) fn replies(self) -> u32 {
        match self {
            Self::All => 1,
            Self::Random => RANDOM_TRIES,
        }
    }

    /// Makes the client's reply from Redis' `replies`. Replies that are no lists of names, such as
    /// errors, are forwarded unchanged.
    pub(crate) fn reply(self, replies: Bytes, protocol: Protocol) -> Bytes {
        match self {
            Self::All => without_own(&replies).map_or(replies, Bytes::from),
            Self::Random => first_foreign(&replies, protocol),
        }
    }
}

/// Returns `true` for PUBSUB CHANNELS and PUBSUB SHARDCHANNELS.
pub(crate) fn is_of_channels(command: Command<'_>) -> bool {
    command.begins(&["pubsub", "channels"]) || command.begins(&["pubsub", "shardchannels"])
}

/// A value of a reply: its end, and its text if it is a string.
struct Item {
    end: usize,
    text: Option<Range<usize>>,
}

/// Returns the line at `from` without its type byte, and its end.
fn line(reply: &[u8], from: usize) -> Option<(&[u8], usize)> {
    let rest = reply.get(from..)?;
    let len = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((rest.get(1..len)?, from + len + 2))
}

/// Parses a value that is no array.
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

/// Returns the reply without own names; `None` if it cannot be parsed.
fn without_own(reply: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(reply.len());
    let end = copy(reply, 0, DEPTH_MAX, &mut out)?;
    (end == reply.len()).then_some(out)
}

/// Copies the value at `from`, and returns its end.
fn copy(reply: &[u8], from: usize, depth: u32, out: &mut Vec<u8>) -> Option<usize> {
    if reply.get(from)? != &b'*' {
        let item = item(reply, from)?;
        out.extend_from_slice(&reply[from..item.end]);
        return Some(item.end);
    }
    let depth = depth.checked_sub(1)?;
    let (head, mut at) = line(reply, from)?;
    let count: usize = std::str::from_utf8(head).ok()?.parse().ok()?;
    let mut kept = 0;
    let mut values = Vec::new();
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

/// Returns the first value that is no own name. If all are, no other key is assumed to exist: the
/// reply is that of an empty database.
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

//! Finds the end of the replies to a subscription.
//!
//! The number of replies to SUBSCRIBE and UNSUBSCRIBE is not known beforehand, and in RESP2 they
//! decide which commands Redis takes next. So each is followed by a PING with a random
//! word: its reply comes behind all of theirs, and its form says whether Redis is in RESP2's
//! subscriber mode then. Clients see nothing of it.

use bytes::BytesMut;
use service_kit::ids;

use super::super::resp::encode;

/// The PING behind a subscription, and how much of its reply has come.
#[derive(Debug)]
pub(super) struct Barrier {
    word: String,
    /// The beginning of a frame that may be the reply.
    held: Vec<u8>,
    /// The frame that is being received is not the reply.
    passes: bool,
}

/// Outcome of one piece of what Redis sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It may be part of the reply; it is kept.
    Held,
    /// It belongs to the client, behind these bytes that were kept before.
    Passed(Vec<u8>),
    /// The reply is complete.
    Reached {
        /// Whether Redis is in RESP2's subscriber mode.
        subscribed: bool,
    },
}

impl Barrier {
    pub(super) fn new() -> Self {
        Self { word: ids::random_hex(16), held: Vec::new(), passes: true }
    }

    /// The command to be sent.
    pub(super) fn command(&self) -> BytesMut {
        let mut out = BytesMut::new();
        encode::request(&mut out, ["PING", &self.word]);
        out
    }

    /// Takes a piece of what Redis sent: whether a frame begins and ends with it.
    pub(super) fn sees(&mut self, piece: &[u8], begins: bool, ends: bool) -> Seen {
        if begins {
            self.passes = false;
            self.held.clear();
        }
        if self.passes {
            return Seen::Passed(Vec::new());
        }
        let len = self.held.len();
        let begun =
            |reply: &BytesMut| reply.starts_with(&self.held) && reply[len..].starts_with(piece);
        let replies = self.replies();
        let Some(subscribed) = replies.iter().position(begun).map(|index| index == 1) else {
            self.passes = true;
            return Seen::Passed(std::mem::take(&mut self.held));
        };
        if ends {
            self.passes = true;
            self.held.clear();
            return Seen::Reached { subscribed };
        }
        self.held.extend_from_slice(piece);
        Seen::Held
    }

    /// The reply outside of the subscriber mode, and in it.
    fn replies(&self) -> [BytesMut; 2] {
        let (mut plain, mut subscribed) = (BytesMut::new(), BytesMut::new());
        encode::bulk(&mut plain, self.word.as_bytes());
        encode::request(&mut subscribed, ["pong", &self.word]);
        [plain, subscribed]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_is_found_and_says_the_mode() {
        let mut barrier = Barrier::new();
        let [plain, subscribed] = barrier.replies();
        for (reply, mode) in [(plain, false), (subscribed, true)] {
            assert_eq!(barrier.sees(&reply, true, true), Seen::Reached { subscribed: mode });
            for cut in 1..reply.len() {
                assert_eq!(barrier.sees(&reply[..cut], true, false), Seen::Held, "{cut}");
                let seen = barrier.sees(&reply[cut..], false, true);
                assert_eq!(seen, Seen::Reached { subscribed: mode }, "{cut}");
            }
        }
    }

    #[test]
    fn other_frames_are_passed_on_whole() {
        let mut barrier = Barrier::new();
        let rest = |barrier: &mut Barrier, piece: &[u8]| barrier.sees(piece, false, false);
        assert_eq!(rest(&mut barrier, b"of a message"), Seen::Passed(Vec::new()));
        let other = b"*2\r\n$4\r\npong\r\n$1\r\na\r\n";
        assert_eq!(barrier.sees(other, true, true), Seen::Passed(Vec::new()));
        assert_eq!(barrier.sees(&other[..14], true, false), Seen::Held);
        assert_eq!(barrier.sees(&other[14..], false, true), Seen::Passed(other[..14].to_vec()));
        let plain = barrier.replies()[0].clone();
        let inner = [b"*3\r\n", &plain[..]].concat();
        assert_eq!(barrier.sees(&inner[..4], true, false), Seen::Passed(Vec::new()));
        assert_eq!(rest(&mut barrier, &inner[4..]), Seen::Passed(Vec::new()), "within a frame");
    }
}

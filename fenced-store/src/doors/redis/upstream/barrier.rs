//! Detection of the end of the replies to a subscription.
//!
//! The number of replies to SUBSCRIBE and UNSUBSCRIBE is not known beforehand, and in RESP2 they
//! decide which commands Redis accepts next. So each is followed by a PING with a random word: its
//! reply comes behind all of theirs, and its form shows if Redis is then in RESP2's subscriber
//! mode. Clients never see it.

use bytes::BytesMut;
use service_kit::ids;

use super::super::resp::encode;

/// The PING behind a subscription, and the received part of its reply.
#[derive(Debug)]
pub(super) struct Barrier {
    word: String,
    /// Beginning of a frame that may be the reply.
    held: Vec<u8>,
    /// The frame being received is not the reply.
    passes: bool,
}

/// Classification of one piece of Redis' output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It may be part of the reply; it is held.
    Held,
    /// It is the client's, behind these bytes that were held before.
    Passed(Vec<u8>),
    /// The reply is complete.
    Reached {
        /// Redis is in RESP2's subscriber mode.
        subscribed: bool,
    },
}

impl Barrier {
    pub(super) fn new() -> Self {
        Self { word: ids::random_hex(16), held: Vec::new(), passes: true }
    }

    /// Makes the command.
    pub(super) fn command(&self) -> BytesMut {
        let mut out = BytesMut::new();
        encode::request(&mut out, ["PING", &self.word]);
        out
    }

    /// Classifies a piece of Redis' output; `begins` and `ends` are set if a frame does so with it.
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

    /// Returns the replies outside of the subscriber mode, and in it.
    fn replies(&self) -> [BytesMut; 2] {
        let mut plain = BytesMut::new();
        let mut subscribed = BytesMut::new();
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

//! Redis' RESP2 subscriber mode, as its replies tell of it.

/// Longer frames than this are messages, not confirmations.
const CONFIRMATION: usize = 4096;

/// Watches the confirmations for whether anything is subscribed.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    frame: Vec<u8>,
    /// Channels and patterns that are subscribed; Redis counts them together.
    channels: u64,
    /// Shard channels, which it counts apart.
    shards: u64,
    /// Confirmations that have not come yet. Until then the mode may be about to begin again.
    subscribing: usize,
    unsubscribing: usize,
}

impl Subscriber {
    /// A command for so many channels is sent.
    pub(super) fn expects(&mut self, subscribes: bool, channels: usize) {
        if subscribes {
            self.subscribing += channels;
        } else if !self.is_active() {
            // Where nothing is subscribed, leaving everything is confirmed once.
            self.unsubscribing += channels.max(1);
        }
    }

    /// Whether the mode is on, or may be.
    pub(super) fn is_active(&self) -> bool {
        self.channels + self.shards > 0 || self.subscribing + self.unsubscribing > 0
    }

    /// A piece of what Redis sent, and whether it ends a frame.
    pub(super) fn sees(&mut self, piece: &[u8], done: bool) {
        if self.frame.len() + piece.len() <= CONFIRMATION {
            self.frame.extend_from_slice(piece);
        } else {
            // Too long to be one; the rest of it does not matter.
            self.frame.resize(CONFIRMATION + 1, 0);
        }
        if !done {
            return;
        }
        if let Some((kind, count)) = confirmation(&self.frame) {
            if kind.starts_with(b"s") && kind != b"subscribe" {
                self.shards = count;
            } else {
                self.channels = count;
            }
            let expected = if kind.ends_with(b"unsubscribe") {
                &mut self.unsubscribing
            } else {
                &mut self.subscribing
            };
            *expected = expected.saturating_sub(1);
        } else if self.frame.starts_with(b"-") {
            // A subscription that Redis refuses is confirmed by nothing else.
            self.subscribing = 0;
        }
        self.frame.clear();
    }
}

/// What is confirmed, and how many are subscribed then.
fn confirmation(frame: &[u8]) -> Option<(&[u8], u64)> {
    let rest = frame.strip_prefix(b"*3\r\n$")?;
    let (_, rest) = split(rest, b"\r\n")?;
    let (kind, rest) = split(rest, b"\r\n")?;
    let kinds: [&[u8]; 6] = [
        b"subscribe",
        b"psubscribe",
        b"ssubscribe",
        b"unsubscribe",
        b"punsubscribe",
        b"sunsubscribe",
    ];
    let rest = rest.strip_suffix(b"\r\n").filter(|_| kinds.contains(&kind))?;
    let at = rest.iter().rposition(|byte| *byte == b':')?;
    let count = std::str::from_utf8(&rest[at + 1..]).ok()?.parse().ok()?;
    Some((kind, count))
}

fn split<'b>(bytes: &'b [u8], at: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let begin = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..begin], &bytes[begin + at.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: &str, channel: &str, count: u64) -> String {
        format!(
            "*3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:{count}\r\n",
            kind.len(),
            channel.len()
        )
    }

    fn subscriber(frames: &[String]) -> Subscriber {
        let mut subscriber = Subscriber::default();
        frames.iter().for_each(|frame| subscriber.sees(frame.as_bytes(), true));
        subscriber
    }

    #[test]
    fn the_mode_ends_when_nothing_is_subscribed() {
        let one = || frame("subscribe", "a", 1);
        assert!(subscriber(&[one()]).is_active());
        assert!(!subscriber(&[one(), frame("unsubscribe", "a", 0)]).is_active());
        assert!(
            subscriber(&[one(), frame("psubscribe", "b", 2), frame("unsubscribe", "a", 1)])
                .is_active()
        );
        let nobody = "*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:0\r\n".to_owned();
        assert!(!subscriber(&[one(), nobody]).is_active());
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$14\r\nunsubscribe:0\n\r\n".to_owned();
        assert!(subscriber(&[one(), message]).is_active());
    }

    #[test]
    fn shards_are_counted_apart() {
        let both = || vec![frame("subscribe", "a", 1), frame("ssubscribe", "b", 1)];
        let left = [both(), vec![frame("sunsubscribe", "b", 0)]].concat();
        assert!(subscriber(&left).is_active());
        let left = [left, vec![frame("unsubscribe", "a", 0)]].concat();
        assert!(!subscriber(&left).is_active());
    }

    #[test]
    fn a_frame_may_come_in_pieces() {
        let mut split = subscriber(&[frame("subscribe", "a", 1)]);
        split.sees(b"*3\r\n$11\r\nunsub", false);
        assert!(split.is_active());
        split.sees(b"scribe\r\n$1\r\na\r\n:0\r\n", true);
        assert!(!split.is_active());
    }

    #[test]
    fn a_subscription_behind_an_end_keeps_the_mode() {
        let mut again = subscriber(&[frame("subscribe", "a", 1)]);
        again.expects(false, 1);
        again.expects(true, 1);
        again.sees(frame("unsubscribe", "a", 0).as_bytes(), true);
        assert!(again.is_active(), "the next confirmation is still to come");
        again.sees(frame("subscribe", "b", 1).as_bytes(), true);
        again.sees(frame("unsubscribe", "b", 0).as_bytes(), true);
        assert!(!again.is_active());
        again.expects(false, 2);
        again.sees(frame("unsubscribe", "x", 0).as_bytes(), true);
        assert!(again.is_active(), "one confirmation each");
        again.sees(frame("unsubscribe", "y", 0).as_bytes(), true);
        assert!(!again.is_active());
    }
}

//! Redis' RESP2 subscriber mode, as its replies tell of it.

/// Longer frames than this are messages, not confirmations.
const CONFIRMATION: usize = 4096;

/// Watches for the confirmation that nothing is subscribed any more.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    frame: Vec<u8>,
}

impl Subscriber {
    /// A piece of what Redis sent, and whether it ends a frame; `true` when the mode is over.
    pub(super) fn sees(&mut self, piece: &[u8], done: bool) -> bool {
        if self.frame.len() + piece.len() <= CONFIRMATION {
            self.frame.extend_from_slice(piece);
        } else {
            // Too long to be one; the rest of it does not matter.
            self.frame.resize(CONFIRMATION + 1, 0);
        }
        let is_over = done && is_last_confirmation(&self.frame);
        if done {
            self.frame.clear();
        }
        is_over
    }
}

fn is_last_confirmation(frame: &[u8]) -> bool {
    let kinds: [&[u8]; 3] =
        [b"$11\r\nunsubscribe\r\n", b"$12\r\npunsubscribe\r\n", b"$12\r\nsunsubscribe\r\n"];
    let Some(rest) = frame.strip_prefix(b"*3\r\n") else { return false };
    kinds.iter().any(|kind| rest.starts_with(kind)) && rest.ends_with(b"\r\n:0\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_confirmation_with_zero_ends_it() {
        let over = |text: &str| Subscriber::default().sees(text.as_bytes(), true);
        assert!(over("*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"));
        assert!(over("*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:0\r\n"));
        assert!(!over("*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n"));
        assert!(!over("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"));
        assert!(!over("*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$14\r\nunsubscribe:0\n\r\n"));
        let mut split = Subscriber::default();
        assert!(!split.sees(b"*3\r\n$11\r\nunsub", false));
        assert!(split.sees(b"scribe\r\n$1\r\na\r\n:0\r\n", true));
    }
}

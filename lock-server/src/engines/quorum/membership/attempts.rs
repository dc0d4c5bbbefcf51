//! Steps that a node refused, and when they are tried again.
//!
//! What brings a node back costs the others something. One that cannot write, because its memory or
//! its disk is full, must not have them work for it all the time.

use std::collections::BTreeMap;
use std::time::Duration;

/// The first pause, in milliseconds; each is twice as long as the one before.
const PAUSE_MIN_MS: u64 = 100;
/// The longest.
const PAUSE_MAX_MS: u64 = 5_000;

/// Failed steps of the last time, node by node.
#[derive(Debug, Default)]
pub(super) struct Attempts(BTreeMap<usize, Failed>);

#[derive(Debug)]
struct Failed {
    pause_ms: u64,
    /// When it is tried again, in monotonic milliseconds of this server.
    retry_at_ms: u64,
    why: String,
}

impl Attempts {
    /// Records why a step had no effect.
    pub(super) fn failed(&mut self, node: usize, now_ms: u64, why: String) {
        let last = self.0.get(&node).map(|failed| failed.pause_ms);
        let pause_ms = last.map_or(PAUSE_MIN_MS, |last| (last * 2).min(PAUSE_MAX_MS));
        self.0.insert(node, Failed { pause_ms, retry_at_ms: now_ms + pause_ms, why });
    }

    /// A step was done, or none is needed any more.
    pub(super) fn done(&mut self, node: usize) {
        self.0.remove(&node);
    }

    /// Returns the pause of a node; `None` if it is due.
    pub(super) fn pause(&self, node: usize, now_ms: u64) -> Option<Duration> {
        let pause_ms = self.0.get(&node)?.retry_at_ms.saturating_sub(now_ms);
        (pause_ms > 0).then(|| Duration::from_millis(pause_ms))
    }

    /// Reason why the last step had no effect.
    pub(super) fn why(&self, node: usize) -> Option<&str> {
        self.0.get(&node).map(|failed| failed.why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_grow_up_to_a_bound_and_begin_anew() {
        let mut attempts = Attempts::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            attempts.failed(1, 1_000, "full".to_owned());
            pauses.push(attempts.pause(1, 1_000).unwrap().as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!((attempts.pause(1, 6_000), attempts.why(1)), (None, Some("full")));
        assert_eq!(attempts.pause(0, 1_000), None, "another node");
        attempts.done(1);
        attempts.failed(1, 9_000, "full".to_owned());
        assert_eq!(attempts.pause(1, 9_000), Some(Duration::from_millis(100)));
    }
}

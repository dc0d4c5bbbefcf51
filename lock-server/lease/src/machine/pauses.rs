//! Pauses of an engine: no lease begins, requests wait, and live leases continue.

use super::Machine;

impl Machine {
    /// Suspends new leases until `until_ms`.
    pub fn pause(&mut self, until_ms: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.paused_until_ms = until_ms;
        }
    }

    /// Returns the end of the pause; `None` without one.
    pub(super) fn paused_until_ms(&self) -> Option<u64> {
        let until_ms = self.sharing.as_ref()?.paused_until_ms;
        (until_ms > 0).then_some(until_ms)
    }

    /// Returns the rest of the pause, in milliseconds; `None` without one.
    pub fn pause_left_ms(&self, now_ms: u64) -> Option<u64> {
        let left_ms = self.paused_until_ms()?.saturating_sub(now_ms);
        (left_ms > 0).then_some(left_ms)
    }

    /// Serves the queues once the pause has ended.
    pub(super) fn resume(&mut self, now_ms: u64) {
        if self.paused_until_ms().is_some_and(|until_ms| until_ms <= now_ms) {
            self.pause(0);
            let waiting = self.records.iter().filter(|(_, record)| !record.queue.is_empty());
            self.passing.extend(waiting.map(|(lock, _)| lock.clone()));
        }
    }
}

//! Pauses of an engine, in which no lease begins: requests wait, and what lives goes on.

use super::Machine;

impl Machine {
    /// Lets no lease begin before `until_ms`.
    pub fn pause(&mut self, until_ms: u64) {
        if let Some(sharing) = &mut self.sharing {
            sharing.paused_until_ms = until_ms;
        }
    }

    /// When the pause ends; `None` where there is none.
    pub(super) fn paused_until_ms(&self) -> Option<u64> {
        let until_ms = self.sharing.as_ref()?.paused_until_ms;
        (until_ms > 0).then_some(until_ms)
    }

    /// What is left of the pause, in milliseconds; `None` where there is none.
    pub fn pause_left_ms(&self, now_ms: u64) -> Option<u64> {
        let left_ms = self.paused_until_ms()?.saturating_sub(now_ms);
        (left_ms > 0).then_some(left_ms)
    }

    /// Serves the queues once the pause is over.
    pub(super) fn resume(&mut self, now_ms: u64) {
        if self.paused_until_ms().is_some_and(|until_ms| until_ms <= now_ms) {
            self.pause(0);
            let waiting = self.records.iter().filter(|(_, record)| !record.queue.is_empty());
            self.passing.extend(waiting.map(|(lock, _)| lock.clone()));
        }
    }
}

//! Passing time: the end of quarantines, and the closing of lanes at rest and at shutdown.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::LockName;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Lanes, Slot};
use crate::doors::http_proxy::lane::Event;

/// A lane closes after it had no write in one whole interval. A crash before that costs a
/// quarantine, and closing sooner costs a commit when the next write opens it again.
const REST: Duration = Duration::from_secs(1);

/// Lanes that are handled before others get a turn.
const LANES_AT_ONCE: usize = 256;

impl Lanes {
    /// Starts the task that closes lanes. It keeps them until the end, when they close for good.
    pub(super) fn start_resting(self: Arc<Self>) {
        let tasks = self.kit.tasks.clone();
        let stop = tasks.shutdown_token();
        tasks.spawn(async move {
            loop {
                let is_closing = tokio::select! {
                    () = stop.cancelled() => true,
                    _ = self.term.ended() => return,
                    () = tokio::time::sleep(REST) => false,
                };
                self.rest_all(is_closing);
                if is_closing {
                    return;
                }
            }
        });
    }

    /// Notifies all open lanes of an interval of rest, or of the end of the process.
    fn rest_all(&self, is_closing: bool) {
        let open: Vec<LockName> = {
            let mut table = self.table();
            table.is_closing |= is_closing;
            table.open.iter().cloned().collect()
        };
        for locks in open.chunks(LANES_AT_ONCE) {
            let mut table = self.table();
            for lock in locks {
                self.run(&mut table, lock, Event::Rest, None);
            }
        }
    }

    /// Keeps one timer for the end of the lane's quarantine. A quarantine that is already known to
    /// last longer is timed anew when the timer fires.
    pub(super) fn set_timer(&self, lock: &LockName, slot: &mut Slot) {
        let Some(quarantine) = slot.lane.quarantine() else {
            slot.timer = None;
            return;
        };
        let until_ms = quarantine.until_ms;
        if slot.timer.as_ref().is_some_and(|timer| timer.at_ms <= until_ms) {
            return;
        }
        let cancelled = CancellationToken::new();
        slot.timer = Some(Timer { at_ms: until_ms, _cancels: cancelled.clone().drop_guard() });
        let itself = self.itself.clone();
        let clock = Arc::clone(&self.kit.clock);
        let stop = self.kit.tasks.shutdown_token();
        let lock = lock.clone();
        self.kit.tasks.spawn(async move {
            loop {
                let now_ms = clock.monotonic_ms();
                if now_ms >= until_ms {
                    break;
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = cancelled.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(until_ms - now_ms)) => {}
                }
            }
            if let Some(lanes) = itself.upgrade() {
                lanes.fire(&lock, until_ms);
            }
        });
    }

    fn fire(&self, lock: &LockName, at_ms: u64) {
        let mut table = self.table();
        if let Some(slot) = table.slots.get_mut(lock) {
            // Another one may have taken its place just now.
            slot.timer.take_if(|timer| timer.at_ms == at_ms);
        }
        self.run(&mut table, lock, Event::Tick { now_ms: self.now_ms() }, None);
    }
}

/// Timer of one quarantine. Dropping it cancels it.
#[derive(Debug)]
pub(super) struct Timer {
    at_ms: u64,
    _cancels: DropGuard,
}

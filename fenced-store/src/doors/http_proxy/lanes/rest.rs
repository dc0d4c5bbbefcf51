//! Passing time: the end of quarantines, and the closing of lanes at rest and at shutdown.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::LockName;

use super::Lanes;
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
                    () = self.term.ended() => return,
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

    /// Ticks a lane at a point in time.
    pub(super) fn tick_at(&self, lock: LockName, until_ms: u64) {
        let itself = self.itself.clone();
        let clock = Arc::clone(&self.kit.clock);
        let stop = self.kit.tasks.shutdown_token();
        self.kit.tasks.spawn(async move {
            loop {
                let now_ms = clock.monotonic_ms();
                if now_ms >= until_ms {
                    break;
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(Duration::from_millis(until_ms - now_ms)) => {}
                }
            }
            if let Some(lanes) = itself.upgrade() {
                lanes.feed(&lock, Event::Tick { now_ms: clock.monotonic_ms() });
            }
        });
    }
}

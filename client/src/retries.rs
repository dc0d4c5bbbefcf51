//! Times of a call: its wait, and the ends of its retries.

use std::time::Duration;

use crate::clock::Moment;

/// Default of [`LockRequest::patience`](crate::LockRequest::patience): how long an unreachable
/// server is retried beyond the wait.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);

/// Times of an acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTimes {
    /// Longest wait in the queue.
    pub(crate) wait: Duration,
    /// Time beyond the wait for which requests are retried.
    pub(crate) patience: Duration,
    /// The wait bounds the retries of an unreachable server too.
    pub(crate) is_bounded: bool,
}

impl Default for WaitTimes {
    fn default() -> Self {
        Self { wait: Duration::ZERO, patience: DEFAULT_PATIENCE, is_bounded: false }
    }
}

/// Shortest time-out of a request.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Ends of the retries of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retries {
    /// Of a server or store that is unreachable.
    pub(crate) unavailable_until: Moment,
    /// Of requests whose outcome is unknown.
    pub(crate) unknown_until: Moment,
    is_bounded: bool,
}

impl Retries {
    /// Ends of a call that begins at `now`.
    pub(crate) fn new(now: Moment, times: WaitTimes) -> Self {
        let wait_until = now.plus(times.wait);
        let unknown_until = wait_until.plus(times.patience);
        let is_bounded = times.is_bounded;
        let unavailable_until = if is_bounded { wait_until } else { unknown_until };
        Self { unavailable_until, unknown_until, is_bounded }
    }

    /// Time-out of a request sent at `now`: `whole`, but not beyond the end of a bounded call.
    pub(crate) fn timeout(&self, now: Moment, whole: Duration) -> Duration {
        if self.is_bounded {
            whole.min(self.unknown_until.since(now)).max(TIMEOUT_MIN)
        } else {
            whole
        }
    }
}

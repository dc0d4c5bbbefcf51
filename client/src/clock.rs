//! The holder's clock, which also runs while the machine is suspended, because it must never run
//! slow.
//!
//! `Instant` and the timers of the runtime stop in a suspend. A holder that trusted them would
//! resume and believe that no time has passed. On Linux this module reads `CLOCK_BOOTTIME` and
//! waits on a timer of the same clock.

use std::time::Duration;

/// A point in time on the holder's clock, in milliseconds since the machine started.
///
/// Comparable only on the machine that created it. On Linux it is the time of `/proc/uptime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Creates a moment from milliseconds since the machine started.
    pub fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the machine started.
    pub fn ms(self) -> u64 {
        self.0
    }

    /// Returns the moment `ms` milliseconds later; saturates.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Returns the moment later by the duration's whole milliseconds; saturates.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        self.plus_ms(whole_ms(duration))
    }

    /// Returns the moment `ms` milliseconds earlier; saturates at zero.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Time from `earlier` to this moment; zero if this is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A moment, with the total time for which the machine had been suspended until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The moment of the reading.
    pub at: Moment,
    /// Total time in suspend since the machine started, in milliseconds.
    pub suspended_ms: u64,
}

/// Most reads of the two clocks, which are repeated if this process was stopped between them.
const READS_MAX: u32 = 8;

/// Reads the time and the total time in suspend; the latter is zero on systems that do not measure
/// it.
pub fn reading() -> Reading {
    let mut at = now();
    for _ in 1..READS_MAX {
        let awake_ms = awake_ms();
        let after = now();
        // Time that passed between the reads must not count as suspend.
        if after.since(at) <= Duration::from_millis(1) {
            return Reading { at: after, suspended_ms: at.ms().saturating_sub(awake_ms) };
        }
        at = after;
    }
    Reading { at, suspended_ms: at.ms().saturating_sub(awake_ms()) }
}

/// Time for which the machine ran, in milliseconds since it started.
fn awake_ms() -> u64 {
    // On systems other than Linux this is the clock of `now` itself.
    ms_of(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

/// Current time, rounded down to a millisecond.
pub fn now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    // On other systems the monotonic clock is the closest; on macOS it runs in suspend as well.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    Moment(ms_of(rustix::time::clock_gettime(clock)))
}

/// Whole milliseconds of a duration; saturates.
pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn ms_of(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1000).saturating_add(millis)
}

/// Longest single sleep if the operating system offers no timer on the holder's clock: a resume
/// from suspend is noticed at most this much late.
const SLICE: Duration = Duration::from_secs(1);

/// Waits until the holder's clock has reached `deadline`. Time in suspend counts: if the deadline
/// passed in it, this returns right after the resume. Cancel-safe.
pub async fn sleep_until(deadline: Moment) {
    while now() < deadline {
        if !boottime_timer::wait(deadline).await {
            tokio::time::sleep(deadline.since(now()).min(SLICE)).await;
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod boottime_timer {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::Moment;

    /// Waits on a timer of the holder's clock; `false`, at once, if none is available (the process
    /// has no file descriptor left).
    pub(super) async fn wait(deadline: Moment) -> bool {
        let Some(timer) = armed(deadline) else {
            return false;
        };
        timer.readable().await.is_ok()
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe, which is forbidden here; an OwnedFd meets its contract: it \
                  owns one open descriptor that never changes"
    )]
    fn armed(deadline: Moment) -> Option<AsyncFd<std::os::fd::OwnedFd>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags).ok()?;
        // A timer at zero would be disarmed, hence at least 1 ns.
        let at = Timespec {
            tv_sec: i64::try_from(deadline.ms() / 1000).ok()?,
            tv_nsec: i64::try_from((deadline.ms() % 1000) * 1_000_000).ok()?.max(1),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once).ok()?;
        AsyncFd::with_interest(timer, Interest::READABLE).ok()
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod boottime_timer {
    use super::Moment;

    pub(super) async fn wait(_deadline: Moment) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeping_reaches_the_deadline_and_never_ends_before_it() {
        let deadline = now().plus_ms(30);
        sleep_until(deadline).await;
        assert!(now() >= deadline);
        // A deadline that has passed does not wait.
        sleep_until(deadline).await;
    }

    #[test]
    fn time_in_suspend_is_a_part_of_all_time() {
        let before = now();
        let reading = reading();
        assert!(before <= reading.at && reading.at <= now());
        assert!(reading.suspended_ms <= reading.at.ms());
    }

    #[test]
    fn differences_never_wrap() {
        assert_eq!(Moment::from_ms(5).minus_ms(7), Moment::from_ms(0));
        let early = Moment::from_ms(5);
        assert_eq!(early.since(early.plus_ms(7)), Duration::ZERO);
        assert_eq!(early.plus_ms(7).since(early), Duration::from_millis(7));
        assert_eq!(early.plus_ms(u64::MAX).ms(), u64::MAX);
    }
}

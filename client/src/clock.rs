//! The holder's clock: it must never run slow, so it also runs while the machine is suspended.
//!
//! `Instant` and the timers of the runtime stand still in a suspend. A holder that trusted them
//! would wake up and believe that no time has passed. On Linux this module reads `CLOCK_BOOTTIME`
//! and waits on a timer of the same clock.

use std::time::Duration;

/// A point in time on the holder's clock, in milliseconds since the machine started.
///
/// Only comparable on the machine that made it. On Linux it is the time of `/proc/uptime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// A point in time from milliseconds since the machine started.
    pub fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// In milliseconds since the machine started.
    pub fn ms(self) -> u64 {
        self.0
    }

    /// This many milliseconds later; stops at the end of time.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This many milliseconds earlier; stops at the beginning of time.
    #[must_use]
    pub fn minus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// How long it is from `earlier` to this; zero where it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A moment, with the time for which the machine had been suspended until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The moment.
    pub at: Moment,
    /// In milliseconds since the machine started.
    pub suspended_ms: u64,
}

/// How often both clocks are read again where this process was stopped between the two.
const READS_MAX: u32 = 8;

/// The time now and how long the machine has been suspended so far. Where the system does not tell
/// the two apart, it never was.
pub fn reading() -> Reading {
    let mut at = now();
    for _ in 1..READS_MAX {
        let awake_ms = awake_ms();
        let after = now();
        // What passed between the reads is no suspend.
        if after.since(at) <= Duration::from_millis(1) {
            return Reading { at: after, suspended_ms: at.ms().saturating_sub(awake_ms) };
        }
        at = after;
    }
    Reading { at, suspended_ms: at.ms().saturating_sub(awake_ms()) }
}

/// The time for which the machine ran, in milliseconds since it started.
fn awake_ms() -> u64 {
    // Elsewhere than on Linux this is the clock of `now` itself.
    whole_ms(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

/// The time now, rounded down to a millisecond.
pub fn now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    // Elsewhere the monotonic clock is the nearest thing; on macOS it runs in suspend as well.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    Moment(whole_ms(rustix::time::clock_gettime(clock)))
}

fn whole_ms(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1000).saturating_add(millis)
}

/// The longest single sleep where the operating system offers no timer on the holder's clock: a
/// resume from suspend is noticed at most this much late.
const SLICE: Duration = Duration::from_secs(1);

/// Waits until the holder's clock has reached `deadline`.
///
/// A suspend counts as time that passed: after the resume this returns at once. Cancel-safe.
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

    /// Waits on a timer of the holder's clock; `false` where there is none to be had (the process
    /// has no file descriptor left), and then no time has passed.
    pub(super) async fn wait(deadline: Moment) -> bool {
        let Some(timer) = armed(deadline) else {
            return false;
        };
        timer.readable().await.is_ok()
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe, which is forbidden here; an OwnedFd keeps what it asks for: \
                  it owns one open descriptor that never changes"
    )]
    fn armed(deadline: Moment) -> Option<AsyncFd<std::os::fd::OwnedFd>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags).ok()?;
        // A timer at zero would be disarmed; no machine is at its first millisecond here.
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
    fn what_was_suspended_is_a_part_of_all_time() {
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

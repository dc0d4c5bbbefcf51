//! The one place of the servers that reads the system's clocks.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time in whole milliseconds.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Milliseconds since an arbitrary origin; never falls. Leases are measured with it.
    fn monotonic_ms(&self) -> u64;

    /// Milliseconds since 1970 as the system believes; it may step in either direction. Only for
    /// what people read and for the floor of counters, never for the length of a lease.
    fn wall_ms(&self) -> u64;
}

/// The system's clocks. The monotonic origin is the moment of [`SystemClock::new`].
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts at zero now.
    pub fn new() -> Self {
        Self { origin: now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> u64 {
        u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when a test or a simulation moves it.
#[derive(Debug)]
pub struct ManualClock {
    times: Mutex<(u64, u64)>,
}

impl ManualClock {
    /// A clock that stands at these times, in milliseconds.
    pub fn new(monotonic_ms: u64, wall_ms: u64) -> Self {
        Self { times: Mutex::new((monotonic_ms, wall_ms)) }
    }

    /// Moves both times forward.
    pub fn advance(&self, ms: u64) {
        let mut times = self.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *times = (times.0.saturating_add(ms), times.1.saturating_add(ms));
    }

    fn read(&self) -> (u64, u64) {
        *self.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn monotonic_ms(&self) -> u64 {
        self.read().0
    }

    fn wall_ms(&self) -> u64 {
        self.read().1
    }
}

/// The monotonic time for what the two servers measure themselves: how long a request took, when a
/// sender has become too slow. Nothing that decides over a lease uses it.
#[expect(clippy::disallowed_methods, reason = "this module owns the monotonic clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since the machine started, its time in suspend included: for the holder of a lease,
/// whose clock must not run slow.
pub fn boottime_ms() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    // On other systems the monotonic clock is the closest.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000) + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Time since 1970 as the system believes, for the spans of traces.
#[expect(clippy::disallowed_methods, reason = "this module owns the wall clock")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_starts_at_zero_and_knows_the_year() {
        let clock = SystemClock::new();
        let first = clock.monotonic_ms();
        assert!(first <= clock.monotonic_ms());
        assert!(clock.wall_ms() > 1_700_000_000_000);
    }
}

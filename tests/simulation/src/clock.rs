//! Clocks of simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use service_kit::clock::Clock;
use tokio::time::Instant;

/// Wall-clock time at the beginning of a simulation, ms since 1970: some day in 2026.
const WALL_MS: u64 = 1_780_000_000_000;

/// The time of tokio: simulated while it is paused, and real otherwise. Every process has an origin
/// of its own.
#[derive(Debug)]
pub struct SimClock {
    began: Instant,
    origin_ms: u64,
    wall_ms: u64,
}

impl SimClock {
    /// A clock that shows `origin_ms` at `began`.
    pub fn new(began: Instant, origin_ms: u64) -> Self {
        Self { began, origin_ms, wall_ms: WALL_MS }
    }

    /// With another wall-clock time at the beginning, in ms since 1970.
    #[must_use]
    pub fn with_wall(self, wall_ms: u64) -> Self {
        Self { wall_ms, ..self }
    }

    fn since_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Clock for SimClock {
    fn monotonic_ms(&self) -> u64 {
        self.origin_ms + self.since_ms()
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms + self.since_ms()
    }
}

/// The clock of an engine, which people step.
#[derive(Debug)]
pub(crate) struct StepClock {
    time: Arc<dyn Clock>,
    ahead_ms: AtomicI64,
}

impl StepClock {
    /// A clock that is `ahead_ms` ahead of `time`.
    pub(crate) fn new(time: Arc<dyn Clock>, ahead_ms: i64) -> Self {
        Self { time, ahead_ms: AtomicI64::new(ahead_ms) }
    }

    /// Steps it, forward or back.
    pub(crate) fn step(&self, ms: i64) {
        self.ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for StepClock {
    fn monotonic_ms(&self) -> u64 {
        self.time.monotonic_ms().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        self.time.wall_ms()
    }
}

//! The clock of a store, which people set, as this server knows it; shared by the engines whose
//! store measures leases by its own clock.
//!
//! A commit under a time that is later than what this server's monotonic clock allows is refused:
//! the clock has jumped, or the commit took long to arrive. A measurement shows which. A jump is
//! corrected in the store, for every server: the time of the records continues as if there had been
//! none, so no lease looks as if it were over. Records may have been forgotten meanwhile, so a
//! pause begins in the same step, for as long as their leases may live.

mod offset;
mod pauses;
mod time;

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::health::{Health, Status};
use tokio::sync::{Mutex, MutexGuard};

use self::offset::ClockJump;
pub(crate) use self::pauses::Pauses;
pub(crate) use self::time::StoreTime;

/// Probes of the clock for one jump.
pub(crate) const LOOKS_MAX: u32 = 3;

/// Measurements of the clock, and the report of its jumps.
#[derive(Debug)]
pub(crate) struct Jumps {
    /// The store's name in texts.
    store: &'static str,
    pauses: bool,
    count: AtomicU64,
    counted: Counter,
    health: Health,
    settling: Mutex<()>,
}

/// The store's reply to a sign of life.
#[derive(Debug)]
pub(crate) struct Beat {
    /// The time.
    pub(crate) now_ms: u64,
    /// Counter of tokens.
    pub(crate) counter: u64,
    /// Milliseconds by which the clock of the store is ahead of the time of the records.
    pub(crate) ahead_ms: i64,
    /// Rest of a pause, in milliseconds.
    pub(crate) paused_ms: u64,
    /// For how long a lease of any server may live; `None` if the store noted nothing, as its clock
    /// showed what is not possible.
    pub(crate) lives_ms: Option<u64>,
    /// The servers that live.
    pub(crate) servers: Vec<u32>,
}

/// Correction of a jump: none if all zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Correction {
    /// For how long no lease may begin: the store may have forgotten records that looked as if they
    /// were over.
    pub(crate) pause_ms: u64,
    /// By how much the clock jumped ahead.
    pub(crate) jump_ms: i64,
    /// Milliseconds that it was ahead before.
    pub(crate) ahead_ms: i64,
}

impl Jumps {
    pub(crate) fn new(store: &'static str, pauses: bool, kit: &Kit) -> Self {
        let counted = kit.metrics.counter(
            "lock_clock_jumps",
            "Jumps of the clock of the store against this server's monotonic clock",
        );
        let count = AtomicU64::new(0);
        let health = kit.health.clone();
        Self { store, pauses, count, counted, health, settling: Mutex::default() }
    }

    /// The times between which a beat is noted: all, if jumps are not corrected.
    pub(crate) fn possible(&self, time: &StoreTime, slow_ms: u64) -> (u64, u64) {
        match self.pauses {
            true => (time.earliest_ms(), time.latest_ms().saturating_add(slow_ms)),
            false => (0, u64::MAX),
        }
    }

    /// Waits for the measurement of another task to end.
    pub(crate) async fn alone(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().await
    }

    /// Judges the reply to a beat that was sent at `sent_ms`. `None` where it is believed; else the
    /// correction that the next beat has to carry.
    pub(crate) fn judge(&self, time: &StoreTime, beat: &Beat, sent_ms: u64) -> Option<Correction> {
        let (offset, step) = time.compare(beat.now_ms, sent_ms);
        // A jump that another server has corrected is not corrected again: the two could take turns
        // for ever.
        let is_corrected = time.is_corrected(beat.ahead_ms);
        if step != ClockJump::Steady && self.pauses && !is_corrected {
            return Some(Correction::from_jump(step, beat.ahead_ms, time.lives_ms()));
        }
        time.believe(offset, beat.now_ms, sent_ms);
        let corrected = time.corrected(beat.ahead_ms);
        self.report(if corrected == ClockJump::Steady { step } else { corrected });
        None
    }

    fn report(&self, step: ClockJump) {
        let (ms, way) = match (step, self.pauses) {
            (ClockJump::Steady, _) => return,
            (ClockJump::Forward(ms), true) => (ms, "forward: leases keep their time"),
            (ClockJump::Forward(ms), false) => (ms, "forward: leases are over that much earlier"),
            (ClockJump::Backward(ms), true) => (ms, "back: leases keep their time"),
            (ClockJump::Backward(ms), false) => (ms, "back: leases live that much longer"),
        };
        self.counted.inc();
        let store = self.store;
        let jumps = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(jump_ms = ms, jumps, "the clock of {store} jumped {way}");
        let times = if jumps == 1 { "once".to_owned() } else { format!("{jumps} times") };
        self.health.set(
            "clock",
            Status::Warn(format!(
                "the clock of {store} jumped {times} since this server started, the last time by \
                 {ms} ms {way}; slew the clock instead of stepping it"
            )),
        );
    }
}

impl Correction {
    fn from_jump(step: ClockJump, ahead_ms: i64, lives_ms: u64) -> Self {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX / 4);
        let (pause_ms, jump_ms) = match step {
            ClockJump::Steady => (0, 0),
            ClockJump::Forward(ms) => (ms.min(lives_ms), signed(ms)),
            ClockJump::Backward(ms) => (0, -signed(ms)),
        };
        Self { pause_ms, jump_ms, ahead_ms }
    }
}

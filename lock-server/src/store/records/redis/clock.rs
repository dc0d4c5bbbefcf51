//! Measurements of the clock of Redis, and corrections of its jumps.
//!
//! Redis measures leases with a clock that people set. A commit under a time that is later than
//! what this server's monotonic clock allows is refused: the clock has jumped, or the script took
//! long to arrive. A measurement shows which. A jump is corrected in Redis, for every server: the
//! time of the records continues as if there had been none, so no lease looks as if it were over.
//! Redis itself may have forgotten records meanwhile, so a pause begins in the same step, for as
//! long as their leases may live.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use redis_link::LinkError;
use service_kit::Kit;
use service_kit::health::{Health, Status};
use tokio::sync::Mutex;

use super::codec::Beat;
use super::keys::Keys;
use super::offset::ClockJump;
use super::{RedisRecords, codec};

/// Probes of the clock for one jump.
const LOOKS_MAX: u32 = 3;

/// State of the report of jumps.
#[derive(Debug)]
pub(super) struct Jumps {
    pauses: bool,
    count: AtomicU64,
    counted: Counter,
    health: Health,
    settling: Mutex<()>,
}

impl Jumps {
    pub(super) fn new(pauses: bool, kit: &Kit) -> Self {
        let counted = Counter::default();
        kit.metrics.registry(|registry| {
            registry.register(
                "lock_clock_jumps",
                "Jumps of the clock of Redis against this server's monotonic clock",
                counted.clone(),
            );
        });
        let count = AtomicU64::new(0);
        let health = kit.health.clone();
        Self { pauses, count, counted, health, settling: Mutex::default() }
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
        let jumps = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(jump_ms = ms, jumps, "the clock of Redis jumped {way}");
        let times = if jumps == 1 { "once".to_owned() } else { format!("{jumps} times") };
        self.health.set(
            "clock",
            Status::Warn(format!(
                "the clock of Redis jumped {times} since this server started, the last time by {ms} \
                 ms {way}; slew the clock instead of stepping it"
            )),
        );
    }
}

impl RedisRecords {
    /// Measures the clock unless another task did after `looks`; one at a time.
    pub(super) async fn settle_after(&self, looks: u64) -> Result<(), LinkError> {
        let _one_at_a_time = self.inner.jumps.settling.lock().await;
        if self.inner.time.looks() == looks {
            self.look_at_clock("", 0).await?;
        }
        Ok(())
    }

    /// Measures the clock, and records that a server lives; returns the servers that do.
    pub(super) async fn settle(
        &self,
        server: &str,
        liveness_ms: u64,
    ) -> Result<Vec<u32>, LinkError> {
        let _one_at_a_time = self.inner.jumps.settling.lock().await;
        self.look_at_clock(server, liveness_ms).await
    }

    async fn look_at_clock(&self, server: &str, liveness_ms: u64) -> Result<Vec<u32>, LinkError> {
        let inner = &*self.inner;
        let mut correction = Correction::default();
        for _ in 0..LOOKS_MAX {
            let sent_ms = inner.time.monotonic_ms();
            let beat = self.beat_once(server, liveness_ms, correction).await?;
            let (offset, step) = inner.time.compare(beat.now_ms, sent_ms);
            // A jump that another server has corrected is not corrected again: the two could take
            // turns for ever.
            let is_corrected = inner.time.is_corrected(beat.ahead_ms);
            if step != ClockJump::Steady && inner.jumps.pauses && !is_corrected {
                correction = Correction::from_jump(step, beat.ahead_ms, inner.time.lives_ms());
                continue;
            }
            inner.time.believe(offset, beat.now_ms, sent_ms);
            let corrected = inner.time.corrected(beat.ahead_ms);
            inner.jumps.report(if corrected == ClockJump::Steady { step } else { corrected });
            return Ok(beat.servers);
        }
        Err(LinkError::Down("the clock of Redis jumps all the time".to_owned()))
    }

    async fn beat_once(
        &self,
        server: &str,
        liveness_ms: u64,
        correction: Correction,
    ) -> Result<Beat, LinkError> {
        let inner = &*self.inner;
        let keys = &self.inner.keys;
        let Keys { lineage, servers, paused_for, lives_until, absent, clock_ahead, .. } = keys;
        let all = [lineage, servers, paused_for, lives_until, absent, clock_ahead, &keys.token];
        let all = all.map(String::as_str);
        let reply = Box::pin(self.run(|lineage, _| {
            let mut command = inner.scripts.beat.call(&all);
            command.arg(lineage).arg(server).arg(liveness_ms).arg(inner.time.own_lives_ms());
            command.arg(correction.pause_ms).arg(correction.jump_ms).arg(correction.ahead_ms);
            command
        }));
        let beat = codec::beat(reply.await?.value);
        let beat = beat.map_err(|error| LinkError::Unknown(error.to_string()))?;
        // What other servers said before a jump counts by the time that was corrected since.
        inner.time.others_live(beat.lives_ms);
        inner.pauses.show(beat.paused_ms);
        self.saw(beat.counter);
        Ok(beat)
    }
}

/// Correction of a jump: none if all zero.
#[derive(Clone, Copy, Debug, Default)]
struct Correction {
    /// For how long no lease may begin: Redis may have forgotten records that looked as if they
    /// were over.
    pause_ms: u64,
    /// By how much the clock jumped ahead.
    jump_ms: i64,
    /// Milliseconds that it was ahead before.
    ahead_ms: i64,
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

//! Looks at the clock of Redis, and the pauses for its jumps.
//!
//! Redis measures leases with a clock that people set. A commit under a time that is later than what this
//! server's monotonic clock allows is refused: the clock has jumped, or the script was long on its
//! way. A look tells which, and lets a pause begin before the new time is believed, so that no lease
//! begins beside one that ended by a jump.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::health::{Health, Status};
use service_kit::redis_link::LinkError;
use tokio::sync::Mutex;

use super::{RedisRecords, codec};
use crate::store::redis::offset::Step;

/// What is reported of jumps.
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
        let (count, health) = (AtomicU64::new(0), kit.health.clone());
        Self { pauses, count, counted, health, settling: Mutex::default() }
    }

    fn report(&self, step: Step) {
        let (ms, way) = match step {
            Step::Steady => return,
            Step::Forward(ms) => (ms, "forward: leases may have looked as if they were over"),
            Step::Backward(ms) => (ms, "back: leases live that much longer"),
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
    /// Looks at the clock unless another task did after `looks`; one at a time.
    pub(super) async fn settle_after(&self, looks: u64) -> Result<(), LinkError> {
        let _one_at_a_time = self.inner.jumps.settling.lock().await;
        if self.inner.time.looks() == looks {
            self.look_at_clock("", 0).await?;
        }
        Ok(())
    }

    /// Looks at the clock, and notes that a server lives; returns the servers that do.
    pub(super) async fn settle(
        &self,
        server: &str,
        liveness_ms: u64,
    ) -> Result<Vec<u32>, LinkError> {
        let _one_at_a_time = self.inner.jumps.settling.lock().await;
        self.look_at_clock(server, liveness_ms).await
    }

    async fn look_at_clock(&self, server: &str, liveness_ms: u64) -> Result<Vec<u32>, LinkError> {
        let (inner, sent_ms) = (&*self.inner, self.inner.time.monotonic_ms());
        let (now_ms, servers) = self.beat_once(server, liveness_ms, 0).await?;
        let (offset, step) = inner.time.compare(now_ms, sent_ms);
        if let Step::Forward(jump_ms) = step
            && inner.jumps.pauses
        {
            let wait_ms = jump_ms.min(inner.time.lives_ms());
            if wait_ms > 0 {
                self.beat_once(server, liveness_ms, wait_ms).await?;
            }
        }
        inner.time.believe(offset);
        inner.time.saw(now_ms, sent_ms);
        inner.jumps.report(step);
        Ok(servers)
    }

    async fn beat_once(
        &self,
        server: &str,
        liveness_ms: u64,
        wait_ms: u64,
    ) -> Result<(u64, Vec<u32>), LinkError> {
        let (inner, keys) = (&*self.inner, &self.inner.keys);
        let all = [&keys.lineage, &keys.servers, &keys.paused_for, &keys.lives_until, &keys.absent];
        let all = all.map(String::as_str);
        let reply = Box::pin(self.run(|lineage, _| {
            let mut command = inner.scripts.beat.call(&all);
            command.arg(lineage).arg(server).arg(liveness_ms);
            command.arg(inner.time.own_lives_ms()).arg(wait_ms);
            command
        }));
        let (now_ms, lives_ms, servers) =
            codec::beat(reply.await?).map_err(|error| LinkError::Unknown(error.to_string()))?;
        // What other servers said before a jump counts by the clock that jumped.
        inner.time.others_live(lives_ms);
        Ok((now_ms, servers))
    }
}

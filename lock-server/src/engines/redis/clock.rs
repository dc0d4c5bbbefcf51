//! Measurements of the clock of Redis, by `beat.lua`; `../shared/store_clock.rs` says what follows.

use redis_link::LinkError;

use super::keys::Keys;
use super::{RedisRecords, codec};
use crate::engines::shared::store_clock::{Beat, Correction, LOOKS_MAX};

impl RedisRecords {
    /// Measures the clock unless another task did after `looks`; one at a time.
    pub(super) async fn settle_after(&self, looks: u64) -> Result<(), LinkError> {
        let _one_at_a_time = self.inner.jumps.alone().await;
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
        let _one_at_a_time = self.inner.jumps.alone().await;
        self.look_at_clock(server, liveness_ms).await
    }

    async fn look_at_clock(&self, server: &str, liveness_ms: u64) -> Result<Vec<u32>, LinkError> {
        let inner = &*self.inner;
        let mut correction = Correction::default();
        let mut slow_ms = 0;
        for _ in 0..LOOKS_MAX {
            let sent_ms = inner.time.monotonic_ms();
            let beat = self.beat_once(server, liveness_ms, correction, slow_ms).await?;
            match inner.jumps.judge(&inner.time, &beat, sent_ms) {
                Some(jumped) => correction = jumped,
                None if beat.lives_ms.is_some() => return Ok(beat.servers),
                // It was long on its way.
                None => slow_ms = inner.time.monotonic_ms().saturating_sub(sent_ms),
            }
        }
        Err(LinkError::Down("the clock of Redis jumps all the time".to_owned()))
    }

    async fn beat_once(
        &self,
        server: &str,
        liveness_ms: u64,
        correction: Correction,
        slow_ms: u64,
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
            let (earliest_ms, latest_ms) = inner.jumps.possible(&inner.time, slow_ms);
            command.arg(latest_ms).arg(earliest_ms);
            command
        }));
        let beat = codec::beat(reply.await?.value);
        let beat = beat.map_err(|error| LinkError::Unknown(error.to_string()))?;
        // What other servers said before a jump counts by the time that was corrected since.
        inner.time.others_live(beat.lives_ms.unwrap_or_default());
        inner.pauses.show(beat.paused_ms);
        self.saw(beat.counter);
        Ok(beat)
    }
}

//! Measurements of the clock of PostgreSQL; `../shared/store_clock.rs` says what follows.

use postgres_link::LinkError;

use super::codec::{self, signed};
use super::{PostgresRecords, one, session};
use crate::engines::shared::store_clock::{Beat, Correction, LOOKS_MAX};

impl PostgresRecords {
    /// Measures the clock unless another task did after `looks`; one at a time.
    pub(super) async fn settle_after(&self, looks: u64) -> Result<(), LinkError> {
        let _one_at_a_time = self.inner.jumps.alone().await;
        if self.inner.time.looks() == looks {
            self.look_at_clock(0, 0).await?;
        }
        Ok(())
    }

    /// Measures the clock, and records that a server lives, 0 for none; returns the servers that
    /// do.
    pub(super) async fn settle(
        &self,
        server: u32,
        liveness_ms: u64,
    ) -> Result<Vec<u32>, LinkError> {
        let _one_at_a_time = self.inner.jumps.alone().await;
        self.look_at_clock(server, liveness_ms).await
    }

    async fn look_at_clock(&self, server: u32, liveness_ms: u64) -> Result<Vec<u32>, LinkError> {
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
        Err(LinkError::Down("the clock of PostgreSQL jumps all the time".to_owned()))
    }

    async fn beat_once(
        &self,
        server: u32,
        liveness_ms: u64,
        correction: Correction,
        slow_ms: u64,
    ) -> Result<Beat, LinkError> {
        let inner = &*self.inner;
        let server = i64::from(server);
        let liveness_ms = signed(liveness_ms);
        let lives_ms = signed(inner.time.own_lives_ms());
        let pause_ms = signed(correction.pause_ms);
        let Correction { jump_ms, ahead_ms, .. } = correction;
        let (earliest_ms, latest_ms) = inner.jumps.possible(&inner.time, slow_ms);
        let [earliest_ms, latest_ms] = [earliest_ms, latest_ms].map(signed);
        let rows = self
            .query(
                session::BEAT,
                &[
                    &server,
                    &liveness_ms,
                    &lives_ms,
                    &pause_ms,
                    &jump_ms,
                    &ahead_ms,
                    &latest_ms,
                    &earliest_ms,
                ],
            )
            .await?;
        let (beat, log_end) = one(&rows, codec::beat).map_err(LinkError::Unknown)?;
        // What other servers said before a jump counts by the time that was corrected since.
        inner.time.others_live(beat.lives_ms.unwrap_or_default());
        inner.pauses.show(beat.paused_ms);
        inner.witness.saw(beat.counter);
        inner.witness.saw_log(log_end);
        Ok(beat)
    }
}

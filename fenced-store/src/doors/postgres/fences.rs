//! Marks of the database, for the guard's API.

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};

use super::registry::{NotAdmitted, Registry, mark_of};
use super::server::ServerError;
use crate::stores::contract::{Effect, FenceList, FenceOutcome, FenceQuery, Fences, StoreError};
use crate::stores::report::{Gaps, StoreReport};
use crate::verdict::{Fence, Mark};

/// Marks in the database behind the port, which the probe has shown to be sound.
#[derive(Debug)]
pub(crate) struct DatabaseMarks {
    registry: Registry,
    probed: String,
}

impl DatabaseMarks {
    pub(super) fn new(registry: Registry, probed: String) -> Self {
        Self { registry, probed }
    }
}

#[async_trait]
impl Fences for DatabaseMarks {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Atomic
    }

    fn report(&self) -> StoreReport {
        let gaps = [
            "marks are as durable as PostgreSQL's own commits: a failover to an asynchronous \
             replica, or an older backup, can lose the last ones with their data; a guard that \
             runs on notices those that it admitted itself",
            "dblink, postgres_fdw, pg_cron and other background workers of the server write \
             outside the sessions that the guard ends",
        ];
        StoreReport {
            kind: "postgres",
            target: self.registry.upstream.to_string(),
            guarantee: Guarantee::Atomic,
            probe: self.probed.clone(),
            gaps: Gaps::inherent(gaps),
        }
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        match self.registry.seal(&fence).await {
            Ok(()) => {
                let mark = Some(fence.presented.token);
                Ok(FenceOutcome::Applied { effect: Effect::Sealed, mark })
            }
            Err(NotAdmitted::Stale(mark)) => Ok(FenceOutcome::Stale { mark }),
            Err(NotAdmitted::Collision(mark)) => Ok(FenceOutcome::Collision { mark }),
            Err(error @ NotAdmitted::OtherServer) => {
                Err(StoreError::Unavailable(format!("PostgreSQL: {error:?}")))
            }
            // The mark may be raised; a retry finds out.
            Err(NotAdmitted::Failed(error)) => Err(StoreError::Unknown(error.to_string())),
        }
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        self.registry.set_floor(floor).await.map_err(unavailable)
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        let sql = format!(
            "SELECT max(token) FROM (SELECT token FROM fence.marks WHERE namespace = '{0}' \
             UNION ALL SELECT token FROM fence.seals WHERE namespace = '{0}' AND token > 0) t",
            self.registry.namespace
        );
        let rows = self.registry.query(&sql).await.map_err(unavailable)?;
        let text = rows.first().and_then(|row| row.first()?.as_deref());
        Ok(text.and_then(|text| Token::new(text.parse().ok()?).ok()))
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        self.registry.show(lock).await.map_err(unavailable)
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let FenceQuery { prefix, after, limit } = query;
        let after = after.as_ref().map_or("", LockName::as_str);
        let sql = format!(
            "SELECT token, lease, lock FROM fence.marks WHERE namespace = '{}' AND lock > '{after}' \
             AND starts_with(lock, '{}') ORDER BY lock LIMIT {}",
            self.registry.namespace,
            prefix.replace('\'', "''"),
            limit.saturating_add(1),
        );
        let rows = self.registry.query(&sql).await.map_err(unavailable)?;
        let more = rows.len() > limit;
        let read = |row: &Vec<Option<String>>| {
            Some((LockName::new(row.get(2)?.as_deref()?).ok()?, mark_of(row)?))
        };
        Ok(FenceList { fences: rows.iter().take(limit).filter_map(read).collect(), more })
    }
}

fn unavailable(error: ServerError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

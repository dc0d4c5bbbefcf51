//! What a listing begins with: the names of all there is.

use fence_protocol::wire::lock::LockLine;
use fence_protocol::{LockName, SessionId};

use super::reply::Answer;
use super::{RedisStore, reply, store_error};
use crate::store::StoreError;

impl RedisStore {
    /// What is known of a lock.
    pub(super) async fn look(&self, lock: &LockName) -> Result<Answer, StoreError> {
        self.run(&self.inner.scripts.show, |command| {
            command.arg(lock.as_str()).arg(reply::WAITERS_SHOWN).arg(reply::LEASES_SHOWN);
        })
        .await
    }

    /// A lock as a listing shows it; none where nobody holds it (any more).
    pub(super) async fn line(&self, lock: &LockName) -> Result<Option<LockLine>, StoreError> {
        self.look(lock).await?.into_line(lock.clone())
    }

    /// Every held lock's name with this prefix, sorted.
    pub(super) async fn names(&self, prefix: &str) -> Result<Vec<LockName>, StoreError> {
        let key = format!("{}held", self.inner.prefix);
        let mut names = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = ::redis::cmd("ZSCAN");
            // Names hold no character that a pattern would read as special.
            scan.arg(&key).arg(&cursor).arg("MATCH").arg(format!("{prefix}*"));
            scan.arg("COUNT").arg(1000);
            let value = self.inner.link.call(&scan).await.map_err(store_error)?;
            let (next, found) = reply::scan(value)?;
            names.extend(found);
            if next == "0" {
                break;
            }
            cursor = next;
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Every session's id, sorted.
    pub(super) async fn session_ids(&self) -> Result<Vec<SessionId>, StoreError> {
        let mut command = ::redis::cmd("ZRANGE");
        command.arg(format!("{}sessions", self.inner.prefix)).arg(0).arg(-1);
        let value = self.inner.link.call(&command).await.map_err(store_error)?;
        let members = service_kit::redis_link::text_fields(value).unwrap_or_default();
        let mut ids: Vec<SessionId> = members.iter().filter_map(|id| id.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }
}

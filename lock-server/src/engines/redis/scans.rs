//! Pages of names.

use fence_protocol::{LockName, SessionId};
use redis_link::LinkError;
use service_kit::clock;

use super::refusals::store_error;
use super::{RedisRecords, codec};
use crate::store::{ListQuery, StoreError};

/// Keys that Redis visits in one step.
const STEP: u32 = 1_000;

impl RedisRecords {
    /// Results of `read` for each string under a key of a pattern, sorted.
    async fn scan<T: Ord>(
        &self,
        pattern: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = ::redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
            scan.arg("TYPE").arg("string");
            let reply =
                self.inner.links.first().call(&scan).await.map_err(|error| match error {
                    // Nothing was to be changed.
                    LinkError::Unknown(reason) => StoreError::Unavailable(reason),
                    error => store_error(error),
                })?;
            let (next, keys) = codec::scan(reply)?;
            found.extend(keys.iter().filter_map(|key| read(key)));
            if next == "0" {
                break;
            }
            cursor = next;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    pub(super) async fn lock_names(
        &self,
        query: &ListQuery,
    ) -> Result<(Vec<LockName>, bool), StoreError> {
        let walks = &self.inner.lock_walks;
        let now = clock::now();
        let after = query.after.as_ref();
        let names = match after.and_then(|after| walks.take(now, &query.prefix, after)) {
            Some(names) => names,
            None => {
                let keys = &self.inner.keys;
                let is_after = |lock: &LockName| after.is_none_or(|after| lock > after);
                let read = |key: &str| keys.lock_at(key).filter(is_after);
                self.scan(&keys.locks(&query.prefix), read).await?
            }
        };
        Ok(walks.page(clock::now(), &query.prefix, names, query.limit))
    }

    pub(super) async fn session_ids(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        let walks = &self.inner.session_walks;
        let ids = match after.and_then(|after| walks.take(clock::now(), "", &after)) {
            Some(ids) => ids,
            None => {
                let keys = &self.inner.keys;
                let is_after = |id: &SessionId| after.is_none_or(|after| *id > after);
                let read = |key: &str| keys.session_at(key).filter(is_after);
                self.scan(&keys.sessions(), read).await?
            }
        };
        Ok(walks.page(clock::now(), "", ids, limit))
    }
}

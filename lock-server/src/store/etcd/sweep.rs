//! Takes away the places of this server that nobody waits at: those that etcd was away for when their
//! callers left, and those that it gave after all when nobody expected it any more.
//!
//! Such a place would hold up everybody, and the etcd lease that it hangs on lives as long as this
//! server. The queues of all locks are gone through, a bounded part at a time.

use fence_protocol::{LeaseId, LockName};

use super::keys::Subject;
use super::{EtcdStore, store_error};
use crate::store::StoreError;

/// How many places are read in one request.
const PAGE: usize = 1_000;
/// How many requests are made at a time.
const PAGES: usize = 5;
/// The number of no caller: they begin with 1.
const NOBODY: u64 = 0;

/// Goes through the queues, as often as this server's places are kept alive.
pub(super) async fn run(store: &EtcdStore) {
    let mut after = None;
    loop {
        tokio::time::sleep(store.places_pause()).await;
        let Some(lease) = store.inner.places.lease() else { continue };
        match store.sweep_places(lease, after.clone()).await {
            Ok(last) => after = last,
            Err(error) => tracing::debug!(%error, "places in the queues are not looked at"),
        }
    }
}

impl EtcdStore {
    /// Looks at the places that come after a key; gives the last one, where there are more.
    async fn sweep_places(
        &self,
        lease: u64,
        mut after: Option<String>,
    ) -> Result<Option<String>, StoreError> {
        for _ in 0..PAGES {
            let range = self.inner.keys.places_after(after.as_deref());
            let page = self.inner.gateway.names(&range, PAGE).await.map_err(store_error)?;
            for kv in page.kvs.iter().filter(|kv| kv.lease == lease) {
                if let Subject::Waiter(lock, lease_id) = self.inner.keys.subject(&kv.key) {
                    self.sweep_place(&lock, lease_id).await;
                }
            }
            let has_more = page.count > page.kvs.len() as u64;
            after = page.kvs.last().filter(|_| has_more).map(|kv| kv.key.clone());
            if after.is_none() {
                break;
            }
        }
        Ok(after)
    }

    async fn sweep_place(&self, lock: &LockName, lease_id: LeaseId) {
        if !self.inner.places.begin_leaving(lock, lease_id, NOBODY) {
            return;
        }
        let left = self.withdraw(lock, lease_id).await;
        self.inner.places.has_left(lock, lease_id);
        match left {
            Ok(()) => {
                tracing::info!(%lock, %lease_id, "a place that nobody waits at was taken away");
            }
            // It is found again.
            Err(error) => tracing::debug!(%lock, %lease_id, %error, "a place stays for now"),
        }
    }
}

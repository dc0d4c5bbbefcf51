//! Grants that nobody can have heard of.

use std::sync::Arc;

use fence_protocol::{LeaseId, LockName};
use futures_util::future::join_all;

use super::Service;
use crate::store::return_lease;

/// For how long a lease may live at least that was asked for: that of a session has the session's time,
/// and no heartbeat gets through while the store cannot be used.
const LIVES_MS_MIN: u64 = 60_000;

/// Takes the leases back that were granted under an id that this server made up, when the client
/// goes away before it is told the id, or is told that the outcome is unknown: nobody can ask for
/// them again.
#[derive(Debug)]
pub(super) struct Undelivered {
    service: Arc<Service>,
    /// Empty once the answer is there.
    locks: Vec<LockName>,
    lease_id: LeaseId,
    lives_ms: u64,
}

impl Undelivered {
    /// A request whose leases end by themselves within `lives_ms`, where they are not a session's.
    pub(super) fn new(
        service: Arc<Service>,
        locks: Vec<LockName>,
        lease_id: LeaseId,
        lives_ms: u64,
    ) -> Self {
        Self { service, locks, lease_id, lives_ms: lives_ms.max(LIVES_MS_MIN) }
    }

    /// The client is told: the leases are its own.
    pub(super) fn is_delivered(&mut self) {
        self.locks.clear();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let locks = std::mem::take(&mut self.locks);
        if locks.is_empty() {
            return;
        }
        let (lease_id, lives_ms) = (self.lease_id, self.lives_ms);
        let service = self.service.clone();
        self.service.kit.tasks.spawn(async move {
            let returned = locks
                .iter()
                .map(|lock| return_lease(&*service.store, &service.kit, lock, lease_id, lives_ms));
            join_all(returned).await;
        });
    }
}

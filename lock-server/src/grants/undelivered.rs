//! Rollback of grants whose ids no client has received.

use std::sync::Arc;

use fence_protocol::{LeaseId, LockName};
use futures_util::future::join_all;

use super::Grants;
use super::returned::return_lease;

/// Shortest life to assume for a requested lease, in milliseconds: a lease of a session lives as
/// long as the session, and no heartbeat succeeds while the store is unreachable.
const LIVES_MS_MIN: u64 = 60_000;

/// Rolls back leases that were granted under an id that this server generated, if the client hangs
/// up before it receives the id or receives an unknown outcome: it cannot retry with the id.
#[derive(Debug)]
pub(crate) struct Undelivered {
    grants: Arc<Grants>,
    /// Empty once the reply is delivered.
    locks: Vec<LockName>,
    lease_id: LeaseId,
    lives_ms: u64,
}

impl Undelivered {
    /// Watches a request whose leases expire within `lives_ms`, unless they belong to a session.
    pub(crate) fn new(
        grants: Arc<Grants>,
        locks: Vec<LockName>,
        lease_id: LeaseId,
        lives_ms: u64,
    ) -> Self {
        Self { grants, locks, lease_id, lives_ms: lives_ms.max(LIVES_MS_MIN) }
    }

    /// Records that the client receives the reply: the leases are its own.
    pub(crate) fn is_delivered(&mut self) {
        self.locks.clear();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let locks = std::mem::take(&mut self.locks);
        if locks.is_empty() {
            return;
        }
        let lease_id = self.lease_id;
        let lives_ms = self.lives_ms;
        let grants = self.grants.clone();
        self.grants.kit.tasks.spawn(async move {
            let returned = locks
                .iter()
                .map(|lock| return_lease(&*grants.store, &grants.kit, lock, lease_id, lives_ms));
            join_all(returned).await;
        });
    }
}

//! Grants that nobody can have heard of.

use std::sync::Arc;

use fence_protocol::{LeaseId, LockName};

use super::Service;

/// Takes the leases back that were granted under an id that this server made up, when the client
/// goes away before it is told the id: nobody can ask for them again.
#[derive(Debug)]
pub(super) struct Undelivered {
    service: Arc<Service>,
    /// Empty once the answer is there.
    locks: Vec<LockName>,
    lease_id: LeaseId,
}

impl Undelivered {
    pub(super) fn new(service: Arc<Service>, locks: Vec<LockName>, lease_id: LeaseId) -> Self {
        Self { service, locks, lease_id }
    }

    /// The client is told: the leases are its own.
    pub(super) fn is_delivered(&mut self) {
        self.locks.clear();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let (locks, lease_id) = (std::mem::take(&mut self.locks), self.lease_id);
        if locks.is_empty() {
            return;
        }
        let service = self.service.clone();
        self.service.kit.tasks.spawn(async move {
            for lock in locks {
                // Where this fails too, the lease's time ends it.
                let _ = service.store.release(&lock, lease_id).await;
            }
        });
    }
}

//! Grants that nobody can have heard of.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{LeaseId, LockName};

use super::Service;
use crate::store::StoreError;

/// Before each try: a store whose answer was lost is away at this very moment.
const TRIES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(2)];

/// Takes the leases back that were granted under an id that this server made up, when the client
/// goes away before it is told the id, or is told that the outcome is unknown: nobody can ask for
/// them again.
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
                // Where all of this fails too, the lease's time ends it.
                give_back(&service, &lock, lease_id).await;
            }
        });
    }
}

/// A release that overtakes its acquire leaves its id there, so that the acquire is refused.
async fn give_back(service: &Service, lock: &LockName, lease_id: LeaseId) {
    for pause in TRIES {
        tokio::time::sleep(pause).await;
        let result = service.store.release(lock, lease_id).await;
        if matches!(result, Ok(_) | Err(StoreError::Lost { .. })) {
            return;
        }
    }
}

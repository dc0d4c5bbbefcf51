//! Replies without a grant: the outcome of a known id, and the holder that a refusal names.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{LeaseId, LockName};

use super::Machine;
use super::sessions::Sessions;
use crate::record::{Closed, Holder, Record};
use crate::{Acquire, Grant, StoreError, is_anothers};

impl Machine {
    /// Returns a live lease as other clients see it.
    pub(super) fn info(&self, now_ms: u64, holder: &Holder) -> HolderInfo {
        let mut info = holder.info(now_ms);
        if let Some(until_ms) = self.sessions.until_ms(now_ms, holder) {
            info.expires_in_ms = until_ms - now_ms;
        }
        info
    }

    /// Returns the refusal of a request that a record does not admit and that is not in its queue.
    ///
    /// It names the lease, or the lock-delay, that ends first.
    pub(super) fn held(&self, now_ms: u64, record: &Record) -> StoreError {
        let queue_length = record.queue.len();
        if let Some(holder) = self.first_to_go(now_ms, record) {
            return StoreError::Held { holder, queue_length };
        }
        match self.pause_left_ms(now_ms) {
            Some(left_ms) => StoreError::Paused { left_ms },
            None => StoreError::Kept { queue_length },
        }
    }

    fn first_to_go(&self, now_ms: u64, record: &Record) -> Option<HolderInfo> {
        let live = record.holders.iter().map(|holder| self.info(now_ms, holder));
        let closed = record.closed.iter().map(|closed: &Closed| closed.info(now_ms));
        live.chain(closed).min_by_key(|info| info.expires_in_ms)
    }

    /// Returns why a lease is not live, also for a lock without a record.
    pub(super) fn gone_from(&self, lock: &LockName, lease_id: LeaseId) -> StoreError {
        match self.records.get(lock) {
            Some(record) => gone(record, lease_id),
            None => gone(&Record::default(), lease_id),
        }
    }
}

/// Returns the reply to an id that has been granted before: the same grant, or its end. This makes
/// a retry idempotent.
pub(super) fn known_answer(
    sessions: &Sessions,
    now_ms: u64,
    record: &mut Record,
    request: &Acquire,
) -> Option<Result<Grant, StoreError>> {
    if let Some(ended) = record.ended(request.lease_id) {
        return Some(Err(ended.lost()));
    }
    let holder = record.holders.get_mut(request.lease_id)?;
    if !holder.is_of(request) {
        return Some(Err(StoreError::IdConflict { owner: holder.owner.clone() }));
    }
    sessions.refresh(now_ms, holder);
    holder.confirm();
    Some(Ok(Grant { is_repeat: true, ..holder.grant(now_ms, 0) }))
}

/// Returns why a lease is not live.
pub(super) fn gone(record: &Record, lease_id: LeaseId) -> StoreError {
    match record.ended(lease_id) {
        Some(ended) => ended.lost(),
        None => {
            let other = !record.holders.is_empty();
            let reason = if other { EndReason::Superseded } else { EndReason::Expired };
            StoreError::Lost { reason, why: None, is_known: false }
        }
    }
}

impl Machine {
    /// Checks that `caller` may renew or release a lease, or release an id that waits.
    ///
    /// # Errors
    /// [`StoreError::OtherPrincipal`].
    pub fn check_principal(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
        caller: Option<&str>,
    ) -> Result<(), StoreError> {
        self.tick_for(now_ms, lock);
        let Some(record) = self.record(lock) else { return Ok(()) };
        let held = record.holders.get(lease_id).map(|holder| &holder.principal);
        let waits = || Some(&record.queue.get(lease_id)?.request.principal);
        match held.or_else(waits).and_then(Option::as_deref) {
            principal if is_anothers(principal, caller) => {
                Err(StoreError::OtherPrincipal { lease_id })
            }
            _ => Ok(()),
        }
    }
}

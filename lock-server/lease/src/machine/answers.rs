//! What is answered without a grant: how a known id stands, and who is in the way.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{LeaseId, LockName};

use super::Machine;
use super::sessions::Sessions;
use crate::record::{Closed, Holder, Record};
use crate::{Acquire, Grant, StoreError};

/// Over how many requests that wait for each other a refusal looks for the lease at the end. Behind
/// more of them a refusal names nobody.
const HOPS_MAX: usize = 1_000;

impl Machine {
    /// A live lease as others see it.
    pub(super) fn info(&self, now_ms: u64, holder: &Holder) -> HolderInfo {
        let mut info = holder.info(now_ms);
        if let Some(until_ms) = self.sessions.until_ms(now_ms, holder) {
            info.expires_in_ms = until_ms - now_ms;
        }
        info
    }

    /// The refusal of a request that a record has no place for, and that is not in its queue.
    ///
    /// It names the lease, or the closed place, that goes first. Where a lock is kept by nobody but a
    /// request for several that waits elsewhere, it names the lease that this one waits for: whoever
    /// asks cannot have the lock before that one ends.
    pub(super) fn held(&self, now_ms: u64, record: &Record) -> StoreError {
        let queue_length = record.queue.len();
        let mut at = record;
        for _ in 0..HOPS_MAX {
            if let Some(holder) = self.first_to_go(now_ms, at) {
                return StoreError::Held { holder, queue_length };
            }
            let group = at.queue.front().and_then(|waiter| waiter.group);
            let Some(next) = group.and_then(|group| self.waits_at(group)) else { break };
            at = next;
        }
        if let Some(left_ms) = self.pause_left_ms(now_ms) {
            return StoreError::Paused { left_ms };
        }
        let text = "the lock is kept for a request that waits for other locks; repeat it";
        StoreError::Unavailable(text.to_owned())
    }

    fn first_to_go(&self, now_ms: u64, record: &Record) -> Option<HolderInfo> {
        let live = record.holders.iter().map(|holder| self.info(now_ms, holder));
        let closed = record.closed.iter().map(|closed: &Closed| closed.info(now_ms));
        live.chain(closed).min_by_key(|info| info.expires_in_ms)
    }

    /// Why a lease that is not live is not, where nothing may be known of the lock.
    pub(super) fn gone_from(&self, lock: &LockName, lease_id: LeaseId) -> StoreError {
        match self.records.get(lock) {
            Some(record) => gone(record, lease_id),
            None => gone(&Record::default(), lease_id),
        }
    }
}

/// The answer to an id that has been granted before: the same grant, or how it ended.
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
    if holder.owner != request.owner {
        return Some(Err(StoreError::IdConflict { owner: holder.owner.clone() }));
    }
    sessions.refresh(now_ms, holder);
    holder.confirm();
    Some(Ok(holder.grant(now_ms, 0)))
}

/// Why a lease that is not live is not.
pub(super) fn gone(record: &Record, lease_id: LeaseId) -> StoreError {
    match record.ended(lease_id) {
        Some(ended) => ended.lost(),
        None => {
            let other = !record.holders.is_empty();
            let reason = if other { EndReason::Superseded } else { EndReason::Expired };
            StoreError::Lost { reason, why: None }
        }
    }
}

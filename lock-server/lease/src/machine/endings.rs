//! Transitions that end leases.

use fence_protocol::wire::lock::{EndReason, EndedReply};
use fence_protocol::{LeaseId, LockName, Owner};

use super::answers::gone;
use super::{Bond, Machine};
use crate::record::{Ended, Record};
use crate::{Revoke, StoreError};

impl Machine {
    /// Ends a lease, or remembers an unknown id as ended.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if the lease was not live.
    pub fn release(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.tick_for(now_ms, lock);
        self.check_room(lock)?;
        let mut record = self.take_out(lock).unwrap_or_default();
        let ended = self.close(now_ms, lock, &mut record, lease_id, EndReason::Released, None);
        let lost = gone(&record, lease_id);
        self.put_back(lock.clone(), record);
        if ended.is_none() {
            self.disown(now_ms, lock, lease_id);
        }
        self.pass_on(now_ms);
        ended.ok_or(lost)
    }

    /// Ends one live lease or all of them, the oldest first; without a lease id, every lock-delay
    /// too.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`], [`StoreError::Lost`].
    pub fn revoke(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        revoke: &Revoke,
    ) -> Result<Vec<EndedReply>, StoreError> {
        self.tick_for(now_ms, lock);
        let Some(mut record) = self.take_out(lock) else {
            return Err(match revoke.lease {
                Some(lease_id) => gone(&Record::default(), lease_id),
                None => StoreError::NotHeld,
            });
        };
        let result = self.revoke_in(now_ms, lock, &mut record, revoke);
        self.put_back(lock.clone(), record);
        self.pass_on(now_ms);
        result
    }

    fn revoke_in(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        revoke: &Revoke,
    ) -> Result<Vec<EndedReply>, StoreError> {
        let mut end = |record: &mut Record, lease_id| {
            let why = revoke.reason.clone();
            self.close(now_ms, lock, record, lease_id, EndReason::Revoked, why)
        };
        if let Some(lease_id) = revoke.lease {
            let ended = end(record, lease_id).ok_or_else(|| gone(record, lease_id))?;
            return Ok(vec![ended]);
        }
        if record.holders.is_empty() && record.closed.is_empty() {
            return Err(StoreError::NotHeld);
        }
        let live: Vec<LeaseId> = record.holders.iter().map(|holder| holder.lease_id).collect();
        let ended = live.into_iter().filter_map(|lease_id| end(record, lease_id)).collect();
        record.closed.clear();
        self.dirty.insert(lock.clone());
        Ok(ended)
    }

    /// Ensures that an id that does not hold the lock is never granted.
    fn disown(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        let mut owner = None;
        if let Some(left) = self.leave(lock, lease_id) {
            let reason = EndReason::Released;
            self.refuse_waiter(lock, &left, StoreError::Lost { reason, why: None, is_known: true });
            owner = Some(left.waiter.request.owner);
        }
        let mut record = self.take_out(lock).unwrap_or_default();
        if record.ended(lease_id).is_none() {
            record.remember(Ended {
                lease_id,
                token: None,
                owner,
                incarnation: None,
                reason: EndReason::Released,
                why: None,
                held_ms: 0,
                at_ms: now_ms,
            });
            self.dirty.insert(lock.clone());
        }
        self.put_back(lock.clone(), record);
    }

    /// Ends a live lease without serving the queue; `None` if it is not live.
    pub(super) fn close(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        lease_id: LeaseId,
        reason: EndReason,
        why: Option<Owner>,
    ) -> Option<EndedReply> {
        let holder = record.holders.get(lease_id)?;
        if let Some(id) = holder.session {
            self.sessions.unbind(id, lock, lease_id);
            let with_session = reason == EndReason::SessionEnded;
            self.note_bond(id, lock, lease_id, with_session.then_some(Bond::Ended));
        }
        let token = holder.token;
        let ended = record.end(lease_id, reason, why, now_ms)?;
        self.report_end(lock, &ended);
        self.dirty.insert(lock.clone());
        Some(EndedReply { lock: lock.clone(), lease_id, token, reason })
    }
}

//! How leases end, and how a lock passes on to the next waiter in the same step.

use fence_protocol::wire::lock::{EndReason, EndedReply};
use fence_protocol::{LeaseId, LockName};

use super::{Machine, gone, limit};
use crate::rules::record::{Ended, Holder, Record};
use crate::store::StoreError;

impl Machine {
    /// Ends a lease, or remembers an id that is not known as ended.
    ///
    /// # Errors
    /// [`StoreError::Lost`] where the lease was not live.
    pub fn release(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.settle(now_ms, lock);
        if !self.records.contains_key(lock) && self.records.len() >= self.limits.locks {
            return Err(limit("locks held or remembered", self.limits.locks));
        }
        let mut record = self.take_out(lock).unwrap_or_default();
        let live = record.holder.as_ref().is_some_and(|holder| holder.lease_id == lease_id);
        let reply = if live {
            self.end(now_ms, lock, &mut record, EndReason::Released)
        } else {
            let error = gone(&record, lease_id);
            self.disown(now_ms, lock, &mut record, lease_id);
            Err(error)
        };
        self.put_back(lock.clone(), record);
        reply
    }

    /// Ends whatever lease is live.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`].
    pub fn revoke(&mut self, now_ms: u64, lock: &LockName) -> Result<EndedReply, StoreError> {
        self.settle(now_ms, lock);
        let mut record = self.take_out(lock).ok_or(StoreError::NotHeld)?;
        let reply = self.end(now_ms, lock, &mut record, EndReason::Revoked);
        self.put_back(lock.clone(), record);
        reply
    }

    /// The waiter behind this id is gone: it leaves the queue, or the grant that was handed to it is
    /// taken back.
    ///
    /// A grant that somebody has asked for again, or renewed, stays: its holder has it. An id that
    /// only waited is not remembered as ended, so that whoever lost a connection may wait again.
    pub fn withdraw(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        self.settle(now_ms, lock);
        let Some(mut record) = self.take_out(lock) else { return };
        let handed = |holder: &Holder| holder.lease_id == lease_id && holder.handed;
        if record.holder.as_ref().is_some_and(handed) {
            // The answer would go to nobody.
            let _ = self.end(now_ms, lock, &mut record, EndReason::Released);
        } else if let Some(place) = record.position(lease_id)
            && let Some(waiter) = record.queue.remove(place)
        {
            self.forget_waiter(lock, &waiter);
        }
        self.put_back(lock.clone(), record);
    }

    /// An id that does not hold the lock will never be granted from now on.
    pub(super) fn disown(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        lease_id: LeaseId,
    ) {
        if record.ended(lease_id).is_some() {
            return;
        }
        let mut owner = None;
        if let Some(place) = record.position(lease_id)
            && let Some(waiter) = record.queue.remove(place)
        {
            self.forget_waiter(lock, &waiter);
            let reason = EndReason::Released;
            self.deliver(lock, lease_id, Err(StoreError::Lost { reason, why: None }));
            owner = Some(waiter.request.owner);
        }
        record.remember(Ended {
            lease_id,
            token: None,
            owner,
            incarnation: None,
            reason: EndReason::Released,
            held_ms: 0,
            at_ms: now_ms,
        });
        self.dirty.insert(lock.clone());
    }

    /// Ends the live lease, without handing the lock on.
    pub(super) fn close(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        reason: EndReason,
    ) -> Option<Ended> {
        if let Some(id) = record.holder.as_ref().and_then(|holder| holder.session) {
            self.sessions.let_go(id, lock);
        }
        record.end(reason, now_ms)
    }

    pub(super) fn end(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        reason: EndReason,
    ) -> Result<EndedReply, StoreError> {
        let ended = self.close(now_ms, lock, record, reason).ok_or(StoreError::NotHeld)?;
        self.dirty.insert(lock.clone());
        self.hand_over(now_ms, lock, record);
        let token = ended.token.ok_or(StoreError::NotHeld)?;
        Ok(EndedReply { lock: lock.clone(), lease_id: ended.lease_id, token, reason })
    }

    /// The lock is free: the first of the queue gets it, in the same step.
    pub(super) fn hand_over(&mut self, now_ms: u64, lock: &LockName, record: &mut Record) {
        while record.holder.is_none() {
            let Some(waiter) = record.queue.pop_front() else { return };
            self.forget_waiter(lock, &waiter);
            let lease_id = waiter.request.lease_id;
            if let Err(refusal) = self.check_session(now_ms, &waiter.request) {
                self.deliver(lock, lease_id, Err(refusal));
                continue;
            }
            let waited_ms = now_ms.saturating_sub(waiter.since_ms);
            let result = self.grant(now_ms, lock, record, waiter.request, waited_ms);
            if let Some(holder) = &mut record.holder {
                holder.handed = true;
            }
            self.deliver(lock, lease_id, result);
        }
    }
}

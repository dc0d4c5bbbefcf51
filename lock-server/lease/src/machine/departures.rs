//! Departures of waiters before they are granted, and roll-back of grants.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName};

use super::Machine;
use super::group::Left;
use crate::StoreError;
use crate::record::{Ended, Holder, Waiter};

impl Machine {
    /// Removes the waiter with this id from the lock's queue and, if it belongs to a group, the
    /// group from its other queues.
    pub(super) fn leave(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Left> {
        let waiter = self.leave_one(lock, lease_id)?;
        let group = waiter.group.and_then(|group| self.disband(lease_id, group));
        Some(Left { waiter, group })
    }

    /// Removes the waiter with this id from the lock's queue alone.
    pub(super) fn leave_one(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Waiter> {
        self.records.get(lock)?.queue.get(lease_id)?;
        let mut record = self.take_out(lock)?;
        let waiter = record.queue.remove(lease_id);
        self.put_back(lock.clone(), record);
        if let Some(waiter) = &waiter {
            self.forget_waiter(lock, waiter);
        }
        waiter
    }

    /// Replies to a request that has left its queue with a refusal.
    pub(super) fn refuse_waiter(&mut self, lock: &LockName, left: &Left, refusal: StoreError) {
        match &left.group {
            None => self.deliver(lock, &left.waiter, Err(refusal)),
            Some(group) => {
                let part = StoreError::Part { lock: lock.clone(), refusal: Box::new(refusal) };
                self.deliver(group.first_lock(), &left.waiter, Err(part));
            }
        }
    }

    /// Times a waiter out.
    pub(super) fn time_out(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        // Found before the waiter leaves: then the others of its queues move up, and are served
        // after this.
        let waiter = self.records.get(lock).and_then(|record| record.queue.get(lease_id));
        let group = waiter.and_then(|waiter| waiter.group);
        let in_the_way = group.and_then(|group| self.waits_for(group).cloned());
        let in_the_way = in_the_way.unwrap_or_else(|| lock.clone());
        let Some(left) = self.leave(lock, lease_id) else { return };
        if let Some(record) = self.records.get(&in_the_way) {
            let held = self.held(now_ms, record);
            self.refuse_waiter(&in_the_way, &left, held);
        } else {
            // A request that can be served waits only during a pause.
            let text = "no lease holds the lock; retry the request".to_owned();
            let paused = self.pause_left_ms(now_ms).map(|left_ms| StoreError::Paused { left_ms });
            self.refuse_waiter(&in_the_way, &left, paused.unwrap_or(StoreError::Unavailable(text)));
        }
    }

    /// Withdraws a request for one lock: see [`withdraw_all`](Self::withdraw_all).
    pub fn withdraw(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        self.withdraw_all(now_ms, std::slice::from_ref(lock), lease_id);
    }

    /// Withdraws the request of a client that has disconnected: it leaves the queues of its locks,
    /// or the grants made to it from the queue are rolled back.
    ///
    /// If a retry or a renewal has received one of the grants, all of them stay: their holder has
    /// them. An id that only waited is not remembered as ended, so that a client that lost its
    /// connection may wait again.
    pub fn withdraw_all(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) {
        self.roll_back_own(now_ms, locks, lease_id);
    }

    /// Rolls back grants that were never acknowledged, like [`withdraw_all`](Self::withdraw_all),
    /// but without remembering the id as ended, so that it may be retried; one that its client has
    /// released meanwhile stays ended. Returns whether no lease of it lives.
    pub fn roll_back(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) -> bool {
        self.tick_for_all(now_ms, locks);
        let lives = |lock: &&LockName| self.holder(lock, lease_id).is_some();
        let live: Vec<&LockName> = locks.iter().filter(lives).collect();
        let is_rolled_back = self.roll_back_own(now_ms, locks, lease_id);
        if is_rolled_back {
            for lock in locks {
                let Some(mut record) = self.take_out(lock) else { continue };
                let is_own =
                    |ended: &Ended| live.contains(&lock) || ended.reason == EndReason::Expired;
                record.ended.retain(|ended| ended.lease_id != lease_id || !is_own(ended));
                self.put_back(lock.clone(), record);
            }
        }
        is_rolled_back
    }

    pub(super) fn holder(&self, lock: &LockName, lease_id: LeaseId) -> Option<&Holder> {
        self.records.get(lock)?.holders.get(lease_id)
    }

    fn roll_back_own(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) -> bool {
        self.tick_for_all(now_ms, locks);
        let own = Some(self.server());
        let mut live = locks.iter().filter_map(|lock| self.holder(lock, lease_id));
        let is_own = live.all(|holder| holder.deliverer == own);
        if is_own {
            for lock in locks {
                self.roll_back_one(now_ms, lock, lease_id);
            }
        }
        self.pass_on(now_ms);
        is_own
    }

    fn roll_back_one(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        // A waiter whose client has moved to another server belongs to that server.
        let server = self.server();
        let waiter = self.records.get(lock).and_then(|record| record.queue.get(lease_id));
        if waiter.is_some_and(|waiter| waiter.server == server) {
            // Its caller has disconnected: no refusal is delivered.
            drop(self.leave(lock, lease_id));
        }
        let Some(mut record) = self.take_out(lock) else { return };
        let _ = self.close(now_ms, lock, &mut record, lease_id, EndReason::Released, None);
        self.put_back(lock.clone(), record);
    }
}

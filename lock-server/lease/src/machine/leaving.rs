//! Waiters leave their queues before their turn.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName};

use super::Machine;
use super::groups::Group;
use crate::StoreError;
use crate::record::Waiter;

/// A request that has left its queue, or all of its queues.
pub(super) struct Left {
    pub(super) waiter: Waiter,
    pub(super) group: Option<Group>,
}

impl Machine {
    /// Lets the waiter with this id leave the lock's queue and, where it is one of a group, the
    /// others leave theirs.
    pub(super) fn leave(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Left> {
        let place = self.records.get(lock)?.position(lease_id)?;
        let waiter = self.leave_place(lock, place)?;
        let group = waiter.group.and_then(|group| self.disband(group));
        Some(Left { waiter, group })
    }

    /// Lets the waiter at a place of the lock's queue leave it.
    pub(super) fn leave_place(&mut self, lock: &LockName, place: usize) -> Option<Waiter> {
        let mut record = self.take_out(lock)?;
        let waiter = record.queue.remove(place);
        self.put_back(lock.clone(), record);
        if let Some(waiter) = &waiter {
            self.forget_waiter(lock, waiter);
        }
        waiter
    }

    /// Tells a request that has left why it gets nothing.
    pub(super) fn tell(&mut self, lock: &LockName, left: &Left, refusal: StoreError) {
        match &left.group {
            None => self.deliver(lock, &left.waiter, Err(refusal)),
            Some(group) => {
                let part = StoreError::Part { lock: lock.clone(), refusal: Box::new(refusal) };
                self.deliver(group.first_lock(), &left.waiter, Err(part));
            }
        }
    }

    /// The patience of a waiter is over.
    pub(super) fn give_up(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        // Asked before it leaves: then the others of its queues move up, and are served after this.
        let group = self.records.get(lock).and_then(|record| {
            let place = record.position(lease_id)?;
            record.queue.get(place)?.group
        });
        let in_the_way = group.and_then(|group| self.waits_for(group).cloned());
        let in_the_way = in_the_way.unwrap_or_else(|| lock.clone());
        let Some(left) = self.leave(lock, lease_id) else { return };
        if let Some(record) = self.records.get(&in_the_way) {
            let held = self.held(now_ms, record);
            self.tell(&in_the_way, &left, held);
        } else {
            // A request that can be served waits in a pause alone.
            let text = "nobody holds the lock; repeat the request".to_owned();
            let paused = self.pause_left_ms(now_ms).map(|left_ms| StoreError::Paused { left_ms });
            self.tell(&in_the_way, &left, paused.unwrap_or(StoreError::Unavailable(text)));
        }
    }

    /// The waiter behind this id is gone: see [`withdraw_all`](Self::withdraw_all).
    pub fn withdraw(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        self.withdraw_all(now_ms, std::slice::from_ref(lock), lease_id);
    }

    /// The waiter behind this id is gone: it leaves the queues of the locks that it asked for, or
    /// the grants that were handed to it are taken back.
    ///
    /// Grants of which somebody has asked for one again, or renewed it, stay all: their holder has
    /// them. An id that only waited is not remembered as ended, so that whoever lost a connection
    /// may wait again.
    pub fn withdraw_all(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) {
        self.roll_back_own(now_ms, locks, lease_id);
    }

    /// As [`withdraw_all`](Self::withdraw_all), of grants that were never acknowledged: the id is not
    /// remembered as ended, so that it may ask again. Returns whether nothing of it lives.
    pub fn roll_back(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) -> bool {
        let is_rolled_back = self.roll_back_own(now_ms, locks, lease_id);
        if is_rolled_back {
            for lock in locks {
                let Some(mut record) = self.take_out(lock) else { continue };
                record.ended.retain(|ended| ended.lease_id != lease_id);
                self.put_back(lock.clone(), record);
            }
        }
        is_rolled_back
    }

    fn roll_back_own(&mut self, now_ms: u64, locks: &[LockName], lease_id: LeaseId) -> bool {
        self.tick(now_ms);
        let own = Some(self.server());
        let live = |lock: &LockName| self.records.get(lock)?.holders.get(lease_id);
        let is_own = locks.iter().filter_map(live).all(|holder| holder.deliverer == own);
        if is_own {
            for lock in locks {
                self.take_back(now_ms, lock, lease_id);
            }
        }
        self.pass_on(now_ms);
        is_own
    }

    fn take_back(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        // A place that its client has moved to another server is that server's.
        let server = self.server();
        let place = self.records.get(lock).and_then(|record| {
            record.queue.iter().find(|waiter| waiter.request.lease_id == lease_id)
        });
        if place.is_some_and(|waiter| waiter.server == server) {
            // Its caller is gone, so that no refusal is delivered.
            drop(self.leave(lock, lease_id));
        }
        let Some(mut record) = self.take_out(lock) else { return };
        let _ = self.close(now_ms, lock, &mut record, lease_id, EndReason::Released, None);
        self.put_back(lock.clone(), record);
    }
}

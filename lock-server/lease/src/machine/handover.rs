//! Hand-over of a lock to its waiters, in the transition that made room for them.

use fence_protocol::LockName;

use super::Machine;
use super::group::GrantRoute;
use crate::record::{Record, Waiter};

impl Machine {
    /// Serves the queues that this transition has made room in, until no waiter can be served.
    /// Every transition ends with it.
    pub(super) fn pass_on(&mut self, now_ms: u64) {
        if self.is_view() || self.pause_left_ms(now_ms).is_some() {
            self.passing.clear();
        }
        while let Some(lock) = self.passing.pop() {
            self.serve(now_ms, lock.clone());
            debug_assert!(self.is_served(&lock) || self.passing.contains(&lock), "{lock}: idle");
        }
    }

    fn serve(&mut self, now_ms: u64, lock: LockName) {
        while let Some(lease_id) = self.dead_front(&lock) {
            drop(self.leave(&lock, lease_id));
        }
        let Some(mut record) = self.take_out(&lock) else { return };
        while record.may_pass_on(&self.limits) {
            let front = record.queue.front().filter(|front| front.group.is_none());
            let Some(lease_id) = front.map(|front| front.request.lease_id) else { break };
            let Some(waiter) = record.queue.remove(lease_id) else { break };
            self.grant_to_waiter(now_ms, &lock, &mut record, waiter);
        }
        let front = record.queue.front().filter(|_| record.may_pass_on(&self.limits));
        let group = front.and_then(|front| front.group);
        self.keep(lock, record);
        if let Some(group) = group {
            self.serve_group(now_ms, group);
        }
    }

    /// Grants the lock to a waiter that has left the queue for it.
    fn grant_to_waiter(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        waiter: Waiter,
    ) {
        self.forget_waiter(lock, &waiter);
        let result = match self.check_session(now_ms, &waiter.request, 1) {
            Err(refusal) => Err(refusal),
            Ok(()) => {
                let waited_ms = now_ms.saturating_sub(waiter.since_ms);
                let route = GrantRoute::FromQueue { waited_ms, server: waiter.server };
                let request = waiter.request.clone();
                self.grant(now_ms, lock, record, request, route)
            }
        };
        self.deliver(lock, &waiter, result);
    }

    /// Returns whether no waiter could be served: `true` after every transition.
    pub(super) fn is_served(&self, lock: &LockName) -> bool {
        let Some(record) = self.records.get(lock) else { return true };
        let Some(front) = record.queue.front() else { return true };
        match front.group {
            None => !record.admits(front.request.mode, &self.limits),
            Some(group) => !self.can_be_served(group),
        }
    }
}

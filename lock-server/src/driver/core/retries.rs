//! Retries of requests whose earlier callers have left.

use super::*;

impl Core {
    /// Returns what an operation asks for, unless its id is another caller's, whose waiter or lease
    /// it does not get. Where the record is not loaded, that is not known.
    pub(crate) fn retry<'a>(&self, op: &'a dyn Op) -> Option<&'a Acquire> {
        let request = op.asked()?;
        let id = request.lease_id;
        let is_anothers = self.machine.record(&request.lock).is_some_and(|record| {
            let waiter = record.queue.get(id).map(|waiter| &waiter.request);
            waiter.is_some_and(|waiter| !request.is_retry_of(waiter))
                || record.holders.get(id).is_some_and(|holder| !holder.is_of(request))
        });
        (!is_anothers).then_some(request)
    }

    /// Withdraws no request whose caller has retried it: the grant is the retry's.
    pub(super) fn keep_retried(&mut self, ops: &[Box<dyn Op>]) {
        if self.abandoned.is_empty() {
            return;
        }
        let retries: Vec<&Acquire> = ops.iter().filter_map(|op| self.retry(&**op)).collect();
        for Acquire { lock, lease_id, .. } in retries {
            self.abandoned.retain(|(locks, id)| id != lease_id || !locks.contains(lock));
        }
    }

    /// Drops withdrawals of requests that a caller has retried meanwhile: the retry waits at their
    /// position.
    pub(super) fn without_void(&self, ops: Vec<Box<dyn Op>>) -> Vec<Box<dyn Op>> {
        if ops.iter().all(|op| op.withdrawn().is_none()) {
            return ops;
        }
        let mut repeated = HashSet::new();
        let mut valid = Vec::with_capacity(ops.len());
        for op in ops {
            let asked = self.retry(&*op);
            repeated.extend(asked.map(|request| (request.lock.clone(), request.lease_id)));
            let withdrawn = op.withdrawn();
            if withdrawn.is_none_or(|key| !repeated.contains(&key) && !self.waiters.has(&key)) {
                valid.push(op);
            }
        }
        valid
    }
}

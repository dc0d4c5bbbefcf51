//! Settlement: records are brought up to date before any decision on them.

use fence_protocol::LockName;
use fence_protocol::wire::lock::EndReason;

use super::alarms::Alarm;
use super::{Machine, Related};
use crate::record::Record;

impl Machine {
    /// Handles the alarm of a record: expired leases and lock-delays end, and a record with nothing
    /// to remember is dropped. Leases that are bound to a session end with that session.
    pub(super) fn settle(&mut self, now_ms: u64, lock: LockName) {
        let Some(mut record) = self.take_out(&lock) else { return };
        if record.is_idle() && self.is_shared() && !self.dirty.contains(&lock) {
            // The engine itself deletes records that servers share.
            self.records.drop_place(&lock);
            self.note_forgotten(Related::Lock(lock));
            return;
        }
        if record.is_idle() {
            record.ended.clear();
        }
        self.dirty.insert(lock.clone());
        // Before the leases: a lease that expires now begins its lock-delay now.
        record.closed.retain(|closed| closed.until_ms > now_ms);
        while let Some((lease_id, due_ms)) = record.due(now_ms) {
            // The lease is live, so it ends. With a shared clock it ended at its expiry, whichever
            // server notices that, and whenever.
            let at_ms = if self.is_shared() { due_ms } else { now_ms };
            let _ = self.close(at_ms, &lock, &mut record, lease_id, EndReason::Expired, None);
        }
        record.closed.retain(|closed| closed.until_ms > now_ms);
        self.put_back(lock, record);
    }

    /// Takes a record and its alarm out, to change it.
    pub(super) fn take_out(&mut self, lock: &LockName) -> Option<Box<Record>> {
        let record = self.records.take(lock)?;
        self.held -= usize::from(!record.holders.is_empty());
        if let Some(at_ms) = self.alarm_ms(&record) {
            self.alarms.remove(&(at_ms, lock.clone(), Alarm::Record));
        }
        Some(record)
    }

    /// Puts a record back that may have changed. If its first waiter may be served now,
    /// [`pass_on`](Self::pass_on) serves it.
    pub(super) fn put_back(&mut self, lock: LockName, record: Box<Record>) {
        if record.may_pass_on(&self.limits) {
            self.passing.push(lock.clone());
        }
        self.keep(lock, record);
    }

    /// Puts a record back whose queue was just served.
    pub(super) fn keep(&mut self, lock: LockName, record: Box<Record>) {
        let at_ms = self.alarm_ms(&record);
        if let Some(at_ms) = at_ms {
            self.alarms.insert((at_ms, lock.clone(), Alarm::Record));
        }
        if at_ms.is_some() || !record.is_idle() {
            self.held += usize::from(!record.holders.is_empty());
            self.records.put(lock, record);
        } else {
            self.records.drop_place(&lock);
        }
    }

    /// Returns the next end of a lease or lock-delay or, without any, the end of the retention;
    /// `None` if neither exists, or if a session or a group decides.
    pub(super) fn alarm_ms(&self, record: &Record) -> Option<u64> {
        if record.is_idle() {
            return record.idle_until_ms(self.limits.ended_retention_ms);
        }
        record.next_ms()
    }
}

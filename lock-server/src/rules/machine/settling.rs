//! Records are brought up to date before anybody acts on them.

use fence_protocol::LockName;
use fence_protocol::wire::lock::EndReason;

use super::{Alarm, Machine};
use crate::rules::record::Record;

impl Machine {
    /// Brings one record up to date: an expired lease ends and the next waiter is granted; a record
    /// with nothing to remember goes away.
    pub(super) fn settle(&mut self, now_ms: u64, lock: &LockName) {
        let holder = self.records.get(lock).and_then(|record| record.holder.as_ref());
        if let Some(id) = holder.and_then(|holder| holder.session) {
            self.settle_session(now_ms, id);
            self.read_session(now_ms, lock);
            return;
        }
        let due = |record: &Record| self.alarm_ms(record).is_some_and(|at_ms| at_ms <= now_ms);
        if !self.records.get(lock).is_some_and(due) {
            return;
        }
        let Some(mut record) = self.take_out(lock) else { return };
        self.dirty.insert(lock.clone());
        if record.holder.is_some() {
            // There is a holder, so it ends.
            let _ = self.end(now_ms, lock, &mut record, EndReason::Expired);
        } else {
            record.ended.clear();
        }
        self.put_back(lock.clone(), record);
    }

    /// A bound lease lives until its session says.
    fn read_session(&mut self, now_ms: u64, lock: &LockName) {
        let Some(holder) = self.records.get_mut(lock).and_then(|record| record.holder.as_mut())
        else {
            return;
        };
        let session = holder.session.and_then(|id| self.sessions.get(id));
        if let Some(until_ms) = session.and_then(|session| session.lives(now_ms).ok()) {
            holder.expires_at_ms = until_ms;
        }
    }

    /// Takes a record out to change it, with its alarm.
    pub(super) fn take_out(&mut self, lock: &LockName) -> Option<Record> {
        let record = self.records.remove(lock)?;
        if let Some(at_ms) = self.alarm_ms(&record) {
            self.alarms.remove(&(at_ms, lock.clone(), Alarm::Record));
        }
        Some(record)
    }

    pub(super) fn put_back(&mut self, lock: LockName, record: Record) {
        debug_assert!(record.queue.is_empty() || record.holder.is_some(), "{lock}: idle queue");
        let at_ms = self.alarm_ms(&record);
        if let Some(at_ms) = at_ms {
            self.alarms.insert((at_ms, lock.clone(), Alarm::Record));
        }
        if at_ms.is_some() || record.holder.is_some() {
            self.records.insert(lock, record);
        }
    }

    /// When the lease ends or, without one, when there is nothing left to remember; `None` where
    /// there is nothing at all, or a session's time is what counts.
    fn alarm_ms(&self, record: &Record) -> Option<u64> {
        match &record.holder {
            // Its session's alarm is its own.
            Some(holder) if holder.session.is_some() => None,
            Some(holder) => Some(holder.expires_at_ms),
            None => record.idle_until_ms(self.limits.ended_retention_ms),
        }
    }
}

//! Read-only queries: one lock, and pages of locks.

use std::ops::Bound;

use fence_protocol::wire::lock::{LockLine, LockPage, LockReply};
use fence_protocol::{LockName, Owner};

use super::Machine;
use crate::ListQuery;
use crate::record::{Holder, Record};

impl Machine {
    /// Returns the holders, queue and history of one lock.
    pub fn show(&mut self, now_ms: u64, lock: &LockName) -> LockReply {
        self.tick_for(now_ms, lock);
        let Some(record) = self.records.get_mut(lock) else {
            return Record::default().reply(lock, now_ms);
        };
        for holder in record.holders.iter_mut() {
            self.sessions.refresh(now_ms, holder);
        }
        record.reply(lock, now_ms)
    }

    /// Returns a page of locks that are held, or in a lock-delay.
    pub fn list(&mut self, now_ms: u64, query: &ListQuery) -> LockPage {
        self.tick(now_ms);
        let from = match &query.after {
            Some(after) if after.as_str() >= query.prefix.as_str() => {
                Bound::Excluded(after.as_str())
            }
            _ => Bound::Included(query.prefix.as_str()),
        };
        let mut lines = self
            .records
            .from(from)
            .take_while(|(lock, _)| lock.as_str().starts_with(&query.prefix))
            .filter_map(|(lock, record)| self.line(now_ms, lock, record, query.owner.as_ref()));
        let locks: Vec<LockLine> = lines.by_ref().take(query.limit).collect();
        let more = lines.next().is_some();
        let next_after = locks.last().filter(|_| more).map(|line| line.lock.clone());
        LockPage { locks, next_after }
    }
    /// Returns the line of a lock in a listing; `None` if it is free.
    fn line(
        &self,
        now_ms: u64,
        lock: &LockName,
        record: &Record,
        owner: Option<&Owner>,
    ) -> Option<LockLine> {
        // One that is over and still has its lock is not shown.
        let live = || record.holders.iter().filter(|holder| !holder.is_over(now_ms));
        let is_meant = |holder: &&Holder| {
            owner.is_none_or(|owner| holder.owner.as_str().contains(owner.as_str()))
        };
        let held = live().find(is_meant).or_else(|| live().next());
        let closed = || record.closed.iter().find(|closed| closed.until_ms > now_ms);
        let (holder, mode) = match held {
            Some(holder) => (self.info(now_ms, holder), holder.mode),
            None => closed().map(|closed| (closed.info(now_ms), closed.mode))?,
        };
        Some(LockLine {
            lock: lock.clone(),
            holder: Some(holder),
            queue_length: record.queue.len(),
            mode: mode.wire(),
            lease_count: live().count(),
            size: mode.kind().size(),
            refusals: 0,
        })
    }
}

//! What can be read of the locks.

use std::ops::Bound;

use fence_protocol::LockName;
use fence_protocol::wire::lock::{LockLine, LockPage, LockReply};

use super::Machine;
use crate::rules::record::Record;
use crate::store::ListQuery;

impl Machine {
    /// Holder, queue and history of one lock.
    pub fn show(&mut self, now_ms: u64, lock: &LockName) -> LockReply {
        self.settle(now_ms, lock);
        match self.records.get(lock) {
            Some(record) => record.reply(lock, now_ms),
            None => Record::default().reply(lock, now_ms),
        }
    }

    /// A page of held locks.
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
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(lock, _)| lock.as_str().starts_with(&query.prefix))
            .filter_map(|(lock, record)| {
                let holder = record.holder.as_ref()?;
                let mut info = holder.info(now_ms);
                let session = holder.session.and_then(|id| self.sessions.get(id));
                if let Some(until_ms) = session.and_then(|session| session.lives(now_ms).ok()) {
                    info.expires_in_ms = until_ms - now_ms;
                }
                let queue_length = record.queue.len();
                Some(LockLine { lock: lock.clone(), holder: info, queue_length })
            });
        let locks: Vec<LockLine> = lines.by_ref().take(query.limit).collect();
        let more = lines.next().is_some();
        let next_after = locks.last().filter(|_| more).map(|line| line.lock.clone());
        LockPage { locks, next_after }
    }
}

//! What has to happen by itself: free locks are granted to those who wait, and grants are delivered.

use fence_protocol::{LeaseId, LockName};
use lease::{Limits, Record};
use lock_server::store::records::{Key, Snapshot};

use super::Audit;

/// How long after something went wrong waits have no bound, ms: messages that were lost are made up for,
/// and servers that stopped are known to be dead.
pub(super) const RECOVERY_MS: u64 = 8_000;
/// The bound in calm times, ms.
const BOUND_MS: u64 = 400;

impl Audit {
    /// Looks at what is overdue.
    pub fn look(
        &mut self,
        now_ms: u64,
        engine_ms: u64,
        is_paused: bool,
        read: impl Fn(&Key) -> Snapshot,
    ) {
        if !self.is_shared() {
            return;
        }
        if is_paused {
            self.trouble_ms = now_ms;
        }
        self.check_forgotten(engine_ms, &read);
        let calm_since_ms = match self.trouble_ms {
            0 => 0,
            trouble_ms => trouble_ms + RECOVERY_MS,
        };
        let locks: Vec<LockName> = self.locks.keys().cloned().collect();
        for lock in locks {
            let Some(lease) = self.servable(now_ms, engine_ms, &lock) else {
                self.overdue.remove(&lock);
                continue;
            };
            let known = self.overdue.get(&lock).filter(|(known, _)| *known == lease);
            let since_ms = known.map_or(now_ms, |(_, since_ms)| *since_ms);
            self.overdue.insert(lock.clone(), (lease, since_ms));
            let overdue_ms = now_ms.saturating_sub(since_ms.max(calm_since_ms));
            self.check(overdue_ms <= BOUND_MS, || {
                format!("{lock} is free for {overdue_ms} ms, and {lease} waits for it")
            });
        }
        self.check_deliveries(now_ms, calm_since_ms);
    }

    /// The first waiter of a lock, where it could be granted.
    fn servable(&self, now_ms: u64, engine_ms: u64, lock: &LockName) -> Option<LeaseId> {
        let front = self.locks.get(lock)?.queue.front()?;
        let lease = front.request.lease_id;
        let session = front.request.session.map(|id| self.sessions.get(&id));
        let serves = session
            .is_none_or(|session| session.is_some_and(|session| session.serves(engine_ms).is_ok()));
        if !serves || front.until_ms <= engine_ms || self.is_suspect(now_ms, front.server) {
            return None;
        }
        let request = self.requests.get(&lease)?;
        let is_open = |lock: &LockName| {
            let Some(record) = self.locks.get(lock) else { return false };
            let is_first =
                record.queue.front().is_some_and(|waiter| waiter.request.lease_id == lease);
            is_first && self.settled(record, engine_ms).admits(request.mode, &Limits::default())
        };
        (!request.was_left && request.locks.iter().all(is_open)).then_some(lease)
    }

    /// A record without the leases and lock-delays whose time is over.
    fn settled(&self, record: &Record, engine_ms: u64) -> Record {
        let live = record.holders.iter();
        let live = live.filter(|holder| self.lives_until_ms(engine_ms, holder) > engine_ms);
        let closed = record.closed.iter().filter(|closed| closed.until_ms > engine_ms);
        Record {
            holders: live.cloned().collect(),
            closed: closed.cloned().collect(),
            ..Record::default()
        }
    }

    /// A grant that was committed for a waiter reaches it.
    fn check_deliveries(&mut self, now_ms: u64, calm_since_ms: u64) {
        let mut late = None;
        for (lock, record) in &self.locks {
            for holder in record.holders.iter().filter(|holder| holder.deliverer.is_some()) {
                let key = (lock.clone(), holder.lease_id);
                let Some((grant, request)) =
                    self.grants.get(&key).zip(self.requests.get(&holder.lease_id))
                else {
                    continue;
                };
                let since_ms = grant.at_ms.max(calm_since_ms);
                let is_awaited = !request.was_left && !request.is_received;
                if is_awaited && now_ms.saturating_sub(since_ms) > BOUND_MS {
                    late = Some((key, now_ms - since_ms));
                }
            }
        }
        self.check(late.is_none(), || {
            format!("a grant was committed and its caller does not get it: {late:?}")
        });
    }
}

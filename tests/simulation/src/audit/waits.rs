//! Checks of background progress: free locks are granted to their waiters, grants are delivered,
//! and waits end.
//!
//! A free lock is granted to the first waiter within the bound, and no waiter loses its place
//! (`commits.rs`): so none waits longer than the holders before it and the bound.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName};
use lease::{Limits, Record, Waiter};
use lock_server::engines::contract::{Key, Snapshot};

use super::{Audit, RECOVERY_MS, Request};

/// The bound in calm times, ms.
const BOUND_MS: u64 = 400;

impl Audit {
    /// Checks what is overdue.
    pub fn check_waits(
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
            self.trouble(now_ms, RECOVERY_MS);
        }
        self.check_forgotten(engine_ms, &read);
        self.check_rolled_back();
        let calm_since_ms = self.calm_from_ms;
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
        self.check_time_outs(now_ms, calm_since_ms);
        self.check_abandoned(now_ms, calm_since_ms);
        self.check_places(now_ms, calm_since_ms);
    }

    /// The first waiter of a lock, where it could be granted.
    fn servable(&self, now_ms: u64, engine_ms: u64, lock: &LockName) -> Option<LeaseId> {
        let front = self.front(now_ms, self.locks.get(lock)?)?;
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
            let front = self.front(now_ms, record);
            let is_first = front.is_some_and(|waiter| waiter.request.lease_id == lease);
            is_first && self.settled(record, engine_ms).admits(request.mode, &Limits::default())
        };
        request.locks.iter().all(is_open).then_some(lease)
    }

    /// The first waiter of a lock; those of dead servers are passed over.
    fn front<'a>(&self, now_ms: u64, record: &'a Record) -> Option<&'a Waiter> {
        record.queue.iter().find(|waiter| !self.is_dead(now_ms, waiter.server))
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
                let is_awaited = request.open_calls > 0 && !request.is_received;
                if is_awaited && now_ms.saturating_sub(since_ms) > BOUND_MS {
                    late = Some((key, now_ms - since_ms));
                }
            }
        }
        self.check(late.is_none(), || {
            format!("a grant was committed and its caller does not get it: {late:?}")
        });
    }

    /// Checks that a client that waits for a reply has a place in each of its queues, or a grant in
    /// transit.
    fn check_places(&mut self, now_ms: u64, calm_since_ms: u64) {
        let has_place = |lease: LeaseId, lock: &LockName| {
            self.locks.get(lock).is_some_and(|record| {
                record.queue.get(lease).is_some() || record.holders.get(lease).is_some()
            })
        };
        let open = self.requests.iter().filter(|(_, request)| request.open_calls > 0);
        let lost = open
            .filter(|(lease, request)| !request.locks.iter().all(|lock| has_place(**lease, lock)));
        let since_ms = |lease: &LeaseId, request: &Request| {
            let known_ms = self.without_place.get(lease).copied().unwrap_or(now_ms);
            known_ms.max(request.called_ms).max(calm_since_ms)
        };
        let lost: BTreeMap<LeaseId, u64> =
            lost.map(|(lease, request)| (*lease, since_ms(lease, request))).collect();
        let late = lost.iter().find(|(_, since_ms)| now_ms.saturating_sub(**since_ms) > BOUND_MS);
        let late = late.map(|(lease, _)| format!("{lease}: {:?}", self.requests.get(lease)));
        self.without_place = lost;
        self.check(late.is_none(), || format!("a call waits without a place: {late:?}"));
    }

    /// Checks that a call gets its reply when its wait is over.
    fn check_time_outs(&mut self, now_ms: u64, calm_since_ms: u64) {
        let overdue_ms = |request: &Request| {
            let until_ms = request.called_ms + request.wait_ms;
            now_ms.saturating_sub(until_ms.max(calm_since_ms))
        };
        let mut open = self.requests.iter().filter(|(_, request)| request.open_calls > 0);
        let late = open.find(|(_, request)| overdue_ms(request) > BOUND_MS);
        let late = late.map(|(lease, request)| format!("{lease}: {request:?}"));
        // A step back of the engine's clock prolongs waits as it does leases.
        let holds = late.is_none() || self.is_stepped_back;
        self.check(holds, || format!("a call waits longer than it asked for: {late:?}"));
    }

    /// A client that hung up leaves nothing behind: neither a place in a queue nor a grant that was
    /// made for it there.
    fn check_abandoned(&mut self, now_ms: u64, calm_since_ms: u64) {
        let left_ms = |request: &Request| match (request.open_calls, request.is_answered) {
            (0, false) => request.left_ms,
            _ => None,
        };
        let mut late = None;
        for (lock, record) in &self.locks {
            let waits = record.queue.iter().map(|waiter| (waiter.request.lease_id, waiter.server));
            let holds = record.holders.iter();
            let holds = holds.filter_map(|holder| Some((holder.lease_id, holder.deliverer?)));
            for (lease, server) in waits.chain(holds) {
                let Some(left_ms) = self.requests.get(&lease).and_then(left_ms) else { continue };
                let granted_ms =
                    self.grants.get(&(lock.clone(), lease)).map_or(0, |grant| grant.at_ms);
                let since_ms = left_ms.max(granted_ms).max(calm_since_ms);
                let is_late = now_ms.saturating_sub(since_ms) > BOUND_MS;
                if is_late && !self.is_suspect(now_ms, server) {
                    late = Some((lock.clone(), lease, now_ms - since_ms));
                }
            }
        }
        self.check(late.is_none(), || {
            format!("a client hung up, and its request is not withdrawn: {late:?}")
        });
    }
}

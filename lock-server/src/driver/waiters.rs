//! Waiting requests of this server, and the callers of each.
//!
//! The queues of the records define their order; this module has the callers of each queue entry. A
//! retry with the same lease id waits at the entry of the first request, and both get the reply.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName, Token};
use lease::{Delivery, Machine, Record};
use tokio::sync::oneshot;

use super::op::{Call, Decided, Op, Remainder, Tokens, Withdraw};
use super::pending::PendingGrant;
use crate::engines::contract::Key;
use crate::store::{Acquire, Grant, StoreError, Takeover};

/// Reply to an acquire.
#[derive(Debug)]
pub(super) struct Answered {
    /// Time at which the remaining time was measured, by this server's clock.
    pub(super) at_ms: u64,
    pub(super) result: Result<Vec<Grant>, StoreError>,
    /// Another request got the same reply, or may have.
    pub(super) is_shared: bool,
}

/// An acquire with its callers.
#[derive(Debug)]
pub(super) struct Waiting {
    /// At least one; several have one lease id.
    pub(super) parts: Vec<Acquire>,
    /// Requested as an acquire of several locks.
    pub(super) is_several: bool,
    /// It was in a queue.
    pub(super) waited: bool,
    /// Time of the request, by the store's clock.
    pub(super) since_ms: u64,
    /// Time-out, by the store's clock.
    pub(super) until_ms: u64,
    answers: Vec<oneshot::Sender<Answered>>,
    /// Its number among all that wait.
    number: u64,
}

impl Waiting {
    pub(super) fn new(
        parts: Vec<Acquire>,
        is_several: bool,
        now_ms: u64,
    ) -> (Self, oneshot::Receiver<Answered>) {
        let (answer, reply) = oneshot::channel();
        let until_ms = now_ms.saturating_add(parts.first().map_or(0, |part| part.wait_ms));
        let answers = vec![answer];
        let waiting = Self {
            parts,
            is_several,
            waited: false,
            since_ms: now_ms,
            until_ms,
            answers,
            number: 0,
        };
        (waiting, reply)
    }

    pub(super) fn key(&self) -> Option<(LockName, LeaseId)> {
        self.parts.first().map(|part| (part.lock.clone(), part.lease_id))
    }

    pub(super) fn locks(&self) -> Vec<LockName> {
        self.parts.iter().map(|part| part.lock.clone()).collect()
    }

    /// Sets the waiting time of a grant that was found in the record.
    pub(super) fn add_waited(&self, grants: &mut [Grant], now_ms: u64) {
        if self.waited {
            let waited_ms = now_ms.saturating_sub(self.since_ms);
            grants.iter_mut().for_each(|grant| grant.waited_ms = grant.waited_ms.max(waited_ms));
        }
    }

    /// Replies to every caller. Returns the withdrawal of a grant that no caller received.
    pub(super) fn answer(self, answered: Answered) -> Option<Withdraw> {
        let Answered { at_ms, result, is_shared } = answered;
        let is_shared = is_shared || self.answers.len() > 1;
        let locks = self.locks();
        let lease_id = self.parts.first()?.lease_id;
        let mut is_received = false;
        for answer in self.answers {
            let answered = Answered { at_ms, result: result.clone(), is_shared };
            is_received |= answer.send(answered).is_ok();
        }
        let is_lost = self.waited && result.is_ok() && !is_received;
        is_lost.then(|| Withdraw::new(locks, lease_id))
    }

    /// Retries the acquire at its queue entry: the grant would be delivered.
    pub(super) fn retry(&self, now_ms: u64) -> Option<Box<dyn Op>> {
        let wait_ms = self.until_ms.saturating_sub(now_ms);
        let request = Acquire { wait_ms, ..self.parts.first()?.clone() };
        let session = request.session.map(Key::Session);
        let keys = std::iter::once(Key::Lock(request.lock.clone())).chain(session).collect();
        let work = move |machine: &mut Machine, now_ms| {
            drop(machine.acquire(now_ms, request.clone()));
            Ok(())
        };
        Some(Call::boxed(keys, work).0)
    }

    /// Replies that the request was not carried out, or that the outcome is unknown.
    pub(super) fn refuse(self, error: StoreError) {
        drop(self.answer(Answered { at_ms: 0, result: Err(error), is_shared: true }));
    }

    /// Replies at once, or once the engine has confirmed the grants up to `unconfirmed`.
    pub(super) fn settle(self, answered: Answered, unconfirmed: Option<Token>) -> Remainder {
        match unconfirmed.filter(|_| answered.result.is_ok()) {
            Some(token) => Remainder::Confirm(PendingGrant::grant(token, self, answered)),
            None => self.answer(answered).into(),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.answers.iter().all(oneshot::Sender::is_closed)
    }
}

/// Returns whether a waiter was refused because its wait is over.
fn is_time_out(result: &Result<Vec<Grant>, StoreError>) -> bool {
    let Err(mut refusal) = result.as_ref() else { return false };
    while let StoreError::Part { refusal: of_part, .. } = refusal {
        refusal = of_part;
    }
    matches!(
        refusal,
        StoreError::Held { .. } | StoreError::Paused { .. } | StoreError::Unavailable(_)
    )
}

/// The waiting requests of this server, in an order that a simulation repeats.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// By the first of their locks.
    all: BTreeMap<(LockName, LeaseId), Waiting>,
    /// The requests that wait for a lock, in the order in which they came: their keys above.
    by_lock: BTreeMap<LockName, BTreeMap<u64, (LockName, LeaseId)>>,
    /// Number of the last request.
    last: u64,
    /// Number of callers of all.
    callers: usize,
}

impl Waiters {
    /// Adds a request that is in its queues. Returns its withdrawal if its caller has left.
    pub(super) fn insert(&mut self, mut waiting: Waiting) -> Option<Withdraw> {
        let key = waiting.key()?;
        waiting.waited = true;
        self.callers += waiting.answers.len();
        let locks = waiting.locks();
        if let Some(known) = self.all.get_mut(&key) {
            known.until_ms = waiting.until_ms;
            known.answers.append(&mut waiting.answers);
        } else {
            self.last += 1;
            waiting.number = self.last;
            for lock in &locks {
                self.by_lock.entry(lock.clone()).or_default().insert(self.last, key.clone());
            }
            self.all.insert(key.clone(), waiting);
        }
        self.leave(&key.0, key.1)
    }

    /// Removes callers that have left. Returns the withdrawal of a request without callers.
    pub(super) fn leave(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Withdraw> {
        let waiting = self.all.get_mut(&(lock.clone(), lease_id))?;
        let callers = waiting.answers.len();
        waiting.answers.retain(|answer| !answer.is_closed());
        self.callers -= callers - waiting.answers.len();
        if !waiting.is_abandoned() {
            return None;
        }
        let waiting = self.remove(lock, lease_id)?;
        Some(Withdraw::new(waiting.locks(), lease_id))
    }

    fn remove(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Waiting> {
        let key = (lock.clone(), lease_id);
        let waiting = self.all.remove(&key)?;
        self.callers -= waiting.answers.len();
        for part in &waiting.parts {
            if let Some(keys) = self.by_lock.get_mut(&part.lock) {
                keys.remove(&waiting.number);
                if keys.is_empty() {
                    self.by_lock.remove(&part.lock);
                }
            }
        }
        Some(waiting)
    }

    /// Replies to the waiters of a delivery. An engine that lost its last writes may bring back a
    /// queue entry with an earlier time-out: then the request is decided anew.
    pub(super) fn deliver(&mut self, delivery: Delivery, decided: Decided) -> Remainder {
        let locks = delivery.locks();
        let others = delivery.others.into_iter().map(|(_, grant)| grant);
        let mut result = delivery.result.map(|first| {
            let grants = std::iter::once(first).chain(others);
            grants.collect::<Vec<_>>()
        });
        let mut unconfirmed = None;
        if let Ok(grants) = &mut result {
            unconfirmed = decided.to_confirm(grants);
        }
        result.lift(decided.lift);
        match self.remove(&delivery.lock, delivery.lease_id) {
            Some(waiting) if waiting.until_ms > decided.now_ms && is_time_out(&result) => {
                Remainder::Ask(waiting)
            }
            Some(waiting) => {
                let answered = Answered { at_ms: decided.at_ms, result, is_shared: false };
                waiting.settle(answered, unconfirmed)
            }
            None => result.is_ok().then(|| Withdraw::new(locks, delivery.lease_id)).into(),
        }
    }

    /// Returns the number of callers that wait.
    pub(super) fn callers(&self) -> usize {
        self.callers
    }

    /// Returns whether a request waits under an id.
    pub(super) fn has(&self, key: &(LockName, LeaseId)) -> bool {
        self.all.contains_key(key)
    }

    /// Returns whether a request of this server waits for the lock.
    pub(super) fn wait_for(&self, lock: &LockName) -> bool {
        self.by_lock.contains_key(lock)
    }

    /// Returns the locks that requests of this server wait for.
    pub(super) fn locks(&self) -> impl Iterator<Item = &LockName> {
        self.by_lock.keys()
    }

    /// Returns the number of requests of this server that wait for a lock.
    pub(super) fn count(&self, lock: &LockName) -> usize {
        self.by_lock.get(lock).map_or(0, BTreeMap::len)
    }

    /// Removes the requests that wait for a lock and have no entry in its queue, for retries in
    /// the order in which they came.
    pub(super) fn take_missing(
        &mut self,
        lock: &LockName,
        record: Option<&Record>,
    ) -> Vec<Waiting> {
        let waits = |lease_id| record.is_some_and(|record| record.queue.get(lease_id).is_some());
        let keys = self.by_lock.get(lock).into_iter().flat_map(BTreeMap::values);
        let missing: Vec<_> = keys.filter(|(_, lease_id)| !waits(*lease_id)).cloned().collect();
        missing.into_iter().filter_map(|(first, id)| self.remove(&first, id)).collect()
    }

    /// Removes the requests that timed out before `now_ms` without a reply.
    pub(super) fn take_overdue(&mut self, now_ms: u64) -> Vec<Waiting> {
        let overdue = self.all.iter().filter(|(_, waiting)| waiting.until_ms < now_ms);
        let keys: Vec<_> = overdue.map(|(key, _)| key.clone()).collect();
        keys.into_iter().filter_map(|(lock, lease_id)| self.remove(&lock, lease_id)).collect()
    }

    /// Returns the requests for one lock that may take it over from a live lease.
    pub(super) fn takeovers(&self) -> impl Iterator<Item = &Waiting> {
        self.all.values().filter(|waiting| {
            let takes_over = |part: &Acquire| part.takeover != Takeover::Never;
            !waiting.is_several && waiting.parts.iter().any(takes_over)
        })
    }

    /// Drops every waiting request without a reply, which its callers read as unknown.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.by_lock.clear();
        self.callers = 0;
    }
}

//! Waiting requests of this server, and the callers of each.
//!
//! The queues of the records define their order; this module has the callers of each queue entry. A
//! retry with the same lease id waits at the entry of the first request, and both get the reply.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName, Token};
use lease::{Delivery, Record};

use super::decided::{Decided, Tokens as _};
use super::waiting::{Answered, Unreceived, Waiting};
use crate::store::{Acquire, Grant, StoreError, Takeover};

/// Returns whether a waiter was refused because its wait is over.
fn is_time_out(result: &Result<Vec<Grant>, StoreError>) -> bool {
    let Err(mut refusal) = result.as_ref() else { return false };
    while let StoreError::Part { refusal: of_part, .. } = refusal {
        refusal = of_part;
    }
    matches!(
        refusal,
        StoreError::Held { .. }
            | StoreError::Kept { .. }
            | StoreError::Paused { .. }
            | StoreError::Unavailable(_)
    )
}

/// A delivery to the waiters of a request.
#[derive(Debug)]
pub(super) enum Delivered {
    /// No caller is to get it, and it grants nothing.
    Nothing,
    /// No caller is to get its grants.
    Unreceived(Unreceived),
    /// These callers get it, once the engine has confirmed the grants up to `unconfirmed`.
    Reply { waiting: Waiting, answered: Answered, unconfirmed: Option<Token> },
    /// Its wait is not over: it is decided anew.
    Ask(Waiting),
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
    /// Adds a request that is in its queues. Returns it if its caller has left.
    pub(super) fn insert(&mut self, mut waiting: Waiting) -> Option<Unreceived> {
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

    /// Removes callers that have left. Returns a request without callers, to be withdrawn.
    pub(super) fn leave(&mut self, lock: &LockName, lease_id: LeaseId) -> Option<Unreceived> {
        let waiting = self.all.get_mut(&(lock.clone(), lease_id))?;
        let callers = waiting.answers.len();
        waiting.answers.retain(|answer| !answer.is_closed());
        self.callers -= callers - waiting.answers.len();
        if !waiting.is_abandoned() {
            return None;
        }
        let waiting = self.remove(lock, lease_id)?;
        Some(Unreceived { locks: waiting.locks(), lease_id })
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

    /// Takes the waiters of a delivery, for their reply. An engine that lost its last writes may
    /// bring back a queue entry with an earlier time-out: then the request is decided anew.
    pub(super) fn deliver(&mut self, delivery: Delivery, decided: Decided) -> Delivered {
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
                Delivered::Ask(waiting)
            }
            Some(waiting) => {
                let answered = Answered { at_ms: decided.at_ms, result, is_shared: false };
                Delivered::Reply { waiting, answered, unconfirmed }
            }
            None if result.is_ok() => {
                Delivered::Unreceived(Unreceived { locks, lease_id: delivery.lease_id })
            }
            None => Delivered::Nothing,
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

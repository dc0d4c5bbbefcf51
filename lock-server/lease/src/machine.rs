//! All locks of a namespace, and the transitions between their states.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Token};

pub use self::alarms::Due;
use self::alarms::{Alarm, Alarms};
use self::events::Reports;
use self::group::Group;
use self::records::Records;
use self::sessions::Sessions;
use self::shared::Sharing;
pub use self::shared::{Bond, Bonds, Related, lift};
use super::record::{GroupId, Record, Waiter};
use super::tokens;
use crate::{Grant, Limits, StoreError};

mod alarms;
mod answers;
mod confirmations;
mod departures;
mod endings;
mod events;
mod grants;
mod group;
mod groups;
mod handover;
mod pauses;
mod queries;
mod records;
mod renewals;
mod sessions;
mod settlement;
mod shared;
mod takeover;
#[cfg(test)]
mod tests;

/// Reply to an acquire.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<T = Grant> {
    /// An immediate result.
    Done(Result<T, StoreError>),
    /// The result follows as a [`Delivery`].
    Queued,
}

/// Reply to a waiter.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The lock, or the first of several.
    pub lock: LockName,
    /// Lease id of the waiter's acquire.
    pub lease_id: LeaseId,
    /// The grant, or the refusal.
    pub result: Result<Grant, StoreError>,
    /// Grants of the other locks of a request for several.
    pub others: Vec<(LockName, Grant)>,
    /// Server that the waiter is connected to; 0 if there is only one.
    pub server: u32,
}

impl Delivery {
    /// Returns the locks that the request was granted.
    pub fn locks(&self) -> Vec<LockName> {
        let others = self.others.iter().map(|(lock, _)| lock.clone());
        std::iter::once(self.lock.clone()).chain(others).collect()
    }
}

/// Locks of a namespace and the counter that their tokens come from.
///
/// Invariants: `counter` is at least the highest token ever granted. After every transition
/// (checked in debug builds) the front of a queue is not admitted by the live leases, or is a part
/// of a group that is not admitted elsewhere: no request overtakes the queue, and no waiter is left
/// waiting for a free lock.
#[derive(Debug)]
pub struct Machine {
    counter: u64,
    records: Records,
    /// Number of records with a live lease.
    held: usize,
    alarms: Alarms,
    /// Number of alarms that may be handled until the next slice.
    slice: usize,
    waiters: usize,
    /// Number of requests that may begin to wait, and of those that did.
    places: usize,
    places_taken: usize,
    limits: Limits,
    deliveries: Vec<Delivery>,
    dirty: BTreeSet<LockName>,
    sessions: Sessions,
    groups: BTreeMap<GroupId, Group>,
    last_group: GroupId,
    /// Locks whose first waiter may be served before the transition ends.
    passing: Vec<LockName>,
    /// Present if several servers share the namespace; see [`Machine::shared`].
    sharing: Option<Sharing>,
    reports: Reports,
}

impl Machine {
    /// Creates an empty namespace whose next token is above `counter`.
    pub fn new(counter: u64, limits: Limits) -> Self {
        Self {
            counter,
            records: Records::default(),
            held: 0,
            alarms: Alarms::default(),
            slice: usize::MAX,
            waiters: 0,
            places: usize::MAX,
            places_taken: 0,
            limits,
            deliveries: Vec::new(),
            dirty: BTreeSet::new(),
            sessions: Sessions::default(),
            groups: BTreeMap::new(),
            last_group: 0,
            passing: Vec::new(),
            sharing: None,
            reports: Reports::default(),
        }
    }

    /// Restores a record from a journal at `now_ms`. Sessions must be restored first.
    pub fn restore(&mut self, now_ms: u64, lock: LockName, mut record: Record) {
        self.counter = self.counter.max(record.highest_token());
        let bound: Vec<_> =
            record.holders.iter().filter_map(|h| Some((h.session?, h.lease_id))).collect();
        for (id, lease_id) in bound {
            if self.is_of_several() {
                // A session that is not loaded may live: it is read before any decision.
                self.sessions.hold(id, &lock, lease_id);
            } else if self.sessions.get(id).is_some_and(|session| session.lives(now_ms).is_ok()) {
                self.sessions.hold(id, &lock, lease_id);
            } else {
                if let Some(ended) = record.end(lease_id, EndReason::SessionEnded, None, now_ms) {
                    self.report_end(&lock, &ended);
                }
                self.dirty.insert(lock.clone());
            }
        }
        self.put_back(lock, Box::new(record));
    }

    /// Raises the counter, so that the next token is above `counter`; never lowers it.
    pub fn raise_counter(&mut self, counter: u64) {
        self.counter = self.counter.max(counter);
    }

    /// Returns the highest token issued so far.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Issues a token that no lease has, above every token issued before.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`].
    pub fn mint(&mut self) -> Result<Token, StoreError> {
        let token = tokens::next(self.counter, None).ok_or(StoreError::Exhausted)?;
        self.counter = token.get();
        Ok(token)
    }

    /// Takes the replies to waiters since the last call.
    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    /// Lets `count` more requests begin to wait; further ones are refused.
    pub fn let_wait(&mut self, count: usize) {
        (self.places, self.places_taken) = (count, 0);
    }

    /// Returns how many have begun to wait since then.
    pub fn places_taken(&self) -> usize {
        self.places_taken
    }

    /// Takes a place of a request that begins to wait, a retry too, with so many new entries in
    /// queues.
    fn take_place(&mut self, entries: usize) -> Result<(), StoreError> {
        if self.waiters + entries > self.limits.waiters {
            return Err(limit("waiters of this server", self.limits.waiters));
        }
        if self.places_taken >= self.places {
            return Err(limit(Limits::WAITING, self.limits.waiting));
        }
        self.places_taken += 1;
        Ok(())
    }

    /// Returns the locks whose stored part changed since [`take_changes`](Self::take_changes).
    pub fn changes(&self) -> impl Iterator<Item = &LockName> {
        self.dirty.iter()
    }

    /// Takes the locks whose stored part changed since the last call; `None` means delete it.
    pub fn take_changes(&mut self) -> Vec<(LockName, Option<&Record>)> {
        std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|lock| {
                let record = self.records.get(&lock);
                (lock, record)
            })
            .collect()
    }

    /// Returns the record of a lock.
    pub fn record(&self, lock: &LockName) -> Option<&Record> {
        self.records.get(lock)
    }

    /// Returns the number of locks that are held, as far as they are known here.
    pub fn held_count(&self) -> usize {
        self.held
    }

    /// Returns the number of live sessions, as far as they are known here.
    pub fn session_count(&self) -> usize {
        self.sessions.live_count()
    }

    /// Returns whether there are changes to make durable or replies to deliver.
    pub fn has_news(&self) -> bool {
        !self.dirty.is_empty() || !self.deliveries.is_empty() || self.sessions.is_dirty()
    }

    fn forget_waiter(&mut self, lock: &LockName, waiter: &Waiter) {
        let alarm = Alarm::Waiter(waiter.request.lease_id);
        self.alarms.remove(&(self.patience_ms(waiter), lock.clone(), alarm));
        self.note_place(lock, waiter.place);
        if waiter.server == self.server() {
            self.waiters -= 1;
        }
        if let Some(id) = waiter.request.session {
            self.sessions.remove_waiter(id, lock, waiter.request.lease_id);
            let with_session = self.sessions.has_ended(id);
            let bond = with_session.then_some(Bond::Ended);
            self.note_bond(id, lock, waiter.request.lease_id, bond);
        }
    }

    fn deliver(&mut self, lock: &LockName, waiter: &Waiter, result: Result<Grant, StoreError>) {
        self.deliveries.push(Delivery {
            lock: lock.clone(),
            lease_id: waiter.request.lease_id,
            result,
            others: Vec::new(),
            server: waiter.server,
        });
    }
}

fn limit(what: &'static str, limit: usize) -> StoreError {
    StoreError::Limit { what, limit: limit as u64 }
}

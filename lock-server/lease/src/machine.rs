//! Every lock of a namespace, and the transitions between their states.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Token};

use self::events::Reports;
use self::groups::Group;
use self::sessions::Sessions;
use self::sharing::Sharing;
pub use self::sharing::{Bond, Bonds, Related, lift};
use super::record::{GroupId, Record, Waiter};
use super::tokens;
use crate::{Grant, Limits, StoreError};

mod answers;
mod confirming;
mod endings;
mod events;
mod granting;
mod groups;
mod leaving;
mod passing;
mod pausing;
mod reading;
mod renewing;
mod sessions;
mod settling;
mod sharing;
mod takeover;
#[cfg(test)]
mod tests;

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<T = Grant> {
    /// Now.
    Done(Result<T, StoreError>),
    /// Later, as a [`Delivery`].
    Queued,
}

/// An answer to somebody who waited.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The lock, or the first of several.
    pub lock: LockName,
    /// The id that the waiter's acquire had.
    pub lease_id: LeaseId,
    /// What became of it.
    pub result: Result<Grant, StoreError>,
    /// The grants of the other locks, where there were several.
    pub others: Vec<(LockName, Grant)>,
    /// The server that the waiter is connected to; 0 where there is only one.
    pub server: u32,
}

impl Delivery {
    /// Every lock that the request asked for and got.
    pub fn locks(&self) -> Vec<LockName> {
        let others = self.others.iter().map(|(lock, _)| lock.clone());
        std::iter::once(self.lock.clone()).chain(others).collect()
    }
}

/// Why somebody looks at a lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// A lease may have expired, a lock-delay may be over, or the record may have become idle.
    Record,
    /// The waiter gives up.
    Waiter(LeaseId),
}

/// The locks of a namespace and the counter that their tokens come from.
///
/// Invariants: `counter` is at least the highest token ever granted; the front of a queue is not
/// admitted by what is live, or is a part of a group that is not admitted elsewhere (checked in debug
/// builds after every step), so that nobody overtakes the queue and nobody waits for nothing.
#[derive(Debug)]
pub struct Machine {
    counter: u64,
    /// Boxed, because a record moves whenever its lock changes, and the tree moves its neighbours then.
    records: BTreeMap<LockName, Box<Record>>,
    alarms: BTreeSet<(u64, LockName, Alarm)>,
    waiters: usize,
    limits: Limits,
    deliveries: Vec<Delivery>,
    dirty: BTreeSet<LockName>,
    sessions: Sessions,
    groups: BTreeMap<GroupId, Group>,
    last_group: GroupId,
    /// The locks whose first waiter may be served, until the step is over.
    passing: Vec<LockName>,
    /// Where several servers share the namespace; see [`Machine::shared`].
    sharing: Option<Sharing>,
    reports: Reports,
}

impl Machine {
    /// An empty namespace whose next token is above `counter`.
    pub fn new(counter: u64, limits: Limits) -> Self {
        Self {
            counter,
            records: BTreeMap::new(),
            alarms: BTreeSet::new(),
            waiters: 0,
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

    /// Takes a record over from a journal at `now_ms`, after the sessions.
    pub fn restore(&mut self, now_ms: u64, lock: LockName, mut record: Record) {
        self.counter = self.counter.max(record.highest_token());
        let bound: Vec<_> =
            record.holders.iter().filter_map(|h| Some((h.session?, h.lease_id))).collect();
        for (id, lease_id) in bound {
            if self.is_of_several() {
                // A session that is not loaded may live: it is read before anything is decided.
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

    /// The next token will be above `counter`; never lowers.
    pub fn raise_counter(&mut self, counter: u64) {
        self.counter = self.counter.max(counter);
    }

    /// The highest token issued so far.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// A token that no lease has. It is above every token issued before.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`].
    pub fn mint(&mut self) -> Result<Token, StoreError> {
        let token = tokens::next(self.counter, None).ok_or(StoreError::Exhausted)?;
        self.counter = token.get();
        Ok(token)
    }

    /// Lets pass what is due by now: leases, lock-delays, waiters' patience, sessions, idle records.
    /// Every other step begins with it; where nothing is due it costs next to nothing.
    pub fn tick(&mut self, now_ms: u64) {
        self.resume(now_ms);
        self.tick_sessions(now_ms);
        self.pass_on(now_ms);
        while self.alarms.first().is_some_and(|(at_ms, _, _)| *at_ms <= now_ms) {
            let Some((_, lock, alarm)) = self.alarms.pop_first() else { return };
            match alarm {
                Alarm::Record => self.settle(now_ms, lock),
                Alarm::Waiter(lease_id) => self.give_up(now_ms, &lock, lease_id),
            }
            self.pass_on(now_ms);
        }
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_alarm_ms(&self) -> Option<u64> {
        let lock = self.alarms.first().map(|(at_ms, _, _)| *at_ms);
        [lock, self.sessions.next_alarm_ms(), self.paused_until_ms()].into_iter().flatten().min()
    }

    /// The answers for waiters that came up since the last call.
    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }

    /// The locks whose stored part changed since the last call; `None` means forget it.
    pub fn take_changes(&mut self) -> Vec<(LockName, Option<&Record>)> {
        std::mem::take(&mut self.dirty)
            .into_iter()
            .map(|lock| {
                let record = self.records.get(&lock).map(Box::as_ref);
                (lock, record)
            })
            .collect()
    }

    /// What is known of a lock.
    pub fn record(&self, lock: &LockName) -> Option<&Record> {
        self.records.get(lock).map(Box::as_ref)
    }

    /// Whether there is something to make durable or to deliver.
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
            self.sessions.wait_no_more(id, lock, waiter.request.lease_id);
            let with_session = self.sessions.has_ended(id);
            let bond = with_session.then_some(Bond::Ended);
            self.note_bond(id, lock, waiter.request.lease_id, bond);
        }
    }

    fn deliver(&mut self, lock: &LockName, waiter: &Waiter, result: Result<Grant, StoreError>) {
        let (lock, lease_id, others) = (lock.clone(), waiter.request.lease_id, Vec::new());
        self.deliveries.push(Delivery { lock, lease_id, result, others, server: waiter.server });
    }
}

fn limit(what: &'static str, limit: usize) -> StoreError {
    StoreError::Limit { what, limit: limit as u64 }
}

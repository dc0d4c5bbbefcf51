//! Every lock of a namespace, and the transitions between their states.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Token, Ttl};

use self::sessions::Sessions;
use super::record::{Holder, Record, Waiter};
use super::takeover::{Verdict, verdict};
use super::tokens;
use crate::store::{Acquire, Grant, Limits, NoSession, StoreError};

mod endings;
mod reading;
mod sessions;
mod settling;
mod takeover;
#[cfg(test)]
mod tests;

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Now.
    Done(Result<Grant, StoreError>),
    /// Later, as a [`Delivery`].
    Queued,
}

/// An answer to somebody who waited.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// The lock.
    pub lock: LockName,
    /// The id that the waiter's acquire had.
    pub lease_id: LeaseId,
    /// What became of it.
    pub result: Result<Grant, StoreError>,
}

/// Why somebody looks at a lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The lease may have expired, or the record may have become idle.
    Record,
    /// The waiter gives up.
    Waiter(LeaseId),
}

/// The locks of a namespace and the counter that their tokens come from.
///
/// Invariants: `counter` is at least the highest token ever granted; a record with waiters has a
/// holder (checked in debug builds after every step), so nobody can overtake the queue.
#[derive(Debug)]
pub struct Machine {
    counter: u64,
    records: BTreeMap<LockName, Record>,
    alarms: BTreeSet<(u64, LockName, Alarm)>,
    waiters: usize,
    limits: Limits,
    deliveries: Vec<Delivery>,
    dirty: BTreeSet<LockName>,
    sessions: Sessions,
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
        }
    }

    /// Takes a record over from a journal at `now_ms`, after the sessions.
    pub fn restore(&mut self, now_ms: u64, lock: LockName, mut record: Record) {
        self.counter = self.counter.max(record.highest_token());
        if let Some(Holder { session: Some(id), lease_id, .. }) = record.holder {
            if self.sessions.get(id).is_some_and(|session| session.lives(now_ms).is_ok()) {
                self.sessions.hold(id, &lock, lease_id);
            } else {
                record.end(EndReason::SessionEnded, now_ms);
                self.dirty.insert(lock.clone());
            }
        }
        self.put_back(lock, record);
    }

    /// The next token will be above `counter`; never lowers.
    pub fn raise_counter(&mut self, counter: u64) {
        self.counter = self.counter.max(counter);
    }

    /// The highest token granted so far.
    pub fn counter(&self) -> u64 {
        self.counter
    }

    /// Grants, queues or refuses. See [`LockStore::acquire`](crate::store::LockStore::acquire).
    pub fn acquire(&mut self, now_ms: u64, request: Acquire) -> Reply {
        let lock = request.lock.clone();
        self.settle(now_ms, &lock);
        if !self.records.contains_key(&lock) && self.records.len() >= self.limits.locks {
            return Reply::Done(Err(limit("locks held or remembered", self.limits.locks)));
        }
        let mut record = self.take_out(&lock).unwrap_or_default();
        let reply = self.acquire_in(now_ms, &lock, &mut record, request);
        self.put_back(lock, record);
        reply
    }

    fn acquire_in(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
    ) -> Reply {
        if let Some(known) = known_answer(now_ms, record, &request) {
            return Reply::Done(known);
        }
        if let Err(refusal) = self.check_session(now_ms, &request) {
            return Reply::Done(Err(refusal));
        }
        match verdict(record, &request) {
            Verdict::Supersede => {
                return Reply::Done(self.supersede(now_ms, lock, record, request));
            }
            Verdict::Refuse(holder, why) => {
                let holder = holder.info(now_ms);
                return Reply::Done(Err(StoreError::TakeoverRefused { holder, why }));
            }
            Verdict::Ordinary => {}
        }
        if let Some(place) = record.position(request.lease_id) {
            return self.wait_longer(now_ms, lock, record, place, request);
        }
        match &record.holder {
            None => Reply::Done(self.grant(now_ms, lock, record, request, 0)),
            Some(holder) if request.wait_ms == 0 => Reply::Done(Err(StoreError::Held {
                holder: holder.info(now_ms),
                queue_length: record.queue.len(),
            })),
            Some(_) => self.enqueue(now_ms, lock, record, request),
        }
    }

    fn enqueue(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
    ) -> Reply {
        if record.queue.len() >= self.limits.waiters_per_lock {
            return Reply::Done(Err(limit("waiters of this lock", self.limits.waiters_per_lock)));
        }
        if self.waiters >= self.limits.waiters {
            return Reply::Done(Err(limit("waiters of this server", self.limits.waiters)));
        }
        let until_ms = now_ms + request.wait_ms;
        self.alarms.insert((until_ms, lock.clone(), Alarm::Waiter(request.lease_id)));
        self.waiters += 1;
        if let Some(id) = request.session {
            self.sessions.wait(id, lock, request.lease_id);
        }
        record.queue.push_back(Waiter { request, since_ms: now_ms, until_ms });
        Reply::Queued
    }

    /// The same id again: it keeps its place and gets the new patience.
    fn wait_longer(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        place: usize,
        request: Acquire,
    ) -> Reply {
        let waiter = &mut record.queue[place];
        if waiter.request.owner != request.owner {
            let owner = waiter.request.owner.clone();
            return Reply::Done(Err(StoreError::IdConflict { owner }));
        }
        self.alarms.remove(&(waiter.until_ms, lock.clone(), Alarm::Waiter(request.lease_id)));
        waiter.until_ms = now_ms + request.wait_ms;
        self.alarms.insert((waiter.until_ms, lock.clone(), Alarm::Waiter(request.lease_id)));
        Reply::Queued
    }

    fn grant(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        request: Acquire,
        waited_ms: u64,
    ) -> Result<Grant, StoreError> {
        let token: Token =
            tokens::next(self.counter, request.min_token).ok_or(StoreError::Exhausted)?;
        self.counter = token.get();
        let session = request.session.and_then(|id| self.sessions.get(id));
        let ttl = session.map_or(request.ttl, |session| session.ttl);
        let until_ms = session.and_then(|session| session.lives(now_ms).ok());
        if let Some(id) = request.session {
            self.sessions.hold(id, lock, request.lease_id);
        }
        let holder = Holder {
            lease_id: request.lease_id,
            token,
            owner: request.owner,
            session: request.session,
            incarnation: request.incarnation,
            ttl,
            metadata: request.metadata,
            granted_at_ms: now_ms,
            expires_at_ms: until_ms.unwrap_or(now_ms + ttl.ms()),
            renewals: 0,
            handed: false,
        };
        let grant = holder.grant(now_ms, waited_ms);
        record.holder = Some(holder);
        self.dirty.insert(lock.clone());
        Ok(grant)
    }

    /// Replaces what remains of a live lease; of one that is bound to a session it tells only what
    /// remains.
    ///
    /// # Errors
    /// [`StoreError::Lost`]; [`StoreError::Session`] where a bound lease is to get another time.
    pub fn renew(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.settle(now_ms, lock);
        let record =
            self.records.get_mut(lock).ok_or_else(|| gone(&Record::default(), lease_id))?;
        let Some(holder) = record.holder.as_mut().filter(|holder| holder.lease_id == lease_id)
        else {
            return Err(gone(record, lease_id));
        };
        if let Some(id) = holder.session {
            if ttl.is_some() {
                return Err(NoSession::Bound.of(id));
            }
            holder.renewals += 1;
            holder.handed = false;
            return Ok(holder.grant(now_ms, 0));
        }
        let ttl = ttl.unwrap_or(holder.ttl);
        if ttl != holder.ttl {
            // A restart gives a lease its full time again, so only a new time to live is news to
            // the journal: a plain renewal costs no write.
            holder.ttl = ttl;
            self.dirty.insert(lock.clone());
        }
        self.alarms.remove(&(holder.expires_at_ms, lock.clone(), Alarm::Record));
        holder.expires_at_ms = now_ms + ttl.ms();
        holder.renewals += 1;
        holder.handed = false;
        self.alarms.insert((holder.expires_at_ms, lock.clone(), Alarm::Record));
        Ok(holder.grant(now_ms, 0))
    }

    /// Lets pass what is due by now: leases, waiters' patience, idle records.
    pub fn tick(&mut self, now_ms: u64) {
        self.tick_sessions(now_ms);
        while let Some((at_ms, lock, alarm)) = self.alarms.first().cloned() {
            if at_ms > now_ms {
                return;
            }
            self.alarms.pop_first();
            match alarm {
                Alarm::Record => self.settle(now_ms, &lock),
                Alarm::Waiter(lease_id) => self.give_up(now_ms, &lock, lease_id),
            }
        }
    }

    fn give_up(&mut self, now_ms: u64, lock: &LockName, lease_id: LeaseId) {
        self.settle(now_ms, lock);
        let Some(mut record) = self.take_out(lock) else { return };
        if let Some(place) = record.position(lease_id)
            && let Some(waiter) = record.queue.remove(place)
        {
            self.forget_waiter(lock, &waiter);
            let held = record.holder.as_ref().map(|holder| StoreError::Held {
                holder: holder.info(now_ms),
                queue_length: record.queue.len(),
            });
            let held = held.unwrap_or_else(|| StoreError::Unavailable("nobody holds it".into()));
            self.deliver(lock, lease_id, Err(held));
        }
        self.put_back(lock.clone(), record);
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub fn next_alarm_ms(&self) -> Option<u64> {
        let lock = self.alarms.first().map(|(at_ms, _, _)| *at_ms);
        [lock, self.sessions.next_alarm_ms()].into_iter().flatten().min()
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
                let record = self.records.get(&lock);
                (lock, record)
            })
            .collect()
    }

    /// Whether there is something to make durable or to deliver.
    pub fn has_news(&self) -> bool {
        !self.dirty.is_empty() || !self.deliveries.is_empty() || self.sessions.is_dirty()
    }

    fn forget_waiter(&mut self, lock: &LockName, waiter: &Waiter) {
        let alarm = Alarm::Waiter(waiter.request.lease_id);
        self.alarms.remove(&(waiter.until_ms, lock.clone(), alarm));
        self.waiters -= 1;
        if let Some(id) = waiter.request.session {
            self.sessions.wait_no_more(id, lock, waiter.request.lease_id);
        }
    }

    fn deliver(&mut self, lock: &LockName, lease_id: LeaseId, result: Result<Grant, StoreError>) {
        self.deliveries.push(Delivery { lock: lock.clone(), lease_id, result });
    }
}

/// The answer to an id that has been granted before: the same grant, or how it ended.
fn known_answer(
    now_ms: u64,
    record: &mut Record,
    request: &Acquire,
) -> Option<Result<Grant, StoreError>> {
    if let Some(ended) = record.ended(request.lease_id) {
        return Some(Err(StoreError::Lost { reason: ended.reason, why: None }));
    }
    let holder = record.holder.as_mut().filter(|holder| holder.lease_id == request.lease_id)?;
    if holder.owner != request.owner {
        return Some(Err(StoreError::IdConflict { owner: holder.owner.clone() }));
    }
    holder.handed = false;
    Some(Ok(holder.grant(now_ms, 0)))
}

/// Why a lease that is not live is not.
fn gone(record: &Record, lease_id: LeaseId) -> StoreError {
    let reason = match (record.ended(lease_id), &record.holder) {
        (Some(ended), _) => ended.reason,
        (None, Some(_)) => EndReason::Superseded,
        (None, None) => EndReason::Expired,
    };
    StoreError::Lost { reason, why: None }
}

fn limit(what: &'static str, limit: usize) -> StoreError {
    StoreError::Limit { what, limit: limit as u64 }
}

//! Several servers share a namespace: each has a machine that holds what it knows of some locks, and
//! commits what the machine makes of it where nothing has changed meanwhile.
//!
//! A lock is loaded together with the sessions of its leases and waiters and with the other locks of
//! the groups in its queue: see [`Machine::related`]. What is not loaded counts as absent, and the
//! commit shows whether it is.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, SessionId, Token};

use super::groups::Group;
use super::{Alarm, Machine};
use crate::record::{Record, Waiter};
use crate::{Limits, Mode, NoSession, Session};

/// What a server of several remembers for its next commit.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    server: u32,
    alive: Option<Alive>,
    /// Highest token whose grant the engine has confirmed; `None` where it confirms none.
    pub(super) confirmed: Option<u64>,
    /// No lease begins before this moment; 0 for no pause.
    pub(super) paused_until_ms: u64,
    /// It is looked at alone: see [`Machine::view`].
    is_view: bool,
    /// Places of queues that were taken, changed or left.
    places: BTreeMap<LockName, BTreeSet<u64>>,
    /// What was bound to sessions, or is bound no more.
    bonds: BTreeMap<SessionId, Bonds>,
    /// Locks that changed for one request, and change together or not at all.
    together: Vec<Vec<LockName>>,
    /// What is not known any more, because nothing of it matters.
    forgotten: Vec<Related>,
}

/// The servers that lived at a moment.
#[derive(Debug)]
struct Alive {
    at_ms: u64,
    servers: BTreeSet<u32>,
}

/// What became of the bonds of a session: none where the lease or the request is gone.
pub type Bonds = BTreeMap<(LockName, LeaseId), Option<Bond>>;

/// How something is bound to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// A live lease.
    Held,
    /// A request that waits.
    Waits,
    /// It ended with its session, which names it until it is forgotten.
    Ended,
}

/// What has to be known beside a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Related {
    /// Another lock.
    Lock(LockName),
    /// A session.
    Session(SessionId),
}

impl Machine {
    /// A machine of one of several servers, which knows nothing yet.
    pub fn shared(counter: u64, limits: Limits, server: u32) -> Self {
        let mut machine = Self::new(counter, limits);
        machine.last_group = u64::from(server) << 32;
        machine.sharing = Some(Sharing { server, ..Sharing::default() });
        machine
    }

    /// A machine to read from: what is loaded is shown as it stands at a time, and nothing passes on
    /// to those who wait, because the other locks of their requests may not be loaded.
    pub fn view(limits: Limits) -> Self {
        let mut machine = Self::shared(0, limits, 0);
        machine.sharing = Some(Sharing { is_view: true, ..Sharing::default() });
        machine
    }

    pub(super) fn is_view(&self) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| sharing.is_view)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.sharing.is_some()
    }

    /// Whether this machine decides, as one of several that do.
    pub(super) fn is_of_several(&self) -> bool {
        self.is_shared() && !self.is_view()
    }

    /// The number of this server; 0 where it is the only one.
    pub(super) fn server(&self) -> u32 {
        self.sharing.as_ref().map_or(0, |sharing| sharing.server)
    }

    /// The servers that lived at a moment, or later. Waiters of others are passed over, and grants that
    /// others had not received are taken back, unless they came after it: a server is listed before it
    /// takes its first request. Returns the servers that lived before and have died.
    pub fn set_alive(&mut self, at_ms: u64, servers: BTreeSet<u32>) -> Vec<u32> {
        let Some(sharing) = &mut self.sharing else { return Vec::new() };
        let before = sharing.alive.replace(Alive { at_ms, servers: servers.clone() });
        let before = before.map(|before| before.servers).unwrap_or_default();
        before.difference(&servers).copied().collect()
    }

    /// Whether the server that something depends on since a moment has died.
    fn has_died(&self, server: u32, since_ms: u64) -> bool {
        let Some(sharing) = self.sharing.as_ref() else { return false };
        let Some(alive) = &sharing.alive else { return false };
        server != sharing.server && since_ms < alive.at_ms && !alive.servers.contains(&server)
    }

    /// Nothing is known of a record any more, and nothing of it is to be written.
    pub(super) fn note_forgotten(&mut self, what: Related) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forgotten.push(what);
        }
    }

    /// The records of which nothing is known any more since the last call.
    pub fn take_forgotten(&mut self) -> Vec<Related> {
        self.sharing
            .as_mut()
            .map(|sharing| std::mem::take(&mut sharing.forgotten))
            .unwrap_or_default()
    }

    /// Renewals, places and confirmations are news to the other servers alone.
    pub(super) fn note_for_others(&mut self, lock: &LockName) {
        if self.is_shared() {
            self.dirty.insert(lock.clone());
        }
    }

    pub(super) fn note_place(&mut self, lock: &LockName, place: u64) {
        let Some(sharing) = &mut self.sharing else { return };
        sharing.places.entry(lock.clone()).or_default().insert(place);
        self.dirty.insert(lock.clone());
    }

    pub(super) fn note_bond(
        &mut self,
        id: SessionId,
        lock: &LockName,
        lease_id: LeaseId,
        bond: Option<Bond>,
    ) {
        if let Some(sharing) = &mut self.sharing {
            sharing.bonds.entry(id).or_default().insert((lock.clone(), lease_id), bond);
        }
    }

    /// The moment of the check whether a waiter has timed out.
    pub(super) fn patience_ms(&self, waiter: &Waiter) -> u64 {
        waiter.patience_ms(self.server())
    }

    /// The places of a lock's queue that changed since the last call: who has it now, if anybody, and
    /// the parts of the waiter's group.
    #[expect(clippy::type_complexity, reason = "a place, its waiter, and that waiter's group")]
    pub fn take_places(
        &mut self,
        lock: &LockName,
    ) -> Vec<(u64, Option<(&Waiter, Option<&[(LockName, Mode)]>)>)> {
        let places = self.sharing.as_mut().and_then(|sharing| sharing.places.remove(lock));
        let queue = self.records.get(lock).map(|record| &record.queue);
        let waiter = |place: u64| {
            let waiter = queue?.iter().find(|waiter| waiter.place == place)?;
            let group = waiter.group.and_then(|group| self.groups.get(&group));
            Some((waiter, group.map(|group| group.parts.as_slice())))
        };
        places.into_iter().flatten().map(|place| (place, waiter(place))).collect()
    }

    /// What became of bonds since the last call.
    pub fn take_bonds(&mut self) -> BTreeMap<SessionId, Bonds> {
        self.sharing.as_mut().map(|sharing| std::mem::take(&mut sharing.bonds)).unwrap_or_default()
    }

    /// A request for several locks was granted, or has left their queues.
    pub(super) fn note_together(&mut self, parts: &[(LockName, Mode)]) {
        if let Some(sharing) = self.sharing.as_mut().filter(|_| parts.len() > 1) {
            sharing.together.push(parts.iter().map(|(lock, _)| lock.clone()).collect());
        }
    }

    /// Locks that changed for one request since the last call.
    pub fn take_together(&mut self) -> Vec<Vec<LockName>> {
        self.sharing
            .as_mut()
            .map(|sharing| std::mem::take(&mut sharing.together))
            .unwrap_or_default()
    }

    /// What has to be known beside a lock that is loaded.
    pub fn related(&self, lock: &LockName) -> Vec<Related> {
        let Some(record) = self.records.get(lock) else { return Vec::new() };
        let held = record.holders.iter().filter_map(|holder| holder.session);
        let waits = record.queue.iter().filter_map(|waiter| waiter.request.session);
        let sessions = held.chain(waits).map(Related::Session);
        let groups = record.queue.iter().filter_map(|waiter| self.groups.get(&waiter.group?));
        let locks = groups.flat_map(|group| group.parts.iter().map(|(lock, _)| lock));
        let locks = locks.filter(|other| *other != lock).cloned().map(Related::Lock);
        sessions.chain(locks).collect()
    }

    /// The locks that [`tick`](Self::tick) would look at. What is known beside them has to be true still
    /// where the outcome is committed.
    pub fn due_locks(&self, now_ms: u64) -> Vec<LockName> {
        let due = self.alarms.iter().take_while(|(at_ms, ..)| *at_ms <= now_ms);
        let mut locks: Vec<LockName> = due.map(|(_, lock, _)| lock.clone()).collect();
        locks.dedup();
        locks
    }

    /// Whether [`tick`](Self::tick) would look at more than the [locks that are due](Self::due_locks).
    pub fn is_more_due(&self, now_ms: u64) -> bool {
        let session_ms = self.sessions.next_alarm_ms();
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        !self.passing.is_empty() || is_due(session_ms) || is_due(self.paused_until_ms())
    }

    /// Whether anything is loaded of a lock.
    pub fn knows(&self, lock: &LockName) -> bool {
        self.records.contains_key(lock)
    }

    /// The moment from which on a lease of a lock has ended that no session keeps. A place that opens
    /// meanwhile changes no decision for the worse.
    pub fn holds_until_ms(&self, lock: &LockName) -> u64 {
        let holders = self.records.get(lock).into_iter().flat_map(|record| record.holders.iter());
        let unbound = holders.filter(|holder| holder.session.is_none());
        unbound.map(|holder| holder.expires_at_ms).min().unwrap_or(u64::MAX)
    }

    /// The moment from which on a session has ended, unless it is renewed.
    pub fn session_holds_until_ms(&self, id: SessionId) -> u64 {
        self.session_ends_at_ms(id).unwrap_or(u64::MAX)
    }

    /// When a live session ends unless it is renewed.
    pub fn session_ends_at_ms(&self, id: SessionId) -> Option<u64> {
        self.sessions.ends_at_ms(id)
    }

    /// Forgets what is known of a lock, without changing it.
    pub fn forget(&mut self, lock: &LockName) {
        let Some(mut record) = self.take_out(lock) else { return };
        for waiter in std::mem::take(&mut record.queue) {
            self.forget_waiter(lock, &waiter);
            self.forget_bond(waiter.request.session, lock, waiter.request.lease_id);
            if let Some(id) = waiter.group {
                let is_elsewhere = self.groups.get(&id).is_some_and(|group| {
                    let in_queue = |lock: &LockName| {
                        let record = self.records.get(lock);
                        record.is_some_and(|r| r.queue.iter().any(|w| w.group == Some(id)))
                    };
                    group.parts.iter().any(|(other, _)| other != lock && in_queue(other))
                });
                if !is_elsewhere {
                    self.groups.remove(&id);
                }
            }
        }
        for holder in record.holders.iter() {
            if let Some(id) = holder.session {
                self.sessions.let_go(id, lock, holder.lease_id);
            }
            self.forget_bond(holder.session, lock, holder.lease_id);
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.places.remove(lock);
        }
        self.dirty.remove(lock);
        self.forget_events(&Related::Lock(lock.clone()));
        self.passing.retain(|other| other != lock);
    }

    /// What was decided of a bond does not count.
    fn forget_bond(&mut self, session: Option<SessionId>, lock: &LockName, lease_id: LeaseId) {
        let Some((id, sharing)) = session.zip(self.sharing.as_mut()) else { return };
        if let Some(bonds) = sharing.bonds.get_mut(&id) {
            bonds.remove(&(lock.clone(), lease_id));
        }
    }

    /// Replaces what is known of a lock by what was read: the record with its queue, and the parts of
    /// the groups in it.
    pub fn load(
        &mut self,
        now_ms: u64,
        lock: LockName,
        record: Option<Record>,
        groups: Vec<(u64, Vec<(LockName, Mode)>)>,
    ) {
        self.forget(&lock);
        let Some(record) = record else { return };
        for (id, parts) in groups.into_iter().filter(|(_, parts)| !parts.is_empty()) {
            self.groups.entry(id).or_insert(Group { parts });
        }
        for waiter in &record.queue {
            let is_first = waiter.group.is_none_or(|group| {
                self.groups.get(&group).is_none_or(|group| *group.first_lock() == lock)
            });
            if is_first {
                let alarm = Alarm::Waiter(waiter.request.lease_id);
                self.alarms.insert((self.patience_ms(waiter), lock.clone(), alarm));
            }
            if waiter.server == self.server() {
                self.waiters += 1;
            }
            if let Some(id) = waiter.request.session {
                self.sessions.wait(id, &lock, waiter.request.lease_id);
            }
        }
        self.restore(now_ms, lock, record);
    }

    /// Replaces what is known of a session by what was read. Where it takes no lease any more, its
    /// waiting requests are refused.
    pub fn load_session(&mut self, now_ms: u64, id: SessionId, session: Option<Session>) {
        let retention_ms = self.limits.ended_retention_ms;
        self.sessions.load(id, session, retention_ms);
        self.refuse_waiters(now_ms, id);
    }

    /// Adds what is bound to a session.
    pub fn bind(&mut self, id: SessionId, bonds: Vec<(LockName, LeaseId, Bond)>) {
        for (lock, lease_id, bond) in bonds {
            match bond {
                Bond::Held => self.sessions.hold(id, &lock, lease_id),
                Bond::Waits => self.sessions.wait(id, &lock, lease_id),
                Bond::Ended => {}
            }
        }
    }

    /// The counter goes back to where it was before a batch that was not committed, and of which
    /// nothing is known any more.
    pub fn take_tokens_back(&mut self, counter: u64) {
        if self.is_shared() {
            self.counter = counter;
        }
    }

    /// Forgets what is known of a session, without changing it.
    pub fn forget_session(&mut self, id: SessionId) {
        self.forget_events(&Related::Session(id));
        self.sessions.load(id, None, self.limits.ended_retention_ms);
    }

    /// Ends what is bound to sessions that have ended and what dead servers have not received, and lets
    /// their waiters leave the front of the queue: before anything is decided on a lock.
    pub fn settle_for_others(&mut self, now_ms: u64, lock: &LockName) {
        let Some(record) = self.records.get(lock) else { return };
        let over = record.holders.iter().filter_map(|holder| {
            let ended_at_ms = self.sessions.ended_at_ms(now_ms, holder.session?)?;
            Some((holder.lease_id, ended_at_ms))
        });
        let over: Vec<(LeaseId, u64)> = over.collect();
        let unread = record.holders.iter().filter(|holder| {
            let deliverer = holder.deliverer.filter(|_| holder.is_unread);
            deliverer.is_some_and(|server| self.has_died(server, holder.granted_at_ms))
        });
        let lost: Vec<LeaseId> = unread.map(|holder| holder.lease_id).collect();
        if (!over.is_empty() || !lost.is_empty())
            && let Some(mut record) = self.take_out(lock)
        {
            for lease_id in lost {
                // No client knows of it, so nothing has to wait for its lock-delay.
                if let Some(holder) = record.holders.get_mut(lease_id) {
                    holder.lock_delay_ms = 0;
                }
                let _ = self.close(now_ms, lock, &mut record, lease_id, EndReason::Expired, None);
            }
            for (lease_id, at_ms) in over {
                let reason = EndReason::SessionEnded;
                // It is live, so it ends.
                let _ = self.close(at_ms, lock, &mut record, lease_id, reason, None);
            }
            record.closed.retain(|closed| closed.until_ms > now_ms);
            self.put_back(lock.clone(), record);
        }
        self.refuse_unserved(now_ms, lock);
        while let Some(lease_id) = self.dead_front(lock) {
            drop(self.leave(lock, lease_id));
        }
        self.pass_on(now_ms);
    }

    /// Refuses the waiters of a lock whose sessions take no lease any more.
    fn refuse_unserved(&mut self, now_ms: u64, lock: &LockName) {
        let Some(record) = self.records.get(lock) else { return };
        let refusal = |waiter: &Waiter| {
            let id = waiter.request.session?;
            let why = match self.sessions.get(id) {
                None => NoSession::Unknown,
                Some(session) => session.serves(now_ms).err()?,
            };
            Some((waiter.request.lease_id, why.of(id)))
        };
        let refused: Vec<_> = record.queue.iter().filter_map(refusal).collect();
        for (lease_id, why) in refused {
            // One of a group leaves with the first of them.
            if let Some(left) = self.leave(lock, lease_id) {
                self.tell(lock, &left, why);
            }
        }
    }

    pub(super) fn dead_front(&self, lock: &LockName) -> Option<LeaseId> {
        let front = self.records.get(lock)?.queue.front()?;
        self.has_died(front.server, front.since_ms).then_some(front.request.lease_id)
    }

    /// The tokens above `counter` were taken, each `by` above what the machine thought.
    pub fn lift_tokens(&mut self, locks: &[LockName], counter: u64, by: u64) {
        if by == 0 {
            return;
        }
        let lifted = |token: Token| lift(token, counter, by);
        for lock in locks {
            let Some(record) = self.records.get_mut(lock) else { continue };
            record.holders.iter_mut().for_each(|holder| holder.token = lifted(holder.token));
            record.closed.iter_mut().for_each(|closed| closed.token = lifted(closed.token));
            for ended in &mut record.ended {
                ended.token = ended.token.map(lifted);
            }
        }
    }
}

/// A token that was decided on above `counter`, as it was taken.
pub fn lift(token: Token, counter: u64, by: u64) -> Token {
    if token.get() <= counter {
        return token;
    }
    Token::new(token.get().saturating_add(by)).unwrap_or(token)
}

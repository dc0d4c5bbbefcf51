//! Namespaces that several servers share: each server has a machine with the locks that it has
//! loaded, and commits its decisions if nothing has changed meanwhile.
//!
//! A lock is loaded together with the sessions of its leases and waiters and with the other locks
//! of the groups in its queue: see [`Machine::related`]. A record that is not loaded counts as
//! absent, and the commit verifies that.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, SessionId, Token};

use super::Machine;
use super::alarms::Alarm;
use super::group::Group;
use crate::record::{Holder, Record, Waiter};
use crate::{Limits, Mode, NoSession, Session};

/// State that one of several servers collects for its next commit.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    server: u32,
    alive: Option<Alive>,
    /// Highest token whose grant the engine has confirmed; `None` if it confirms none.
    pub(super) confirmed: Option<u64>,
    /// No lease begins before this time; 0 without a pause.
    pub(super) paused_until_ms: u64,
    /// Read-only: see [`Machine::view`].
    is_view: bool,
    /// Queue entries that were added, changed or removed.
    places: BTreeMap<LockName, BTreeSet<u64>>,
    /// Leases and waiters that were bound to sessions or released from them.
    bonds: BTreeMap<SessionId, Bonds>,
    /// Locks that changed for one request, and must be committed together.
    together: Vec<Vec<LockName>>,
    /// Records that were dropped because they hold nothing of importance.
    forgotten: Vec<Related>,
}

/// Servers that lived at a point in time.
#[derive(Debug)]
struct Alive {
    at_ms: u64,
    servers: BTreeSet<u32>,
}

/// Changes to the bonds of a session: `None` if the lease or the request has ended.
pub type Bonds = BTreeMap<(LockName, LeaseId), Option<Bond>>;

/// Kind of bond to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// A live lease.
    Held,
    /// A waiting request.
    Waits,
    /// Ended with its session, which names it until it is forgotten.
    Ended,
}

/// A record that has to be loaded beside a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Related {
    /// Another lock.
    Lock(LockName),
    /// Live while the session is.
    Session(SessionId),
}

impl Machine {
    /// Creates the machine of one of several servers, with nothing loaded.
    pub fn shared(counter: u64, limits: Limits, server: u32) -> Self {
        let mut machine = Self::new(counter, limits);
        machine.last_group = u64::from(server) << 32;
        machine.sharing = Some(Sharing { server, ..Sharing::default() });
        machine
    }

    /// Creates a read-only machine: it shows the loaded records as of a time, and serves no queue,
    /// because the other locks of the waiting requests may not be loaded.
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

    /// Returns whether this machine decides, as one of several.
    pub(super) fn is_of_several(&self) -> bool {
        self.is_shared() && !self.is_view()
    }

    /// Returns the number of this server; 0 if it is the only one.
    pub(super) fn server(&self) -> u32 {
        self.sharing.as_ref().map_or(0, |sharing| sharing.server)
    }

    /// Sets the servers that lived at `at_ms` or later. Waiters of other servers are skipped, and
    /// grants that those had not received are rolled back, unless they are newer: a server is
    /// listed before it takes its first request. Returns the servers that lived before and have
    /// died.
    pub fn set_alive(&mut self, at_ms: u64, servers: BTreeSet<u32>) -> Vec<u32> {
        let Some(sharing) = &mut self.sharing else { return Vec::new() };
        let before = sharing.alive.replace(Alive { at_ms, servers: servers.clone() });
        let before = before.map(|before| before.servers).unwrap_or_default();
        before.difference(&servers).copied().collect()
    }

    /// Returns whether a server that an entry has depended on since `since_ms` has died.
    fn has_died(&self, server: u32, since_ms: u64) -> bool {
        let Some(sharing) = self.sharing.as_ref() else { return false };
        let Some(alive) = &sharing.alive else { return false };
        server != sharing.server && since_ms < alive.at_ms && !alive.servers.contains(&server)
    }

    /// Drops a record without writing it.
    pub(super) fn note_forgotten(&mut self, what: Related) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forgotten.push(what);
        }
    }

    /// Takes the records that were dropped since the last call.
    pub fn take_forgotten(&mut self) -> Vec<Related> {
        self.sharing
            .as_mut()
            .map(|sharing| std::mem::take(&mut sharing.forgotten))
            .unwrap_or_default()
    }

    /// Marks a change (renewal, queue entry, confirmation) that only other servers need.
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

    /// Returns the time at which the waiter's time-out is checked.
    pub(super) fn patience_ms(&self, waiter: &Waiter) -> u64 {
        waiter.patience_ms(self.server())
    }

    /// Takes the queue entries of a lock that changed since the last call: the waiter, if the entry
    /// exists, and the parts of its group.
    #[expect(clippy::type_complexity, reason = "a place, its waiter, and that waiter's group")]
    pub fn take_places(
        &mut self,
        lock: &LockName,
    ) -> Vec<(u64, Option<(&Waiter, Option<&[(LockName, Mode)]>)>)> {
        let places = self.sharing.as_mut().and_then(|sharing| sharing.places.remove(lock));
        let queue = self.records.get(lock).map(|record| &record.queue);
        let waiter = |place: u64| {
            let waiter = queue?.at(place)?;
            let group = waiter.group.and_then(|group| self.groups.get(&group));
            Some((waiter, group.map(|group| group.parts.as_slice())))
        };
        places.into_iter().flatten().map(|place| (place, waiter(place))).collect()
    }

    /// Takes the changes to bonds since the last call.
    pub fn take_bonds(&mut self) -> BTreeMap<SessionId, Bonds> {
        self.sharing.as_mut().map(|sharing| std::mem::take(&mut sharing.bonds)).unwrap_or_default()
    }

    /// Records that a request for several locks was granted or has left their queues.
    pub(super) fn note_together(&mut self, parts: &[(LockName, Mode)]) {
        if let Some(sharing) = self.sharing.as_mut().filter(|_| parts.len() > 1) {
            sharing.together.push(parts.iter().map(|(lock, _)| lock.clone()).collect());
        }
    }

    /// Takes the sets of locks that changed for one request since the last call.
    pub fn take_together(&mut self) -> Vec<Vec<LockName>> {
        self.sharing
            .as_mut()
            .map(|sharing| std::mem::take(&mut sharing.together))
            .unwrap_or_default()
    }

    /// Returns the records that have to be known beside a loaded lock.
    pub fn related(&self, lock: &LockName) -> Vec<Related> {
        let Some(record) = self.records.get(lock) else { return Vec::new() };
        let held = record.holders.iter().filter_map(|holder| holder.session);
        let waits = record.queue.bound().filter_map(|waiter| waiter.request.session);
        let sessions = held.chain(waits).map(Related::Session);
        let groups = record.queue.bound().filter_map(|waiter| self.groups.get(&waiter.group?));
        let locks = groups.flat_map(|group| group.parts.iter().map(|(lock, _)| lock));
        let locks = locks.filter(|other| *other != lock).cloned().map(Related::Lock);
        sessions.chain(locks).collect()
    }

    /// Returns whether [`tick`](Self::tick) would change more than the [locks that are
    /// due](Self::due).
    pub fn is_more_due(&self, now_ms: u64) -> bool {
        let session_ms = self.sessions.next_alarm_ms();
        let is_due = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= now_ms);
        !self.passing.is_empty() || is_due(session_ms) || is_due(self.paused_until_ms())
    }

    /// Returns whether a record of the lock is loaded.
    pub fn knows(&self, lock: &LockName) -> bool {
        self.records.contains(lock)
    }

    /// Returns the earliest expiry of a lease that is not bound to a session. A lock-delay that
    /// ends meanwhile makes no decision unsafe.
    pub fn holds_until_ms(&self, lock: &LockName) -> u64 {
        let holders = self.records.get(lock).into_iter().flat_map(|record| record.holders.iter());
        let unbound = holders.filter(|holder| holder.session.is_none());
        unbound.map(|holder| holder.expires_at_ms).min().unwrap_or(u64::MAX)
    }

    /// Returns the time at which a session has ended, unless it is renewed; `u64::MAX` for an ended
    /// one.
    pub fn session_holds_until_ms(&self, id: SessionId) -> u64 {
        self.session_ends_at_ms(id).unwrap_or(u64::MAX)
    }

    /// Returns the time at which a live session ends unless it is renewed.
    pub fn session_ends_at_ms(&self, id: SessionId) -> Option<u64> {
        self.sessions.ends_at_ms(id)
    }

    /// Unloads a lock, without changing it.
    pub fn forget(&mut self, lock: &LockName) {
        let Some(mut record) = self.take_out(lock) else { return };
        self.records.drop_place(lock);
        for waiter in std::mem::take(&mut record.queue).iter() {
            self.forget_waiter(lock, waiter);
            let lease_id = waiter.request.lease_id;
            self.forget_bond(waiter.request.session, lock, lease_id);
            if let Some(id) = waiter.group {
                let is_elsewhere = self.groups.get(&id).is_some_and(|group| {
                    let in_queue = |lock: &LockName| {
                        let record = self.records.get(lock);
                        record.is_some_and(|record| record.queue.part(lease_id, id).is_some())
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
                self.sessions.unbind(id, lock, holder.lease_id);
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

    /// Drops the decision on a bond.
    fn forget_bond(&mut self, session: Option<SessionId>, lock: &LockName, lease_id: LeaseId) {
        let Some((id, sharing)) = session.zip(self.sharing.as_mut()) else { return };
        if let Some(bonds) = sharing.bonds.get_mut(&id) {
            bonds.remove(&(lock.clone(), lease_id));
        }
    }

    /// Replaces the loaded state of a lock: the record with its queue, and the parts of the groups
    /// in it.
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
        for waiter in record.queue.iter() {
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

    /// Replaces the loaded state of a session. If it takes no new lease, its waiting requests are
    /// refused.
    pub fn load_session(&mut self, now_ms: u64, id: SessionId, session: Option<Session>) {
        let retention_ms = self.limits.ended_retention_ms;
        self.sessions.load(id, session, retention_ms);
        self.refuse_waiters(now_ms, id);
    }

    /// Adds bonds to a session.
    pub fn bind(&mut self, id: SessionId, bonds: Vec<(LockName, LeaseId, Bond)>) {
        for (lock, lease_id, bond) in bonds {
            match bond {
                Bond::Held => self.sessions.hold(id, &lock, lease_id),
                Bond::Waits => self.sessions.wait(id, &lock, lease_id),
                Bond::Ended => {}
            }
        }
    }

    /// Rolls the counter back to its value before a batch that was not committed, and whose records
    /// are unloaded.
    pub fn roll_back_counter(&mut self, counter: u64) {
        if self.is_shared() {
            self.counter = counter;
        }
    }

    /// Unloads a session, without changing it.
    pub fn forget_session(&mut self, id: SessionId) {
        self.forget_events(&Related::Session(id));
        self.sessions.load(id, None, self.limits.ended_retention_ms);
    }

    /// Ends leases whose sessions have ended and grants that dead servers have not received, and
    /// removes their waiters from the front of the queue. Runs before any decision on a lock.
    pub fn settle_for_others(&mut self, now_ms: u64, lock: &LockName) {
        self.tick_for(now_ms, lock);
        let Some(record) = self.records.get(lock) else { return };
        let is_settled = |holder: &Holder| holder.session.is_none() && !holder.is_unread;
        if record.queue.is_empty() && record.holders.iter().all(is_settled) {
            return self.pass_on(now_ms);
        }
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
                // No client knows of the grant, so no request has to wait for its lock-delay.
                if let Some(holder) = record.holders.get_mut(lease_id) {
                    holder.lock_delay_ms = 0;
                }
                let _ = self.close(now_ms, lock, &mut record, lease_id, EndReason::Expired, None);
            }
            for (lease_id, at_ms) in over {
                let reason = EndReason::SessionEnded;
                // The lease is live, so it ends.
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

    /// Refuses the waiters of a lock whose sessions take no new lease.
    fn refuse_unserved(&mut self, now_ms: u64, lock: &LockName) {
        let Some(record) = self.records.get(lock) else { return };
        let refusal = |waiter: &Waiter| {
            let id = waiter.request.session?;
            let why = match self.sessions.get(id) {
                None => NoSession::Unknown,
                Some(session) => session.serves(now_ms).err()?,
            };
            Some((waiter.request.lease_id, why.refusal(id)))
        };
        let refused: Vec<_> = record.queue.bound().filter_map(refusal).collect();
        for (lease_id, why) in refused {
            // The parts of a group leave with the first of them.
            if let Some(left) = self.leave(lock, lease_id) {
                self.refuse_waiter(lock, &left, why);
            }
        }
    }

    pub(super) fn dead_front(&self, lock: &LockName) -> Option<LeaseId> {
        let front = self.records.get(lock)?.queue.front()?;
        self.has_died(front.server, front.since_ms).then_some(front.request.lease_id)
    }

    /// Raises the tokens above `counter` by `by`, as the commit has issued them.
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

/// Returns a token as the commit issued it: one decided above `counter` is raised by `by`.
pub fn lift(token: Token, counter: u64, by: u64) -> Token {
    if token.get() <= counter {
        return token;
    }
    Token::new(token.get().saturating_add(by)).unwrap_or(token)
}

//! Loaded state of the driver, and its transitions: it decides waiting requests and settles
//! commits.

mod in_flight;
mod retries;
mod settlement;
mod uncommitted;
mod versions;
mod writes;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use fence_protocol::wire::event::Event;
use fence_protocol::{LeaseId, LockName, SessionId};
use lease::{Delivery, Due, Machine, Record, Related, Session, place_name};

use self::in_flight::InFlight;
use self::versions::Versions;
use super::decided::{Decided, Lift};
use super::draft::{Decisions, Draft, Items};
use super::op::{Asking, Op, PendingGrant, look_at, retry};
use super::stored;
use super::waiters::Waiters;
use crate::engines::contract::{
    Batch, Change, Group, Key, RecordStore, ServerId, Snapshot, Version, Write,
};
use crate::store::{Acquire, Limits, StoreError};

/// Most requests that are decided for one commit.
const BATCH: usize = 1_024;
/// Number of batches that are committed as a whole after one half had to wait for the other: so it
/// is with requests of sessions, or for one lock.
const UNDIVIDED: u32 = 32;
/// Time for which the version of a dropped record is kept, in milliseconds. The engine has deleted
/// the record by then.
const OUTDATED_MS: u64 = 10_000;
/// Margin for which a record with leases is kept beyond its use: an engine may measure that by a
/// clock that jumps.
const CLOCK_MARGIN_MS: u64 = 60_000;
/// Lost races in a row after which a request is refused.
const RACES_MAX: u32 = 200;

/// The server that has noticed the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy {
    /// This server clears the session.
    This,
    /// The other server clears it, unless it has died.
    Another,
}

/// Loaded state of this server.
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) waiters: Waiters,
    pub(super) pending: VecDeque<Box<dyn Op>>,
    pub(super) in_flight: InFlight,
    versions: Versions,
    server: ServerId,
    store: Arc<dyn RecordStore>,
    is_alone: bool,
    is_volatile: bool,
    /// Most records that a group reads, as far as requests can be postponed.
    reads_max: usize,
    /// Most requests that wait.
    waiting_max: usize,
    writes: u32,
    /// Lower bound of the engine's counter.
    counter_seen: u64,
    retention_ms: u64,
    /// Events that were committed and not reported yet.
    pub(super) reported: Vec<Event>,
    /// Versions of dropped records, and the time until which they are kept.
    outdated: VecDeque<(u64, Key, Version)>,
    /// Sessions that have ended while records still name them: see [`Driver::clear_session`].
    ///
    /// [`Driver::clear_session`]: super::Driver::clear_session
    pub(super) ended_sessions: BTreeMap<SessionId, EndedBy>,
    /// Requests that may have a queue entry while no caller waits there.
    pub(super) abandoned: Vec<(Vec<LockName>, LeaseId)>,
    /// Grants that have to be confirmed.
    pub(super) pending_grants: Vec<PendingGrant>,
    /// Number of requests to decide one by one: one of them is too large for the engine.
    one_by_one: usize,
    /// Number of batches that are not halved, because the second half had to wait for the first.
    undivided: u32,
    /// The engine lets no lease begin.
    is_paused: bool,
    /// Reason why the driver has stopped.
    pub(super) failed: Option<String>,
}

/// Decisions on their way to the store.
pub(super) struct Submission {
    pub(super) batch: Batch,
    decided: Decided,
    groups: Vec<Decisions>,
    /// Number of its requests that begin to wait.
    places: usize,
}

impl Submission {
    /// Returns its groups.
    pub(super) fn groups(&self) -> impl Iterator<Item = &Decisions> {
        self.groups.iter()
    }

    /// Returns the number of its requests.
    fn requests(&self) -> usize {
        self.groups.iter().map(|decisions| decisions.ops.len()).sum()
    }
}

impl Core {
    pub(super) fn new(
        mut machine: Machine,
        server: ServerId,
        store: Arc<dyn RecordStore>,
        limits: &Limits,
    ) -> Self {
        if store.confirms() {
            machine.confirm_grants();
        }
        Self {
            machine,
            waiters: Waiters::default(),
            pending: VecDeque::new(),
            in_flight: InFlight::default(),
            versions: Versions::new(server),
            server,
            is_alone: store.is_alone(),
            is_volatile: store.is_volatile(),
            reads_max: store.reads_max(),
            store,
            waiting_max: limits.waiting,
            writes: 0,
            counter_seen: 0,
            retention_ms: limits.ended_retention_ms,
            reported: Vec::new(),
            outdated: VecDeque::new(),
            ended_sessions: BTreeMap::new(),
            abandoned: Vec::new(),
            pending_grants: Vec::new(),
            one_by_one: 0,
            undivided: 0,
            is_paused: false,
            failed: None,
        }
    }

    fn next_version(&mut self) -> Version {
        self.writes = self.writes.wrapping_add(1).max(1);
        Version::of_write(self.server, self.writes)
    }

    /// Decides waiting requests and everything due; `None` if there is nothing, or if it has to
    /// wait for the batches that are under way.
    pub(super) fn decide(&mut self, now_ms: u64, at_ms: u64) -> Option<Submission> {
        let counter = self.machine.counter();
        self.machine.begin_slice(self.store.ends_max());
        let waiting = self.waiters.callers() + self.in_flight.places();
        self.machine.let_wait(self.waiting_max.saturating_sub(waiting));
        let due = if self.is_alone { Vec::new() } else { self.machine.due(now_ms) };
        let overlaps = !self.in_flight.is_empty();
        if overlaps && !self.may_overlap(now_ms, &due) {
            self.in_flight.drain();
            return None;
        }
        self.machine.forget_growth();
        if !self.is_alone {
            // Each of them is settled below, together with all that its group reads.
            self.machine.end_slice();
        }
        self.machine.tick(now_ms);
        if self.is_paused && self.machine.pause_left_ms(now_ms).is_none() {
            self.is_paused = false;
            let retries = self.waiters.takeovers().filter_map(|waiting| retry(waiting, now_ms));
            self.pending.extend(retries);
        }
        self.forget_outdated(now_ms);
        let due: Vec<Vec<Key>> = due.into_iter().map(|due| self.end_due(now_ms, due)).collect();
        let count = self.size_of_next(overlaps);
        if count == 0 && !self.machine.has_news() {
            return None;
        }
        let mut draft = Draft::new(self.is_alone);
        for keys in due {
            let before_ms = self.holds_until_ms(&keys);
            draft.extend(keys, before_ms);
        }
        let ops: Vec<Box<dyn Op>> = self.pending.drain(..count).collect();
        self.keep_retried(&ops);
        let mut ops = VecDeque::from(self.without_void(ops));
        let held_back = self.in_flight.held_back();
        while let Some(mut op) = ops.pop_front() {
            if overlaps {
                let keys = self.closure(op.keys(), None);
                if self.in_flight.touches(&keys) {
                    self.in_flight.hold_back(op, keys);
                    continue;
                }
            }
            // Before the settlement: a settled record is written together with the records that
            // settled it.
            if self.reads_max < usize::MAX
                && draft.size_with(&self.closure(op.keys(), None)) > self.reads_max
            {
                ops.push_front(op);
                break;
            }
            let keys = self.closure(op.keys(), Some(now_ms));
            let before_ms = self.holds_until_ms(&keys);
            op.run(&mut self.machine, now_ms);
            draft.add(keys, before_ms, op);
        }
        // For the next commit, in their order.
        ops.into_iter().rev().for_each(|op| self.pending.push_front(op));
        let is_half = overlaps && count >= self.store.halves_from() / 2;
        if is_half && self.in_flight.held_back() - held_back > count / 2 {
            self.undivided = UNDIVIDED;
        }
        if overlaps && draft.is_empty() {
            return None;
        }
        let lift = Lift { counter, by: 0, late_ms: 0 };
        let confirms = self.machine.confirms();
        let decided = Decided { at_ms, now_ms, lift, confirms };
        Some(if self.is_volatile {
            self.settled_at_once(draft, decided)
        } else {
            self.draw_up(draft, decided)
        })
    }

    /// Returns the number of waiting requests for the next batch.
    fn size_of_next(&mut self, overlaps: bool) -> usize {
        let waiting = self.pending.len();
        let may_halve = !overlaps && self.undivided == 0;
        let count = match self.one_by_one {
            0 if may_halve && waiting >= self.store.halves_from() => (waiting / 2).min(BATCH),
            0 => waiting.min(BATCH),
            _ => waiting.min(1),
        };
        if !overlaps {
            self.undivided = self.undivided.saturating_sub(1);
        }
        self.one_by_one = self.one_by_one.saturating_sub(count);
        count
    }

    /// Returns whether a batch may be decided while others are under way: due records are not in
    /// those, and nothing else is due or left over.
    fn may_overlap(&mut self, now_ms: u64, due: &[Due]) -> bool {
        let has_leftovers = self.one_by_one > 0 || self.machine.has_news();
        !has_leftovers
            && !self.is_paused
            && !self.machine.is_more_due(now_ms)
            && !due.iter().any(|due| {
                let keys = self.closure(vec![Key::Lock(due.lock.clone())], None);
                self.in_flight.touches(&keys)
            })
    }

    /// Records that the batch was sent.
    pub(super) fn begin(&mut self, submission: &Submission) {
        self.in_flight.begin(submission);
    }

    /// Records that the batch has ended, with a result or without.
    pub(super) fn end(&mut self, submission: &Submission) {
        let held_back = self.in_flight.end(submission);
        held_back.into_iter().rev().for_each(|op| self.pending.push_front(op));
    }

    /// Drops the versions of dropped records after `OUTDATED_MS`.
    fn forget_outdated(&mut self, now_ms: u64) {
        for related in self.machine.take_forgotten() {
            let key = key_of(related);
            let version = self.versions.get(&key);
            if version != Version::ABSENT && !self.knows(&key) {
                self.outdated.push_back((now_ms.saturating_add(OUTDATED_MS), key, version));
            }
        }
        while let Some((_, key, version)) =
            self.outdated.pop_front_if(|(until_ms, ..)| *until_ms <= now_ms)
        {
            if self.versions.get(&key) == version {
                self.versions.remove(&key);
            }
        }
    }

    /// Decisions that need no commit.
    fn settled_at_once(&mut self, draft: Draft, decided: Decided) -> Submission {
        drop(self.machine.take_changes());
        drop(self.machine.take_session_changes());
        drop(self.machine.take_together());
        let deliveries = self.machine.take_deliveries();
        let (_, groups) = self.groups_of(draft, deliveries, decided);
        Submission {
            batch: Batch { counter: decided.lift.counter, ..Batch::default() },
            decided,
            groups,
            places: self.machine.places_taken(),
        }
    }

    /// Returns the records to know for `keys`: with the sessions of their leases and waiters, and
    /// the other locks of the groups in their queues. With a time, each lock is settled too.
    fn closure(&mut self, keys: Vec<Key>, settle_at_ms: Option<u64>) -> Vec<Key> {
        if self.is_alone {
            return Vec::new();
        }
        if let [Key::Lock(lock)] = &keys[..]
            && self.machine.related(lock).is_empty()
        {
            if let Some(now_ms) = settle_at_ms {
                self.machine.settle_for_others(now_ms, lock);
            }
            return keys;
        }
        let mut known = Vec::with_capacity(keys.len());
        let mut open = keys;
        while let Some(key) = open.pop() {
            if known.contains(&key) {
                continue;
            }
            if let Key::Lock(lock) = &key {
                open.extend(self.machine.related(lock).into_iter().map(key_of));
                if let Some(now_ms) = settle_at_ms {
                    self.machine.settle_for_others(now_ms, lock);
                }
            }
            known.push(key);
        }
        known
    }

    /// Drops the keys whose records are read with an earlier one: those of a group that waits for
    /// many locks would all be read for each of them.
    pub(super) fn apart(&mut self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let mut covered = HashSet::new();
        let mut apart: Vec<Key> = keys.into_iter().collect();
        apart.retain(|key| {
            let is_new = !covered.contains(key);
            if is_new {
                covered.extend(self.closure(vec![key.clone()], None));
            }
            is_new
        });
        apart
    }

    /// Ends what is due of a lock. Returns the records to know for that.
    fn end_due(&mut self, now_ms: u64, due: Due) -> Vec<Key> {
        let keys = self.closure(vec![Key::Lock(due.lock.clone())], None);
        self.machine.handle(now_ms, due);
        // All of them, also those that nothing connects any more: they are written together.
        self.closure(keys, Some(now_ms))
    }

    /// Ends what is due of the locks that the batch changes beside those that it was asked for:
    /// the engine takes no decision on a lease whose time is over.
    fn settle_changes(&mut self, draft: &mut Draft, now_ms: u64) {
        loop {
            let changes = self.machine.changes().map(|lock| Key::Lock(lock.clone()));
            let new: Vec<Key> = changes.filter(|key| !draft.has(key)).collect();
            if new.is_empty() {
                return;
            }
            for key in new {
                if !draft.has(&key) {
                    let keys = self.closure(vec![key], Some(now_ms));
                    let before_ms = self.holds_until_ms(&keys);
                    draft.extend(keys, before_ms);
                }
            }
        }
    }

    fn knows(&self, key: &Key) -> bool {
        match key {
            Key::Lock(lock) => self.machine.knows(lock),
            Key::Session(id) => self.machine.session(*id).is_some(),
        }
    }

    fn holds_until_ms(&self, keys: &[Key]) -> u64 {
        let until_ms = |key: &Key| match key {
            Key::Lock(lock) => self.machine.holds_until_ms(lock),
            Key::Session(id) => self.machine.session_holds_until_ms(*id),
        };
        keys.iter().map(until_ms).min().unwrap_or(u64::MAX)
    }

    /// Draws up the batch for the store.
    fn draw_up(&mut self, mut draft: Draft, decided: Decided) -> Submission {
        self.settle_changes(&mut draft, decided.now_ms);
        let counter = decided.lift.counter;
        let tokens = self.machine.counter() - counter;
        let in_pause = self.is_paused;
        let ahead = self.in_flight.tokens();
        let mut batch = Batch { counter, ahead, tokens, in_pause, ..Batch::default() };
        let locks: Vec<LockName> =
            self.machine.take_changes().into_iter().map(|(lock, _)| lock).collect();
        let sessions: Vec<SessionId> =
            self.machine.take_session_changes().into_iter().map(|(id, _)| id).collect();
        for lock in &locks {
            batch.lives_ms = batch.lives_ms.max(self.longest_ms(lock, decided.now_ms));
            let write = self.write_of_lock(lock, decided);
            draft.write(write);
        }
        let mut bonds = self.machine.take_bonds();
        for id in sessions {
            let key = Key::Session(id);
            if !draft.has(&key) {
                draft.extend(vec![key.clone()], u64::MAX);
            }
            let ends_at_ms = self.machine.session_ends_at_ms(id).unwrap_or(0);
            batch.lives_ms = batch.lives_ms.max(ends_at_ms.saturating_sub(decided.now_ms));
            let items = bonds.remove(&id).map(|bonds| draft.bind(id, bonds));
            let write = self.write_of_session(id, decided, items.unwrap_or_default());
            draft.write(write);
        }
        for (id, bonds) in bonds {
            let items = draft.bind(id, bonds);
            draft.write(Write { key: Key::Session(id), change: Change::Keep, items });
        }
        for locks in self.machine.take_together() {
            draft.extend(locks.into_iter().map(Key::Lock).collect(), u64::MAX);
        }
        let deliveries = self.machine.take_deliveries();
        let (groups, decisions) = self.groups_of(draft, deliveries, decided);
        batch.groups = groups;
        Submission { batch, decided, groups: decisions, places: self.machine.places_taken() }
    }

    /// Assigns the deliveries and the events to the groups whose records made them.
    fn groups_of(
        &mut self,
        draft: Draft,
        deliveries: Vec<Delivery>,
        decided: Decided,
    ) -> (Vec<Group>, Vec<Decisions>) {
        let version = |key: &Key| self.versions.get(key);
        let (mut groups, mut decisions, place_of) = draft.into_groups(version, decided.now_ms);
        let events = self.machine.take_events();
        if groups.is_empty() && !(deliveries.is_empty() && events.is_empty()) {
            groups.push(Group::everything());
            decisions.push(Decisions::default());
        }
        for delivery in deliveries {
            let key = Key::Lock(delivery.lock.clone());
            let place = place_of.get(&key).copied().unwrap_or(0);
            let is_own = self.is_alone || delivery.server == self.server.0;
            if is_own {
                decisions[place].deliveries.push(delivery);
            } else {
                groups[place].notify.push((ServerId(delivery.server), key));
            }
        }
        for (about, event) in events {
            let place = place_of.get(&key_of(about)).copied().unwrap_or(0);
            decisions[place].events.push(event);
        }
        (groups, decisions)
    }
}

impl Decisions {
    pub(super) fn new(ops: Vec<Box<dyn Op>>, written: Vec<(Key, Version)>, keys: Vec<Key>) -> Self {
        Self { ops, deliveries: Vec::new(), events: Vec::new(), written, keys }
    }
}

fn key_of(related: Related) -> Key {
    match related {
        Related::Lock(lock) => Key::Lock(lock),
        Related::Session(id) => Key::Session(id),
    }
}

fn lock_of(key: &Key) -> Option<LockName> {
    match key {
        Key::Lock(lock) => Some(lock.clone()),
        Key::Session(_) => None,
    }
}

//! What the driver knows, and its steps: decide what waits, settle what was committed.

use std::collections::{HashMap, VecDeque};

use fence_protocol::{LockName, SessionId};
use lease::{Delivery, Machine, Record, Related, place_name};

use super::draft::Draft;
use super::op::{Asking, Decided, Lift, Op, Withdraw};
use super::stored;
use super::waiters::Waiters;
use crate::store::records::{
    Batch, Change, Committed, Group, Key, RecordStore, ServerId, Snapshot, Version, Write,
};
use crate::store::{Limits, StoreError};

/// How many requests are decided for one commit at most.
const BATCH: usize = 1_024;
/// After so many lost races in a row a request is refused.
const RACES_MAX: u32 = 200;

/// What this server knows.
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) waiters: Waiters,
    pub(super) pending: VecDeque<Box<dyn Op>>,
    /// The versions of what is loaded. Empty where this server is alone.
    versions: HashMap<Key, Version>,
    server: ServerId,
    is_alone: bool,
    is_volatile: bool,
    writes: u32,
    retention_ms: u64,
    /// Sessions that ended by themselves: what is bound to them is to be ended, record by record.
    pub(super) ended_sessions: Vec<SessionId>,
    /// Nothing is served any more, and why.
    pub(super) failed: Option<String>,
}

/// Decisions on their way to the store.
pub(super) struct Flight {
    pub(super) batch: Batch,
    decided: Decided,
    groups: Vec<Decisions>,
}

/// What one group of the batch decides.
#[derive(Default)]
pub(super) struct Decisions {
    pub(super) ops: Vec<Box<dyn Op>>,
    deliveries: Vec<Delivery>,
    /// The versions once it is committed.
    written: Vec<(Key, Version)>,
    /// Everything that it was decided on.
    keys: Vec<Key>,
}

impl Flight {
    /// What its groups decide.
    pub(super) fn groups(&self) -> impl Iterator<Item = &Decisions> {
        self.groups.iter()
    }
}

impl Core {
    pub(super) fn new(
        machine: Machine,
        server: ServerId,
        store: &dyn RecordStore,
        limits: &Limits,
    ) -> Self {
        Self {
            machine,
            waiters: Waiters::default(),
            pending: VecDeque::new(),
            versions: HashMap::new(),
            server,
            is_alone: store.is_alone(),
            is_volatile: store.is_volatile(),
            writes: 0,
            retention_ms: limits.ended_retention_ms,
            ended_sessions: Vec::new(),
            failed: None,
        }
    }

    fn next_version(&mut self) -> Version {
        self.writes = self.writes.wrapping_add(1).max(1);
        Version(u64::from(self.server.0) << 32 | u64::from(self.writes))
    }

    /// Decides what waits and what is due; `None` where there is nothing.
    pub(super) fn decide(&mut self, now_ms: u64, at_ms: u64) -> Option<Flight> {
        let counter = self.machine.counter();
        self.machine.tick(now_ms);
        let count = self.pending.len().min(BATCH);
        if count == 0 && !self.machine.has_news() {
            return None;
        }
        let mut draft = Draft::new(self.is_alone);
        let ops: Vec<_> = self.pending.drain(..count).collect();
        for mut op in ops {
            let keys = self.closure(op.keys(), Some(now_ms));
            let before_ms = self.holds_until_ms(&keys);
            op.run(&mut self.machine, now_ms);
            draft.add(keys, before_ms, op);
        }
        let decided = Decided { at_ms, now_ms, lift: Lift { counter, by: 0 } };
        Some(if self.is_volatile {
            self.settled_at_once(draft, decided)
        } else {
            self.draw_up(draft, decided)
        })
    }

    /// Decisions that need no commit.
    fn settled_at_once(&mut self, draft: Draft, decided: Decided) -> Flight {
        drop(self.machine.take_changes());
        drop(self.machine.take_session_changes());
        let deliveries = self.machine.take_deliveries();
        let (_, groups) = self.groups_of(draft, deliveries, decided);
        Flight {
            batch: Batch { counter: decided.lift.counter, ..Batch::default() },
            decided,
            groups,
        }
    }

    /// The records to know for some of them: with the sessions of their leases and waiters, and the
    /// other locks of the groups in their queues. With a time, each lock is settled on the way.
    fn closure(&mut self, keys: Vec<Key>, settle_at_ms: Option<u64>) -> Vec<Key> {
        if self.is_alone {
            return Vec::new();
        }
        let (mut known, mut open) = (Vec::with_capacity(keys.len()), keys);
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

    fn holds_until_ms(&self, keys: &[Key]) -> u64 {
        let until_ms = |key: &Key| match key {
            Key::Lock(lock) => self.machine.holds_until_ms(lock),
            Key::Session(id) => self.machine.session_holds_until_ms(*id),
        };
        keys.iter().map(until_ms).min().unwrap_or(u64::MAX)
    }

    /// What the store is asked to commit.
    fn draw_up(&mut self, mut draft: Draft, decided: Decided) -> Flight {
        let counter = decided.lift.counter;
        let tokens = self.machine.counter() - counter;
        let mut batch = Batch { groups: Vec::new(), counter, tokens, lives_ms: 0 };
        let locks: Vec<LockName> =
            self.machine.take_changes().into_iter().map(|(lock, _)| lock).collect();
        let sessions: Vec<SessionId> =
            self.machine.take_session_changes().into_iter().map(|(id, _)| id).collect();
        for lock in &locks {
            let key = Key::Lock(lock.clone());
            if !draft.has(&key) {
                let keys = self.closure(vec![key], None);
                draft.extend(keys, self.machine.holds_until_ms(lock));
            }
            batch.lives_ms = batch.lives_ms.max(self.longest_ms(lock, decided.now_ms));
            let write = self.write_of_lock(lock, decided);
            draft.write(Key::Lock(lock.clone()), write);
        }
        for id in sessions {
            let key = Key::Session(id);
            if !draft.has(&key) {
                draft.extend(vec![key.clone()], u64::MAX);
            }
            let ends_at_ms = self.machine.session_ends_at_ms(id).unwrap_or(0);
            batch.lives_ms = batch.lives_ms.max(ends_at_ms.saturating_sub(decided.now_ms));
            let write = self.write_of_session(id, decided);
            draft.write(key, write);
        }
        for (id, bonds) in self.machine.take_bonds() {
            let key = Key::Session(id);
            if !draft.has(&key) {
                draft.extend(vec![key.clone()], u64::MAX);
            }
            draft.add_items(&key, stored::bonds(bonds));
        }
        let deliveries = self.machine.take_deliveries();
        let (groups, decisions) = self.groups_of(draft, deliveries, decided);
        batch.groups = groups;
        Flight { batch, decided, groups: decisions }
    }

    /// The longest that a lease of a lock may live from now on, with its lock-delay.
    fn longest_ms(&self, lock: &LockName, now_ms: u64) -> u64 {
        let holders =
            self.machine.record(lock).into_iter().flat_map(|record| record.holders.iter());
        let lives_ms = holders.map(|holder| {
            holder.expires_at_ms.saturating_sub(now_ms).saturating_add(holder.lock_delay_ms)
        });
        lives_ms.max().unwrap_or(0)
    }

    fn write_of_lock(&mut self, lock: &LockName, decided: Decided) -> Write {
        let key = Key::Lock(lock.clone());
        let version = self.next_version();
        // Where this server is alone, the tokens of a batch are those that were decided on.
        let counter = if self.is_alone { u64::MAX } else { decided.lift.counter };
        let change = match self.machine.record(lock) {
            None => Change::Remove,
            Some(record) => Change::Put {
                version,
                value: stored::record(record, counter),
                lives_ms: lives_ms(record, decided.now_ms, self.retention_ms),
            },
        };
        let places = self.machine.take_places(lock);
        let items = places.into_iter().map(|(place, waiter)| {
            let value = waiter.map(|(waiter, parts)| stored::waiter(waiter, parts));
            (place_name(place), value)
        });
        Write { key, change, items: items.collect() }
    }

    fn write_of_session(&mut self, id: SessionId, decided: Decided) -> Write {
        let (key, version) = (Key::Session(id), self.next_version());
        let change = match self.machine.session(id) {
            None => Change::Remove,
            Some(session) => {
                if !self.is_alone && session.has_expired(decided.now_ms) {
                    self.ended_sessions.push(id);
                }
                let until_ms = session.alarm_ms(self.retention_ms);
                let lives_ms = until_ms.saturating_sub(decided.now_ms) + self.retention_ms;
                let value = stored::session(session);
                Change::Put { version, value, lives_ms: Some(lives_ms) }
            }
        };
        Write { key, change, items: Vec::new() }
    }

    /// Deals the deliveries out to the groups whose records made them.
    fn groups_of(
        &mut self,
        draft: Draft,
        deliveries: Vec<Delivery>,
        decided: Decided,
    ) -> (Vec<Group>, Vec<Decisions>) {
        let version = |key: &Key| self.versions.get(key).copied().unwrap_or(Version::ABSENT);
        let (mut groups, mut decisions, place_of) = draft.into_groups(version, decided.now_ms);
        if groups.is_empty() && !deliveries.is_empty() {
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
        (groups, decisions)
    }

    /// The batch is committed, as far as the store says.
    pub(super) fn settle(&mut self, flight: Flight, committed: Committed, now_ms: u64) {
        let Flight { batch, mut decided, groups } = flight;
        decided.lift.by = committed.base.saturating_sub(decided.lift.counter);
        self.machine.raise_counter(committed.base.saturating_add(batch.tokens));
        for (decisions, outcome) in groups.into_iter().zip(committed.groups) {
            match outcome {
                Ok(()) => self.settle_group(decisions, decided),
                Err(snapshots) => self.lose(decisions, snapshots, now_ms),
            }
        }
    }

    fn settle_group(&mut self, decisions: Decisions, decided: Decided) {
        let Decisions { ops, deliveries, written, .. } = decisions;
        if !self.is_alone {
            let Lift { counter, by } = decided.lift;
            let locks: Vec<LockName> = written.iter().filter_map(|(key, _)| lock_of(key)).collect();
            self.machine.lift_tokens(&locks, counter, by);
            for (key, version) in written {
                match version {
                    Version::ABSENT => drop(self.versions.remove(&key)),
                    version => drop(self.versions.insert(key, version)),
                }
            }
        }
        let mut withdrawn: Vec<Withdraw> = Vec::new();
        for op in ops {
            withdrawn.extend(op.finish(decided, &mut self.waiters));
        }
        for delivery in deliveries {
            withdrawn.extend(self.waiters.deliver(delivery, decided));
        }
        for withdraw in withdrawn {
            self.pending.push_back(Box::new(withdraw));
        }
    }

    /// Something that a group was decided on has changed: it is decided again, on what was read.
    fn lose(&mut self, decisions: Decisions, snapshots: Vec<Snapshot>, now_ms: u64) {
        if let Err(error) = self.load(snapshots, now_ms) {
            tracing::error!(%error, "a record cannot be read");
            self.refuse(decisions, &error);
            return;
        }
        for mut op in decisions.ops.into_iter().rev() {
            if op.lost() > RACES_MAX {
                let text = "the lock is changed by others all the time; repeat the request";
                op.fail(StoreError::Unavailable(text.to_owned()));
            } else {
                self.pending.push_front(op);
            }
        }
    }

    /// Replaces what is known by what was read: sessions first, because leases are judged by them.
    pub(super) fn load(&mut self, snapshots: Vec<Snapshot>, now_ms: u64) -> Result<(), StoreError> {
        let (sessions, locks): (Vec<_>, Vec<_>) =
            snapshots.into_iter().partition(|snapshot| matches!(snapshot.key, Key::Session(_)));
        let mut asking = Vec::new();
        for snapshot in sessions.into_iter().chain(locks) {
            let version = snapshot.version;
            let key = snapshot.key.clone();
            match &key {
                Key::Session(id) => {
                    let session = stored::read_session(&snapshot)?;
                    self.machine.load_session(now_ms, *id, session);
                }
                Key::Lock(lock) => {
                    let (record, groups) = stored::read_record(&snapshot)?.unzip();
                    let known = record.as_ref().map(Record::waiting_ids).unwrap_or_default();
                    self.machine.load(now_ms, lock.clone(), record, groups.unwrap_or_default());
                    // A request that waits here and has no place there was granted meanwhile, or lost its place.
                    let ids = self.waiters.ids(lock);
                    let gone = ids.into_iter().filter(|id| !known.contains(id));
                    asking.extend(gone.filter_map(|id| self.waiters.take(lock, id)));
                }
            }
            match version {
                Version::ABSENT => drop(self.versions.remove(&key)),
                version => drop(self.versions.insert(key, version)),
            }
        }
        self.pending.extend(asking.into_iter().map(Asking::boxed));
        Ok(())
    }

    /// The store could not commit: nothing that was decided counts.
    pub(super) fn fail(&mut self, flight: Flight, error: &StoreError) {
        self.machine.take_tokens_back(flight.decided.lift.counter);
        for decisions in flight.groups {
            self.refuse(decisions, error);
        }
    }

    /// Answers requests with an error, and forgets what is known of their records.
    fn refuse(&mut self, decisions: Decisions, error: &StoreError) {
        for key in decisions.keys {
            self.versions.remove(&key);
            match key {
                Key::Lock(lock) => self.machine.forget(&lock),
                Key::Session(id) => self.machine.forget_session(id),
            }
        }
        for op in decisions.ops {
            op.fail(error.clone());
        }
    }

    /// Nothing is served any more. Every reply that is under way is dropped, which its caller reads as
    /// unknown.
    pub(super) fn stop(&mut self, reason: String) {
        self.failed = Some(reason);
        self.pending.clear();
        self.waiters.clear();
    }
}

impl Decisions {
    pub(super) fn new(ops: Vec<Box<dyn Op>>, written: Vec<(Key, Version)>, keys: Vec<Key>) -> Self {
        Self { ops, deliveries: Vec::new(), written, keys }
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

/// For how long a record matters; not known while sessions or waiters decide.
fn lives_ms(record: &Record, now_ms: u64, retention_ms: u64) -> Option<u64> {
    let is_open = record.holders.iter().any(|holder| holder.session.is_some());
    let waits = record.queue.iter().map(|waiter| waiter.until_ms);
    let ends = record.holders.iter().map(|holder| holder.expires_at_ms);
    let opens = record.closed.iter().map(|closed| closed.until_ms);
    let last_ms = waits.chain(ends).chain(opens).max().unwrap_or(now_ms);
    let spare_ms = record.holders.iter().map(|holder| holder.lock_delay_ms).max().unwrap_or(0);
    let lives_ms = last_ms.saturating_sub(now_ms) + spare_ms + retention_ms;
    (!is_open).then_some(lives_ms.max(1))
}

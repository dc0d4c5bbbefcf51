//! Requests that touch the same records are decided one after the other and committed together:
//! the draft sorts requests and writes into such groups.

use std::collections::HashMap;

use fence_protocol::SessionId;
use fence_protocol::wire::event::Event;
use lease::{Bonds, Delivery};

use super::op::Op;
use super::stored;
use crate::engines::contract::{Change, Group, ItemName, Key, Version, Write};

/// Changes of a record's items.
pub(super) type Items = Vec<(ItemName, Option<Vec<u8>>)>;

/// Decisions of one group of the batch.
#[derive(Default)]
pub(super) struct Decisions {
    pub(super) ops: Vec<Box<dyn Op>>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) events: Vec<Event>,
    /// Versions of its records once it is committed.
    pub(super) written: Vec<(Key, Version)>,
    /// Records that it was decided on.
    pub(super) keys: Vec<Key>,
}

/// Groups under construction.
pub(super) struct Draft {
    is_alone: bool,
    parts: Vec<Part>,
    place_of: HashMap<Key, usize>,
}

#[derive(Default)]
struct Part {
    keys: Vec<Key>,
    before_ms: Option<u64>,
    ops: Vec<Box<dyn Op>>,
    writes: Vec<Write>,
}

impl Draft {
    /// Creates a draft; if the server is alone, everything is one group.
    pub(super) fn new(is_alone: bool) -> Self {
        Self { is_alone, parts: Vec::new(), place_of: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a request that was decided on these records as of before `before_ms`.
    pub(super) fn add(&mut self, keys: Vec<Key>, before_ms: u64, op: Box<dyn Op>) {
        let place = self.extend(keys, before_ms);
        self.parts[place].ops.push(op);
    }

    /// Returns the number of records of a group with these; 0 if they would begin one.
    pub(super) fn size_with(&self, keys: &[Key]) -> usize {
        let mut places: Vec<usize> =
            keys.iter().filter_map(|key| self.place_of.get(key).copied()).collect();
        places.sort_unstable();
        places.dedup();
        if places.is_empty() {
            return 0;
        }
        let new = keys.iter().filter(|key| !self.place_of.contains_key(*key)).count();
        new + places.into_iter().map(|place| self.parts[place].keys.len()).sum::<usize>()
    }

    /// Returns whether a record belongs to a group.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.is_alone && !self.parts.is_empty() || self.place_of.contains_key(key)
    }

    /// Adds records to the group that has some of them, or makes one.
    pub(super) fn extend(&mut self, keys: Vec<Key>, before_ms: u64) -> usize {
        if let [key] = &keys[..]
            && !self.is_alone
            && !self.place_of.contains_key(key)
        {
            self.place_of.insert(key.clone(), self.parts.len());
            self.parts.push(Part { keys, before_ms: Some(before_ms), ..Part::default() });
            return self.parts.len() - 1;
        }
        let mut places: Vec<usize> =
            keys.iter().filter_map(|key| self.place_of.get(key).copied()).collect();
        if self.is_alone && !self.parts.is_empty() {
            places = vec![0];
        }
        places.sort_unstable();
        places.dedup();
        let place = places.first().copied().unwrap_or_else(|| {
            self.parts.push(Part::default());
            self.parts.len() - 1
        });
        for other in places.into_iter().skip(1) {
            self.merge(place, other);
        }
        for key in keys {
            if !self.is_alone && self.place_of.insert(key.clone(), place).is_none() {
                self.parts[place].keys.push(key);
            }
        }
        let part = &mut self.parts[place];
        part.before_ms = Some(part.before_ms.map_or(before_ms, |known| known.min(before_ms)));
        place
    }

    /// Puts a session into one group with the locks whose bonds to it change; returns its new
    /// items. A lease ends with its session: if the session lives on through another server, the
    /// lease does too.
    pub(super) fn bind(&mut self, id: SessionId, bonds: Bonds) -> Items {
        let key = Key::Session(id);
        let locks = bonds.keys().map(|(lock, _)| Key::Lock(lock.clone()));
        let together = std::iter::once(key.clone()).chain(locks).collect();
        self.extend(together, u64::MAX);
        stored::bonds(bonds)
    }

    fn merge(&mut self, into: usize, other: usize) {
        let other = std::mem::take(&mut self.parts[other]);
        for key in &other.keys {
            self.place_of.insert(key.clone(), into);
        }
        let part = &mut self.parts[into];
        part.keys.extend(other.keys);
        // Their requests have no record in common, or they were one group before: any order will
        // do.
        part.ops.extend(other.ops);
        part.writes.extend(other.writes);
        part.before_ms = part.before_ms.into_iter().chain(other.before_ms).min();
    }

    fn part(&mut self, key: &Key) -> Option<&mut Part> {
        let place = if self.is_alone { Some(0) } else { self.place_of.get(key).copied() };
        self.parts.get_mut(place?)
    }

    /// Adds the change of a record.
    pub(super) fn write(&mut self, write: Write) {
        if let Some(part) = self.part(&write.key) {
            part.writes.push(write);
        }
    }

    /// Returns the groups for the store, their decisions, and the group of each key.
    pub(super) fn into_groups(
        self,
        version: impl Fn(&Key) -> Version,
        now_ms: u64,
    ) -> (Vec<Group>, Vec<Decisions>, HashMap<Key, usize>) {
        let mut groups = Vec::new();
        let mut decisions = Vec::new();
        // The group of each part.
        let mut moved = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            moved.push(groups.len());
            if part.keys.is_empty() && part.ops.is_empty() && part.writes.is_empty() {
                // It was merged into another.
                continue;
            }
            let mut writes = part.writes;
            writes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
            let written = writes.iter().filter_map(|write| match &write.change {
                Change::Keep => None,
                Change::Put { version, .. } => Some((write.key.clone(), *version)),
                Change::Remove => Some((write.key.clone(), Version::ABSENT)),
            });
            decisions.push(Decisions::new(part.ops, written.collect(), part.keys.clone()));
            groups.push(Group {
                reads: part.keys.into_iter().map(|key| (key.clone(), version(&key))).collect(),
                not_before_ms: if self.is_alone { 0 } else { now_ms },
                before_ms: part.before_ms.unwrap_or(u64::MAX),
                writes,
                notify: Vec::new(),
            });
        }
        let mut places = self.place_of;
        places.values_mut().for_each(|place| *place = moved[*place]);
        (groups, decisions, places)
    }
}

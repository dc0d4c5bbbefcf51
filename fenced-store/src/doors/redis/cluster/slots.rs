//! Map of slots to masters, and key names that hash to a given slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use fence_protocol::Namespace;
use redis_link::{SLOTS, SlotRange, slot_of};

/// For each slot a number that makes `fence:<namespace>:<number>` hash to it.
#[derive(Debug)]
pub(super) struct Tags {
    prefix: String,
    numbers: Box<[u32]>,
}

impl Tags {
    /// Tries numbers until every slot has one; some 200 000, in a few milliseconds.
    pub(super) fn new(namespace: &Namespace) -> Self {
        let prefix = format!("fence:{namespace}:");
        let mut numbers = vec![None; usize::from(SLOTS)];
        let mut missing = numbers.len();
        let mut number = 0;
        while missing > 0 {
            let slot = &mut numbers[usize::from(slot_of(format!("{prefix}{number}").as_bytes()))];
            if slot.is_none() {
                *slot = Some(number);
                missing -= 1;
            }
            number += 1;
        }
        Self { prefix, numbers: numbers.into_iter().flatten().collect() }
    }

    /// The key of a lock's mark in a slot.
    pub(super) fn mark(&self, slot: u16, lock: &str) -> String {
        self.key(slot, "mark", lock)
    }

    /// The key of the set of all marks in a slot.
    pub(super) fn marks(&self, slot: u16) -> String {
        self.key(slot, "marks", "all")
    }

    /// A key of the probe in a slot.
    pub(super) fn key(&self, slot: u16, kind: &str, name: &str) -> String {
        let number = self.numbers[usize::from(slot)];
        format!("{{{}{number}}}:{kind}:{name}", self.prefix)
    }
}

/// Map of slots to masters.
#[derive(Clone, Debug)]
pub(super) struct SlotMap {
    version: u64,
    masters: Arc<[String]>,
    /// By slot, an index into `masters`; one beyond its end for a slot without an owner.
    owners: Arc<[u16]>,
}

impl SlotMap {
    /// Map with the version after `before`.
    pub(super) fn new(before: u64, ranges: &[SlotRange]) -> Self {
        let masters: BTreeSet<&String> = ranges.iter().map(|range| &range.master).collect();
        let masters: Arc<[String]> = masters.into_iter().cloned().collect();
        let mut owners = vec![u16::MAX; usize::from(SLOTS)];
        for range in ranges {
            let index = masters.binary_search(&range.master).unwrap_or_default();
            owners[usize::from(range.first)..=usize::from(range.last)].fill(index as u16);
        }
        Self { version: before + 1, masters, owners: owners.into() }
    }

    /// Grows with every change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// `host:port` of the slot's master.
    pub(super) fn owner(&self, slot: u16) -> Option<String> {
        self.masters.get(usize::from(self.owners[usize::from(slot)])).cloned()
    }

    /// Every master that owns a slot.
    pub(super) fn masters(&self) -> &[String] {
        &self.masters
    }

    /// One slot of each master.
    pub(super) fn a_slot_of_each(&self) -> Vec<(u16, String)> {
        let slot_of = |index: usize| self.owners.iter().position(|at| usize::from(*at) == index);
        let masters = self.masters.iter().enumerate();
        masters.filter_map(|(i, name)| Some((slot_of(i)? as u16, name.clone()))).collect()
    }

    /// Map in which `master` owns the slot.
    pub(super) fn with_owner(&self, slot: u16, master: &str) -> Self {
        let mut masters = self.masters.to_vec();
        let index = masters.iter().position(|known| known == master).unwrap_or_else(|| {
            masters.push(master.to_owned());
            masters.len() - 1
        });
        let mut owners = self.owners.to_vec();
        owners[usize::from(slot)] = index as u16;
        Self { version: self.version + 1, masters: masters.into(), owners: owners.into() }
    }
}

/// Address in a MOVED or ASK message, `3999 10.0.0.1:6381`. A message without a host means the host that
/// was `asked`.
pub(super) fn direction(message: &str, asked: &str) -> String {
    let address = message.split(' ').nth(1).unwrap_or_default();
    match (address.strip_prefix(':'), asked.rsplit_once(':')) {
        (Some(port), Some((host, _))) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_tag_that_hashes_to_it() {
        let tags = Tags::new(&Namespace::default());
        for slot in 0..SLOTS {
            let key = tags.mark(slot, "a{b}c/d");
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
            assert!(key.starts_with("{fence:"), "the guard's own keys are known by this: {key}");
        }
    }

    #[test]
    fn a_map_knows_owners_and_takes_directions() {
        let range =
            |first, last, master: &str| SlotRange { first, last, master: master.to_owned() };
        let map = SlotMap::new(4, &[range(0, 9, "b:1"), range(11, 16383, "a:1")]);
        assert_eq!(map.version(), 5);
        assert_eq!(map.owner(9).as_deref(), Some("b:1"));
        assert_eq!(map.owner(10), None);
        assert_eq!(map.owner(16383).as_deref(), Some("a:1"));
        assert_eq!(map.a_slot_of_each().len(), 2);
        let moved = map.with_owner(10, "c:1");
        assert_eq!(moved.owner(10).as_deref(), Some("c:1"));
        assert_eq!((moved.version(), moved.owner(9)), (6, map.owner(9)));
        assert_eq!(direction("10 10.0.0.1:6381", "x:1"), "10.0.0.1:6381");
        assert_eq!(direction("10 :6381", "x:1"), "x:6381");
    }
}

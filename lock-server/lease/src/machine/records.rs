//! The loaded records: found by their name, and listed in the order of their names.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use fence_protocol::LockName;

use crate::record::Record;

/// Records of locks. No decision depends on the order of the map, whose hash has a random key:
/// clients choose the names.
///
/// A transition takes a record out, and it keeps its place until it is put back or dropped.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Boxed: a record moves whenever its lock changes. `None` while it is taken out.
    by_name: HashMap<LockName, Option<Box<Record>>>,
    /// The names in `by_name`.
    names: BTreeSet<LockName>,
    /// Number of records that are not taken out.
    len: usize,
    /// Number of places that were made since [`Records::forget_created`].
    created: usize,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Number of records and of places that are kept for them.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        assert_eq!(self.names.len(), self.by_name.len());
        self.names.len()
    }

    pub(super) fn get(&self, lock: &LockName) -> Option<&Record> {
        self.by_name.get(lock)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, lock: &LockName) -> Option<&mut Record> {
        self.by_name.get_mut(lock)?.as_deref_mut()
    }

    pub(super) fn contains(&self, lock: &LockName) -> bool {
        self.get(lock).is_some()
    }

    /// Takes a record out, to [put it back](Self::put) or to [drop its place](Self::drop_place).
    pub(super) fn take(&mut self, lock: &LockName) -> Option<Box<Record>> {
        let record = self.by_name.get_mut(lock)?.take()?;
        self.len -= 1;
        Some(record)
    }

    /// Puts a record back, or a new one in.
    pub(super) fn put(&mut self, lock: LockName, record: Box<Record>) {
        let place = self.by_name.entry(lock).or_insert_with_key(|lock| {
            self.names.insert(lock.clone());
            self.created += 1;
            None
        });
        self.len += usize::from(place.replace(record).is_none());
    }

    /// Returns how many places were made since [`forget_created`](Self::forget_created).
    pub(super) fn created(&self) -> usize {
        self.created
    }

    pub(super) fn forget_created(&mut self) {
        self.created = 0;
    }

    /// Drops the place of a record that is taken out.
    pub(super) fn drop_place(&mut self, lock: &LockName) {
        if self.by_name.get(lock).is_some_and(Option::is_none) {
            self.by_name.remove(lock);
            self.names.remove(lock);
        }
    }

    /// All records, in the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&LockName, &Record)> {
        self.from(Bound::Unbounded)
    }

    /// The records from a name on, in the order of their names.
    pub(super) fn from(&self, first: Bound<&str>) -> impl Iterator<Item = (&LockName, &Record)> {
        let names = self.names.range::<str, _>((first, Bound::Unbounded));
        names.filter_map(|lock| Some((lock, self.get(lock)?)))
    }
}

//! Index of events by lock, so that a query does not block publishers for long. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;

use fence_protocol::LockName;
use fence_protocol::wire::event::{Event, EventKind};

/// Positions of the newest events of a lock, which may be no longer remembered.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    any: Option<u64>,
    refusal: Option<u64>,
}

/// Positions of all remembered events: chains for each lock, from its newest events back.
#[derive(Debug, Default)]
pub(super) struct Index {
    locks: HashMap<LockName, Newest>,
    /// Number of refusals of each lock that has any.
    refused: BTreeMap<LockName, usize>,
    /// For each event, the newest of its lock before it.
    earlier: VecDeque<Newest>,
    /// Position of the first in `earlier`.
    first: u64,
    /// The newest event after which events of any lock may be missing.
    gap: Option<u64>,
}

impl Index {
    /// Adds the event that follows the last one.
    pub(super) fn push(&mut self, event: &Event, place: u64) {
        let mut earlier = Newest::default();
        if let Some(lock) = &event.lock {
            let newest = self.locks.entry(lock.clone()).or_default();
            earlier = *newest;
            newest.any = Some(place);
            if event.kind == EventKind::Refused {
                newest.refusal = Some(place);
                *self.refused.entry(lock.clone()).or_default() += 1;
            }
        } else if event.kind == EventKind::Gap {
            self.gap = Some(place);
        }
        self.earlier.push_back(earlier);
    }

    /// Removes the oldest event of all.
    pub(super) fn forget(&mut self, event: &Event, place: u64) {
        self.earlier.pop_front();
        self.first = place + 1;
        if self.gap == Some(place) {
            self.gap = None;
        }
        if event.kind == EventKind::Refused
            && let Some(lock) = &event.lock
            && let Some(count) = self.refused.get_mut(lock)
        {
            *count -= 1;
            if *count == 0 {
                self.refused.remove(lock);
            }
        }
        if let Some(lock) = &event.lock
            && self.locks.get(lock).is_some_and(|newest| newest.any == Some(place))
        {
            self.locks.remove(lock);
        }
    }

    /// The events of a lock, newest first.
    pub(super) fn of_lock(&self, lock: &LockName) -> impl Iterator<Item = u64> + use<'_> {
        self.chain(lock, |newest| newest.any)
    }

    /// Its refusals, newest first.
    pub(super) fn refusals(&self, lock: &LockName) -> impl Iterator<Item = u64> + use<'_> {
        self.chain(lock, |newest| newest.refusal)
    }

    /// Number of its refusals.
    pub(super) fn refusal_count(&self, lock: &LockName) -> usize {
        self.refused.get(lock).copied().unwrap_or(0)
    }

    /// Locks with refusals from `from` on, in the order of their names.
    pub(super) fn refused<'a>(
        &'a self,
        from: Bound<&'a str>,
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        self.refused.range::<str, _>((from, Bound::Unbounded)).map(|(lock, _)| lock)
    }

    fn chain(
        &self,
        lock: &LockName,
        link: fn(&Newest) -> Option<u64>,
    ) -> impl Iterator<Item = u64> + use<'_> {
        let remembered = |place: u64| (place >= self.first).then_some(place);
        let newest = self.locks.get(lock).and_then(link).and_then(remembered);
        std::iter::successors(newest, move |place| {
            let at = usize::try_from(place - self.first).ok()?;
            link(self.earlier.get(at)?).and_then(remembered)
        })
    }

    pub(super) fn gap(&self) -> Option<u64> {
        self.gap
    }

    #[cfg(test)]
    pub(super) fn lock_count(&self) -> usize {
        self.locks.len()
    }
}

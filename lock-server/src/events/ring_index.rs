//! Index of events by lock, so that a query does not block publishers for long. Pure.

use std::collections::{HashMap, VecDeque};

use fence_protocol::LockName;
use fence_protocol::wire::event::{Event, EventKind};

/// Positions of a lock's events, oldest first.
#[derive(Debug, Default)]
struct Places {
    all: VecDeque<u64>,
    refusals: VecDeque<u64>,
}

/// Positions of all remembered events.
#[derive(Debug, Default)]
pub(super) struct Index {
    locks: HashMap<LockName, Places>,
    /// The newest event after which events of any lock may be missing.
    gap: Option<u64>,
}

impl Index {
    /// Adds an event; positions only rise.
    pub(super) fn push(&mut self, event: &Event, place: u64) {
        let Some(lock) = &event.lock else {
            if event.kind == EventKind::Gap {
                self.gap = Some(place);
            }
            return;
        };
        if !self.locks.contains_key(lock) {
            self.locks.insert(lock.clone(), Places::default());
        }
        if let Some(places) = self.locks.get_mut(lock) {
            places.all.push_back(place);
            if event.kind == EventKind::Refused {
                places.refusals.push_back(place);
            }
        }
    }

    /// Removes the oldest event of all.
    pub(super) fn forget(&mut self, event: &Event, place: u64) {
        if self.gap == Some(place) {
            self.gap = None;
        }
        let Some(lock) = &event.lock else { return };
        let Some(places) = self.locks.get_mut(lock) else { return };
        for list in [&mut places.all, &mut places.refusals] {
            if list.front() == Some(&place) {
                list.pop_front();
            }
        }
        if places.all.is_empty() {
            self.locks.remove(lock);
        }
    }

    /// The events of a lock, newest first.
    pub(super) fn of_lock(&self, lock: &LockName) -> impl Iterator<Item = u64> + use<'_> {
        self.locks.get(lock).into_iter().flat_map(|places| places.all.iter().rev().copied())
    }

    /// Its refusals, newest first.
    pub(super) fn refusals(&self, lock: &LockName) -> impl Iterator<Item = u64> + use<'_> {
        self.locks.get(lock).into_iter().flat_map(|places| places.refusals.iter().rev().copied())
    }

    pub(super) fn gap(&self) -> Option<u64> {
        self.gap
    }

    #[cfg(test)]
    pub(super) fn lock_count(&self) -> usize {
        self.locks.len()
    }
}

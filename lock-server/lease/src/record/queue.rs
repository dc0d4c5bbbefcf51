//! Waiters of a lock.

use std::collections::BTreeMap;

use fence_protocol::LeaseId;

use super::{GroupId, Waiter};

/// Waiters in arrival order, each found by its place and by its lease id: one that leaves costs no
/// search, however long the queue is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// Boxed: a place of the map has room for eleven.
    by_place: BTreeMap<u64, Box<Waiter>>,
    places: BTreeMap<LeaseId, u64>,
    /// Number of waiters with a session or a group.
    bound: usize,
}

impl Queue {
    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Returns the number of waiters.
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Returns the first waiter.
    pub fn front(&self) -> Option<&Waiter> {
        self.by_place.first_key_value().map(|(_, waiter)| &**waiter)
    }

    /// Returns the last waiter.
    pub fn back(&self) -> Option<&Waiter> {
        self.by_place.last_key_value().map(|(_, waiter)| &**waiter)
    }

    /// Iterates over the waiters, the first in front.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Waiter> {
        self.by_place.values().map(|waiter| &**waiter)
    }

    /// Iterates over the waiters that depend on more than their lock.
    pub fn bound(&self) -> impl Iterator<Item = &Waiter> {
        let all = self.by_place.values().filter(|_| self.bound > 0);
        all.map(|waiter| &**waiter).filter(|waiter| waiter.is_bound()).take(self.bound)
    }

    /// Returns the waiter with this lease id.
    pub fn get(&self, lease_id: LeaseId) -> Option<&Waiter> {
        self.at(*self.places.get(&lease_id)?)
    }

    /// Returns the entry of a group.
    pub fn part(&self, lease_id: LeaseId, group: GroupId) -> Option<&Waiter> {
        self.get(lease_id).filter(|waiter| waiter.group == Some(group))
    }

    /// Returns the waiter at a place.
    pub fn at(&self, place: u64) -> Option<&Waiter> {
        self.by_place.get(&place).map(|waiter| &**waiter)
    }

    /// Returns the waiter with this lease id. Its id, place, session and group have to stay.
    pub fn get_mut(&mut self, lease_id: LeaseId) -> Option<&mut Waiter> {
        self.by_place.get_mut(self.places.get(&lease_id)?).map(|waiter| &mut **waiter)
    }

    /// Adds a waiter at its place. One with its lease id, or at its place, leaves.
    pub fn insert(&mut self, waiter: Waiter) {
        self.remove(waiter.request.lease_id);
        if let Some(other) = self.at(waiter.place).map(|other| other.request.lease_id) {
            self.remove(other);
        }
        self.bound += usize::from(waiter.is_bound());
        self.places.insert(waiter.request.lease_id, waiter.place);
        self.by_place.insert(waiter.place, Box::new(waiter));
    }

    /// Removes the waiter with this lease id.
    pub fn remove(&mut self, lease_id: LeaseId) -> Option<Waiter> {
        let place = self.places.remove(&lease_id)?;
        let waiter = *self.by_place.remove(&place)?;
        self.bound -= usize::from(waiter.is_bound());
        Some(waiter)
    }
}

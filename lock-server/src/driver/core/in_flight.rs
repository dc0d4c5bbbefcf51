//! Batches that are being committed, and the requests that have to wait for one of them.
//!
//! A batch may be decided while another is under way, as long as they have no record in common:
//! then neither depends on the outcome of the other. Sessions tie locks together, so a request that
//! needs one waits until no batch is under way, and no other begins before it is decided.

use std::collections::{HashSet, VecDeque};

use super::Submission;
use crate::driver::op::Op;
use crate::engines::contract::Key;

/// Batches that are being committed.
#[derive(Default)]
pub(crate) struct InFlight {
    count: usize,
    requests: usize,
    /// Number of those that begin to wait.
    places: usize,
    /// Number of tokens that they issue.
    tokens: u64,
    /// Records that they were decided on.
    keys: HashSet<Key>,
    /// Requests that have to wait, in their order.
    held_back: VecDeque<Box<dyn Op>>,
    /// Records that the waiting requests need: a later request must not overtake them.
    needed: HashSet<Key>,
    /// No other batch begins before these have ended.
    drains: bool,
}

impl InFlight {
    /// Returns the number of batches under way.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of their requests.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the number of those that begin to wait.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// Returns the number of requests that wait for one of them.
    pub(crate) fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// Returns the most by which the counter of a decision may exceed the engine's.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns whether no batch may begin until none is under way.
    pub(crate) fn drains(&self) -> bool {
        self.drains
    }

    /// Lets no batch begin until none is under way.
    pub(super) fn drain(&mut self) {
        self.drains = true;
    }

    pub(super) fn begin(&mut self, submission: &Submission) {
        self.count += 1;
        self.requests += submission.requests();
        self.places += submission.places;
        self.tokens += submission.batch.tokens;
        self.keys.extend(submission.groups.iter().flat_map(|decisions| &decisions.keys).cloned());
    }

    /// A batch has ended. Returns the requests that waited.
    pub(super) fn end(&mut self, submission: &Submission) -> VecDeque<Box<dyn Op>> {
        self.count -= 1;
        self.requests -= submission.requests();
        self.places -= submission.places;
        self.tokens -= submission.batch.tokens;
        for key in submission.groups.iter().flat_map(|decisions| &decisions.keys) {
            self.keys.remove(key);
        }
        self.drains &= self.count > 0;
        self.needed.clear();
        std::mem::take(&mut self.held_back)
    }

    /// Returns whether a decision on these records has to wait.
    pub(super) fn touches(&self, keys: &[Key]) -> bool {
        keys.iter().any(|key| {
            matches!(key, Key::Session(_)) || self.keys.contains(key) || self.needed.contains(key)
        })
    }

    /// Keeps a request that [has to wait](Self::touches) for these records.
    pub(super) fn hold_back(&mut self, op: Box<dyn Op>, keys: Vec<Key>) {
        self.drains |= keys.iter().any(|key| matches!(key, Key::Session(_)));
        self.needed.extend(keys);
        self.held_back.push_back(op);
    }

    /// Drops the requests that wait.
    pub(super) fn clear(&mut self) {
        self.held_back.clear();
    }
}

//! The leases that this server ends in time: those that it granted or renewed last.
//!
//! etcd's own leases are of whole seconds, and end late by as much. They are what is left when the
//! server that keeps a lease dies.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName};
use tokio::sync::Notify;

use super::values::{HeldAt, RecordAt};

/// How many locks are remembered as held by others, to read before anything is made for them.
const BUSY_MAX: usize = 10_000;
/// For how long, in milliseconds.
const BUSY_MS: u64 = 1_000;

/// A lease that is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Kept {
    pub(super) at: HeldAt,
    pub(super) record: RecordAt,
    /// When it ends, in milliseconds of our monotonic clock; `None` where a session keeps it.
    pub(super) deadline_ms: Option<u64>,
}

/// The leases that are kept.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    state: Mutex<State>,
    /// Something is due earlier than was thought.
    pub(super) sooner: Notify,
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<LockName, Kept>,
    /// When to look at which; the same as its deadline until ending it failed.
    look: HashMap<LockName, u64>,
    due: BTreeSet<(u64, LockName)>,
    busy: HashMap<LockName, u64>,
}

impl State {
    fn remove(&mut self, lock: &LockName) -> Option<Kept> {
        let kept = self.kept.remove(lock)?;
        self.look_at(lock, None);
        Some(kept)
    }

    fn look_at(&mut self, lock: &LockName, at_ms: Option<u64>) {
        if let Some(before_ms) = self.look.remove(lock) {
            self.due.remove(&(before_ms, lock.clone()));
        }
        if let Some(at_ms) = at_ms {
            self.look.insert(lock.clone(), at_ms);
            self.due.insert((at_ms, lock.clone()));
        }
    }
}

impl Keeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a lease, unless a later state of it is known.
    pub(super) fn keep(&self, lock: &LockName, kept: Kept) {
        let mut state = self.state();
        if let Some(known) = state.kept.get(lock)
            && known.at.mod_revision > kept.at.mod_revision
        {
            return;
        }
        let first_ms = state.due.first().map(|(first_ms, _)| *first_ms);
        state.look_at(lock, kept.deadline_ms);
        if kept.deadline_ms.is_some_and(|at_ms| first_ms.is_none_or(|first_ms| at_ms < first_ms)) {
            self.sooner.notify_one();
        }
        state.kept.insert(lock.clone(), kept);
    }

    /// The lease of a lock, where it is kept here.
    pub(super) fn get(&self, lock: &LockName) -> Option<Kept> {
        self.state().kept.get(lock).cloned()
    }

    /// The lease with this id, where it is kept here.
    pub(super) fn lease(&self, lock: &LockName, lease_id: LeaseId) -> Option<Kept> {
        self.get(lock).filter(|kept| kept.at.held.lease_id == lease_id)
    }

    /// When a lease ends that is kept just as it was read: one that was written since has another
    /// time, and maybe another keeper.
    pub(super) fn deadline_ms(&self, lock: &LockName, read: &HeldAt) -> Option<u64> {
        let state = self.state();
        let kept = state.kept.get(lock)?;
        let is_same = kept.at.create_revision == read.create_revision
            && kept.at.mod_revision == read.mod_revision;
        kept.deadline_ms.filter(|_| is_same)
    }

    /// A caller was told of the lease.
    pub(super) fn claim(&self, lock: &LockName, lease_id: LeaseId) {
        if let Some(kept) = self.state().kept.get_mut(lock)
            && kept.at.held.lease_id == lease_id
        {
            kept.at.held.claimed = true;
        }
    }

    /// Keeps the lease no longer that a revision up to this one created.
    pub(super) fn forget(&self, lock: &LockName, create_revision: u64) {
        let mut state = self.state();
        state.busy.remove(lock);
        if state.kept.get(lock).is_some_and(|kept| kept.at.create_revision <= create_revision) {
            state.remove(lock);
        }
    }

    /// Keeps nothing any more: etcd is an older state, whose revisions are those of other leases.
    pub(super) fn forget_all(&self) {
        let mut state = self.state();
        (state.kept, state.look, state.due) = Default::default();
    }

    /// Keeps no lease any longer that a session keeps: its end may have been missed, and no time of
    /// its own ends it here.
    pub(super) fn forget_bound(&self) {
        self.state().kept.retain(|_, kept| kept.deadline_ms.is_some());
    }

    /// What is due, the earliest first; at most so many.
    pub(super) fn due(&self, now_ms: u64, limit: usize) -> Vec<(LockName, Kept)> {
        let state = self.state();
        let due = state.due.iter().take_while(|(deadline_ms, _)| *deadline_ms <= now_ms);
        due.take(limit)
            .filter_map(|(_, lock)| Some((lock.clone(), state.kept.get(lock)?.clone())))
            .collect()
    }

    /// When the next one is due.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.state().due.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    /// Tries again to end a lease in a moment.
    pub(super) fn retry(&self, lock: &LockName, kept: &Kept, at_ms: u64) {
        let mut state = self.state();
        let same = |known: &Kept| known.at.mod_revision == kept.at.mod_revision;
        if state.kept.get(lock).is_some_and(same) {
            state.look_at(lock, Some(at_ms));
        }
    }

    /// Notes that a lock is held by somebody.
    pub(super) fn is_busy(&self, lock: &LockName, now_ms: u64) {
        let mut state = self.state();
        if state.busy.len() >= BUSY_MAX {
            state.busy.retain(|_, until_ms| now_ms < *until_ms);
        }
        if state.busy.len() < BUSY_MAX {
            state.busy.insert(lock.clone(), now_ms + BUSY_MS);
        }
    }

    /// Whether a lock was held a moment ago, so that a look is worth it.
    pub(super) fn looks_busy(&self, lock: &LockName, now_ms: u64) -> bool {
        let state = self.state();
        state.kept.contains_key(lock)
            || state.busy.get(lock).is_some_and(|until_ms| now_ms < *until_ms)
    }
}

//! Memory limit for all clients of the port together.
//!
//! When the budget is used up, the connection whose buffer made no progress for the longest time is
//! evicted: a client that announces a large command and stops sending, or does not read its
//! replies, costs others nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Size of a buffer that does not count, in bytes.
pub(super) const FREE: usize = 64 * 1024;

/// Most unread bytes of replies before their client counts as one that does not read.
const HIGH_WATER_MAX: usize = 1 << 20;

/// Number of bytes that count as progress.
const STEP: usize = 16 * 1024;

/// Bytes held for clients beyond [`FREE`] a buffer.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    /// Maximum for one buffer.
    share: usize,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    used: usize,
    last_turn: u64,
    /// Holders by the turn of their buffer's last progress.
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    held: usize,
    evicted: Arc<Notify>,
}

impl Budget {
    /// Makes a budget. One buffer may hold a quarter of `limit`, or a command of
    /// `max_command_bytes`.
    pub(super) fn new(limit: usize, max_command_bytes: usize) -> Arc<Self> {
        let share = (limit / 4).max(max_command_bytes).min(limit);
        Arc::new(Self { limit, share, books: Mutex::default() })
    }

    /// Maximum for one buffer, in bytes.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// Unread bytes of replies from which on a client counts as one that does not read.
    pub(super) fn high_water(&self) -> usize {
        (self.share / 4).clamp(FREE, HIGH_WATER_MAX)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn insert(&mut self, holder: Holder) -> u64 {
        self.last_turn += 1;
        self.holders.insert(self.last_turn, holder);
        self.last_turn
    }

    /// Evicts the least recent holders until `limit` is kept.
    fn evict(&mut self, limit: usize) {
        while self.used > limit
            && let Some((_, holder)) = self.holders.pop_first()
        {
            self.used -= holder.held;
            holder.evicted.notify_one();
        }
    }
}

/// One buffer's part of the budget; released on drop.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Arc<Budget>,
    /// Its turn in the books; `None` while it holds nothing.
    turn: Option<u64>,
    /// Bytes since its last turn.
    moved: usize,
    evicted: Arc<Notify>,
}

impl Charge {
    /// Makes a charge. `evicted` is notified when another buffer evicts this one.
    pub(super) fn new(budget: &Arc<Budget>, evicted: &Arc<Notify>) -> Self {
        Self { budget: Arc::clone(budget), turn: None, moved: 0, evicted: Arc::clone(evicted) }
    }

    /// Sets the buffer's size; `false` if it is not allowed, or the buffer was evicted.
    #[must_use]
    pub(super) fn set(&mut self, size: usize) -> bool {
        let wanted = size.saturating_sub(FREE);
        if wanted == 0 && self.turn.is_none() {
            return true;
        }
        let books = &mut *self.budget.books();
        let held = match self.turn {
            None => 0,
            Some(turn) => match books.holders.get(&turn) {
                Some(holder) => holder.held,
                None => return false,
            },
        };
        books.used = books.used - held + wanted;
        match self.turn.and_then(|turn| books.holders.get_mut(&turn)) {
            _ if wanted == 0 || wanted > self.budget.share => {
                books.used -= wanted;
                self.turn.take().map(|turn| books.holders.remove(&turn));
                return wanted == 0;
            }
            Some(holder) => holder.held = wanted,
            None => {
                let evicted = Arc::clone(&self.evicted);
                self.turn = Some(books.insert(Holder { held: wanted, evicted }));
            }
        }
        books.evict(self.budget.limit);
        self.turn.is_some_and(|turn| books.holders.contains_key(&turn))
    }

    /// Releases all of it, so that the buffer can begin anew, also after an eviction.
    pub(super) fn restart(&mut self) {
        *self = Self::new(&self.budget, &self.evicted);
    }

    /// Records bytes received from the client, or read by it. Single bytes are no progress beside a
    /// client that sends at full speed.
    pub(super) fn progress(&mut self, bytes: usize) {
        self.moved += bytes;
        let Some(turn) = self.turn else { return };
        if self.moved < STEP {
            return;
        }
        self.moved = 0;
        let books = &mut *self.budget.books();
        if turn != books.last_turn
            && let Some(holder) = books.holders.remove(&turn)
        {
            self.turn = Some(books.insert(holder));
        }
    }

    /// Returns `true` if the buffer was evicted; it must be dropped then.
    pub(super) fn is_evicted(&self) -> bool {
        self.turn.is_some_and(|turn| !self.budget.books().holders.contains_key(&turn))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(turn) = self.turn else { return };
        let books = &mut *self.budget.books();
        if let Some(holder) = books.holders.remove(&turn) {
            books.used -= holder.held;
        }
    }
}

/// Bytes on their way to Redis: they count, and are never evicted.
#[derive(Debug)]
pub(super) struct FixedCharge {
    budget: Arc<Budget>,
    held: usize,
}

impl FixedCharge {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), held: 0 }
    }

    /// Sets the number of held bytes.
    pub(super) fn set(&mut self, size: usize) {
        let wanted = size.saturating_sub(FREE);
        if wanted != self.held {
            let books = &mut *self.budget.books();
            books.used = books.used - self.held + wanted;
            self.held = wanted;
        }
    }
}

impl Drop for FixedCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charge(budget: &Arc<Budget>) -> Charge {
        Charge::new(budget, &Arc::new(Notify::new()))
    }

    #[test]
    fn released_bytes_can_be_used_again() {
        let budget = Budget::new(1000, 1000);
        let mut one = charge(&budget);
        let mut two = charge(&budget);
        assert!(one.set(FREE) && one.set(FREE + 900) && two.set(FREE + 100));
        assert!(one.set(FREE + 50), "a smaller size is always allowed");
        assert!(two.set(FREE + 950));
        drop(one);
        assert!(two.set(FREE + 1000));
        drop(two);
        assert_eq!(budget.books().used, 0);
    }

    #[test]
    fn the_least_recent_is_evicted() {
        let budget = Budget::new(1000, 1000);
        let mut charges: Vec<Charge> = (0..10).map(|_| charge(&budget)).collect();
        assert!(charges.iter_mut().all(|charge| charge.set(FREE + 100)));
        charges[1].progress(STEP - 1);
        charges[0].progress(STEP);
        let mut newest = charge(&budget);
        assert!(newest.set(FREE + 150));
        let evicted: Vec<bool> = charges.iter().map(Charge::is_evicted).collect();
        assert_eq!(evicted[..4], [false, true, true, false]);
        assert!(!charges[1].set(FREE + 1) && !charges[1].set(0), "it stays evicted");
        drop(charges);
        assert_eq!(budget.books().used, 150);
    }

    #[test]
    fn a_buffer_that_grows_without_progress_is_evicted_itself() {
        let budget = Budget::new(1000, 800);
        let mut unread = charge(&budget);
        let mut other = charge(&budget);
        assert!(unread.set(FREE + 500) && other.set(FREE + 400));
        assert!(!unread.set(FREE + 601));
        assert!(!other.is_evicted());
    }

    #[test]
    fn one_buffer_has_its_share_alone() {
        let budget = Budget::new(1000, 100);
        let mut large = charge(&budget);
        let mut other = charge(&budget);
        assert!(other.set(FREE + 250));
        assert!(!large.set(FREE + 251));
        assert!(!other.is_evicted(), "it costs others nothing");
        large.restart();
        assert!(large.set(FREE + 100));
        drop(large);
        assert_eq!(budget.books().used, 250);
    }
}

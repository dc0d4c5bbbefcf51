//! Refusals of this process: a count and the last refusals of each lock, in bounded memory.
//!
//! For operators and dashboards. No decision depends on them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::wire::fence::Refusal;
use fence_protocol::{Code, LeaseId, LockName, Owner, Token};

/// Maximum number of refusals kept for a lock.
pub const RECENT: usize = 16;
/// Maximum number of locks; the one with the oldest last refusal is dropped.
pub const LOCKS: usize = 10_000;

/// One refusal.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The token that was presented; the mark's, if the caller named its lease alone.
    pub token: Token,
    /// The lease that presented it.
    pub lease: LeaseId,
    /// Method and key.
    pub operation: String,
    /// `stale-token` or `token-collision`; `forbidden` of a script at the Redis port.
    pub code: Code,
    /// Mark that it met; the token itself if that was not refused.
    pub mark: Token,
    /// Owner, if the caller named itself.
    pub owner: Option<Owner>,
    /// Monotonic time of the refusal, in milliseconds.
    pub at_ms: u64,
}

/// The refusals of all locks.
#[derive(Debug)]
pub struct Refusals {
    state: Mutex<RefusalLog>,
    locks: usize,
}

#[derive(Debug, Default)]
struct RefusalLog {
    by_lock: HashMap<LockName, Record>,
    /// Locks by the number of their last refusal, oldest first.
    by_age: BTreeMap<u64, LockName>,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Record {
    total: u64,
    age: u64,
    recent: VecDeque<Refused>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new(LOCKS)
    }
}

impl Refusals {
    /// Tracks at most `locks` locks.
    pub fn new(locks: usize) -> Self {
        Self { state: Mutex::default(), locks }
    }

    /// Records a refusal.
    pub fn record(&self, lock: &LockName, refused: Refused) {
        let mut state = self.state();
        let RefusalLog { by_lock, by_age, next_number } = &mut *state;
        *next_number += 1;
        let record = by_lock.entry(lock.clone()).or_default();
        by_age.remove(&record.age);
        by_age.insert(*next_number, lock.clone());
        record.age = *next_number;
        record.total += 1;
        record.recent.truncate(RECENT - 1);
        record.recent.push_front(refused);
        if by_lock.len() > self.locks
            && let Some((_, oldest)) = by_age.pop_first()
        {
            by_lock.remove(&oldest);
        }
    }

    /// Returns the number of refusals on `lock` since it is tracked.
    pub fn total(&self, lock: &LockName) -> u64 {
        self.state().by_lock.get(lock).map_or(0, |record| record.total)
    }

    /// Returns the last refusals of `lock`, newest first.
    pub fn recent(&self, lock: &LockName, now_ms: u64) -> Vec<Refusal> {
        let state = self.state();
        let recent = state.by_lock.get(lock).map(|record| record.recent.iter());
        recent
            .into_iter()
            .flatten()
            .map(|refused| Refusal {
                token: refused.token,
                lease_id: refused.lease,
                operation: refused.operation.clone(),
                code: refused.code.to_string(),
                mark: refused.mark,
                ms_ago: now_ms.saturating_sub(refused.at_ms),
                owner: refused.owner.clone(),
            })
            .collect()
    }

    fn state(&self) -> MutexGuard<'_, RefusalLog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::mark;

    fn refused(token: u64) -> Refused {
        Refused {
            token: Token::new(token).unwrap(),
            lease: mark(token, 1).lease,
            operation: "PUT a".to_owned(),
            code: Code::StaleToken,
            mark: Token::new(99).unwrap(),
            owner: None,
            at_ms: token,
        }
    }

    #[test]
    fn keeps_the_last_sixteen_and_counts_all() {
        let refusals = Refusals::default();
        let lock = LockName::new("a").unwrap();
        for token in 1..=40 {
            refusals.record(&lock, refused(token));
        }
        let recent = refusals.recent(&lock, 100);
        assert_eq!(refusals.total(&lock), 40);
        assert_eq!(recent.len(), RECENT);
        assert_eq!((recent[0].token.get(), recent[0].ms_ago), (40, 60));
        assert_eq!(recent[15].token.get(), 25);
    }

    #[test]
    fn the_lock_that_was_quiet_longest_is_forgotten() {
        let refusals = Refusals::new(2);
        let locks = ["a", "b", "c"].map(|name| LockName::new(name).unwrap());
        for lock in [&locks[0], &locks[1], &locks[0], &locks[2]] {
            refusals.record(lock, refused(1));
        }
        assert_eq!(locks.map(|lock| refusals.total(&lock)), [2, 0, 1]);
    }
}

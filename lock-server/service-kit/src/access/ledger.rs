//! What a principal has of its limits. Pure: the time comes in, in monotonic milliseconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName};

use super::list::Limits;

/// A request's worth in the bucket, so that parts of it can be counted.
const WHOLE: u64 = 1_000;

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// What there is too much of.
    pub(super) what: &'static str,
    /// The limit.
    pub(super) limit: u32,
    /// When there is room again at the earliest, in milliseconds.
    pub(super) retry_after_ms: u64,
}

type Key = (LockName, LeaseId);

/// The account of one principal at one server. It outlives a reload of the file.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What is left of the burst, in thousandths of a request; none before the first.
    bucket: Option<(u64, u64)>,
    waiters: u32,
    /// Until when each lease lives at the longest.
    leases: HashMap<Key, u64>,
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    pub(super) fn request(&self, limits: &Limits, now_ms: u64) -> Result<(), Full> {
        let Some(limit) = limits.requests_per_second else { return Ok(()) };
        let (rate, mut state) = (u64::from(limit), self.state());
        let (left, at_ms) = state.bucket.unwrap_or((rate * WHOLE, now_ms));
        // `limit` requests a second are `limit` thousandths a millisecond.
        let gained = now_ms.saturating_sub(at_ms).saturating_mul(rate);
        let left = left.saturating_add(gained).min(rate * WHOLE);
        let (left, result) = match left.checked_sub(WHOLE) {
            Some(left) => (left, Ok(())),
            None => {
                let retry_after_ms = (WHOLE - left).div_ceil(rate);
                (left, Err(Full { what: "requests a second", limit, retry_after_ms }))
            }
        };
        state.bucket = Some((left, now_ms));
        result
    }

    /// Counts a request that will wait.
    pub(super) fn wait(&self, limits: &Limits) -> Result<(), Full> {
        let mut state = self.state();
        if let Some(limit) = limits.waiters.filter(|limit| state.waiters >= *limit) {
            return Err(Full { what: "requests that wait", limit, retry_after_ms: 1_000 });
        }
        state.waiters += 1;
        Ok(())
    }

    /// A request waits no more.
    pub(super) fn waited(&self) {
        let mut state = self.state();
        state.waiters = state.waiters.saturating_sub(1);
    }

    /// Makes room for a lease before it is asked for, until `until_ms`; whether it is a new one.
    pub(super) fn reserve(
        &self,
        limits: &Limits,
        key: Key,
        now_ms: u64,
        until_ms: u64,
    ) -> Result<bool, Full> {
        let Some(limit) = limits.locks else { return Ok(false) };
        let mut state = self.state();
        if let Some(until) = state.leases.get_mut(&key) {
            *until = (*until).max(until_ms);
            return Ok(false);
        }
        let room = usize::try_from(limit).unwrap_or(usize::MAX);
        if state.leases.len() >= room {
            state.leases.retain(|_, until| *until > now_ms);
        }
        if state.leases.len() >= room {
            let next = state.leases.values().min().copied().unwrap_or(now_ms);
            let retry_after_ms = next.saturating_sub(now_ms).max(1);
            return Err(Full { what: "locks held", limit, retry_after_ms });
        }
        state.leases.insert(key, until_ms);
        Ok(true)
    }

    /// A lease lives until `until_ms`. Leases that a server has not granted itself count too, from
    /// their first renewal here; a renewal is never refused.
    pub(super) fn keep(&self, limits: &Limits, key: Key, now_ms: u64, until_ms: u64) {
        let Some(limit) = limits.locks else { return };
        let mut state = self.state();
        if state.leases.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
            state.leases.retain(|_, until| *until > now_ms);
        }
        state.leases.insert(key, until_ms);
    }

    /// A lease has ended.
    pub(super) fn end(&self, key: &Key) {
        self.state().leases.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(lock: &str, lease: u128) -> Key {
        let id = format!("{:08x}-0000-4000-8000-000000000000", lease);
        (LockName::new(lock).unwrap(), id.parse().unwrap())
    }

    #[test]
    fn requests_come_in_a_burst_and_then_at_the_rate() {
        let limits = Limits { requests_per_second: Some(4), ..Limits::default() };
        let ledger = Ledger::default();
        for _ in 0..4 {
            ledger.request(&limits, 1_000).unwrap();
        }
        let full = ledger.request(&limits, 1_000).unwrap_err();
        assert_eq!((full.limit, full.retry_after_ms), (4, 250));
        assert!(ledger.request(&limits, 1_249).is_err());
        assert!(ledger.request(&limits, 1_250).is_ok(), "refused ones cost nothing");
        assert!(ledger.request(&limits, 1_251).is_err());
        let passed = (0..20).filter(|_| ledger.request(&limits, 60_000).is_ok()).count();
        assert_eq!(passed, 4, "a long rest saves up no more than a burst");
        assert!(ledger.request(&Limits::default(), 60_000).is_ok());
    }

    #[test]
    fn leases_count_until_they_end() {
        let limits = Limits { locks: Some(2), ..Limits::default() };
        let ledger = Ledger::default();
        assert_eq!(ledger.reserve(&limits, key("a", 1), 0, 100), Ok(true));
        assert_eq!(ledger.reserve(&limits, key("b", 2), 0, 200), Ok(true));
        assert_eq!(ledger.reserve(&limits, key("b", 2), 0, 200), Ok(false), "a repeat is no third");
        let full = ledger.reserve(&limits, key("c", 3), 0, 100).unwrap_err();
        assert_eq!((full.what, full.retry_after_ms), ("locks held", 100));
        ledger.keep(&limits, key("a", 1), 0, 300);
        assert!(ledger.reserve(&limits, key("c", 3), 100, 400).is_err(), "a was renewed");
        assert!(ledger.reserve(&limits, key("c", 3), 200, 400).is_ok(), "b has expired");
        ledger.end(&key("a", 1));
        assert!(ledger.reserve(&limits, key("d", 4), 200, 400).is_ok());
        ledger.keep(&limits, key("e", 5), 200, 400);
        ledger.end(&key("c", 3));
        assert!(ledger.reserve(&limits, key("f", 6), 200, 400).is_err(), "the renewed one counts");
    }

    #[test]
    fn waiters_count_while_they_wait() {
        let limits = Limits { waiters: Some(1), ..Limits::default() };
        let ledger = Ledger::default();
        ledger.wait(&limits).unwrap();
        assert_eq!(ledger.wait(&limits).unwrap_err().limit, 1);
        ledger.waited();
        ledger.wait(&limits).unwrap();
    }
}

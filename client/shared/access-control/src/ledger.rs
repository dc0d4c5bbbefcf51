//! Usage of a principal against its limits. Pure: times are arguments, in monotonic milliseconds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName, SessionId};

use crate::list::Limits;

/// Cost of a request in the bucket: thousandths, so that fractions of a request can be counted.
const WHOLE: u64 = 1_000;

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// Name of the limit.
    pub(crate) what: &'static str,
    /// Leases or sessions that the name may have at once.
    pub(crate) limit: u32,
    /// Shortest time until there is room again, in milliseconds.
    pub(crate) retry_after_ms: u64,
}

pub(crate) type Key = (LockName, LeaseId);

/// Number of sessions from which expired ones are searched.
const SESSIONS_KEPT: usize = 1_024;

/// Time for which a lease counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until this moment, in monotonic milliseconds.
    Until(u64),
    /// While this session counts.
    Of(SessionId),
}

/// A known session.
#[derive(Clone, Copy, Debug)]
struct Seen {
    until_ms: u64,
    /// `true` if the store confirmed that it is the principal's, who before that only requested it.
    is_own: bool,
}

/// Usage of one principal at one server. A reload of the access file does not reset it.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    /// Rest of the burst, in thousandths of a request; `None` before the first request.
    bucket: Option<(u64, u64)>,
    /// Waiters and streams.
    waiters: u32,
    /// Unanswered requests of each waiter.
    waiting: HashMap<Key, u32>,
    /// Latest end of each lease.
    leases: HashMap<Key, Life>,
    sessions: HashMap<SessionId, Seen>,
    /// Number of sessions at which expired ones are searched next.
    sessions_kept: usize,
}

impl LedgerState {
    /// End of a lease that is not renewed, and whose session gets no heartbeat.
    fn end_of(&self, life: Life) -> u64 {
        match life {
            Life::Until(until_ms) => until_ms,
            Life::Of(id) => self.sessions.get(&id).map_or(0, |seen| seen.until_ms),
        }
    }

    fn add_waiter(&mut self, limits: &Limits) -> Result<(), Full> {
        if let Some(limit) = limits.waiters.filter(|limit| self.waiters >= *limit) {
            return Err(Full { what: "requests that wait", limit, retry_after_ms: 1_000 });
        }
        self.waiters += 1;
        Ok(())
    }

    fn forget_leases(&mut self, now_ms: u64) {
        let mut leases = std::mem::take(&mut self.leases);
        leases.retain(|_, life| self.end_of(*life) > now_ms);
        self.leases = leases;
    }

    fn forget_sessions(&mut self, now_ms: u64) {
        self.sessions.retain(|_, seen| seen.until_ms > now_ms);
        self.sessions_kept = SESSIONS_KEPT.max(self.sessions.len() * 2);
    }

    /// Removes expired sessions once their number has doubled, so the cost an entry is constant.
    fn tidy_sessions(&mut self, now_ms: u64) {
        if self.sessions.len() >= self.sessions_kept.max(SESSIONS_KEPT) {
            self.forget_sessions(now_ms);
        }
    }
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    pub(crate) fn request(&self, limits: &Limits, now_ms: u64) -> Result<(), Full> {
        let Some(limit) = limits.requests_per_second else { return Ok(()) };
        let rate = u64::from(limit);
        let mut state = self.state();
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

    /// Counts a stream.
    pub(crate) fn stream(&self, limits: &Limits) -> Result<(), Full> {
        self.state().add_waiter(limits)
    }

    /// Ends the count of a stream.
    pub(crate) fn streamed(&self) {
        let mut state = self.state();
        state.waiters = state.waiters.saturating_sub(1);
    }

    /// Counts a request that waits for a lease. A second one for the same lease is the retry by
    /// which a client keeps its queue position, and costs nothing; a third counts.
    pub(crate) fn wait(&self, limits: &Limits, key: &Key) -> Result<(), Full> {
        let mut state = self.state();
        let requests = state.waiting.get(key).copied().unwrap_or_default();
        if requests != 1 {
            state.add_waiter(limits)?;
        }
        state.waiting.insert(key.clone(), requests + 1);
        Ok(())
    }

    /// Ends the count of a request that waited for a lease.
    pub(crate) fn waited(&self, key: &Key) {
        let mut state = self.state();
        let requests = state.waiting.get(key).copied().unwrap_or_default();
        if requests != 2 {
            state.waiters = state.waiters.saturating_sub(1);
        }
        match requests {
            0 | 1 => state.waiting.remove(key),
            _ => state.waiting.insert(key.clone(), requests - 1),
        };
    }

    /// Reserves room for a lease before it is requested; `true` if it is new. A takeover is not
    /// counted in addition to the leases of its lock, which it replaces once it is granted.
    pub(crate) fn reserve(
        &self,
        limits: &Limits,
        key: Key,
        now_ms: u64,
        life: Life,
        takes_over: bool,
    ) -> Result<bool, Full> {
        let Some(limit) = limits.locks else { return Ok(false) };
        let mut state = self.state();
        if let Some(known) = state.leases.get_mut(&key) {
            // A retry does not move a lease into a session or out of one.
            if let (Life::Until(known), Life::Until(until_ms)) = (known, life) {
                *known = (*known).max(until_ms);
            }
            return Ok(false);
        }
        let room = usize::try_from(limit).unwrap_or(usize::MAX);
        let is_full = |state: &LedgerState| {
            let is_replaced = |(lock, _): &&Key| takes_over && *lock == key.0;
            let replaced = state.leases.keys().filter(is_replaced).count();
            state.leases.len() - replaced >= room
        };
        if state.leases.len() >= room {
            state.forget_leases(now_ms);
        }
        if is_full(&state) {
            let ends = state.leases.values().map(|life| state.end_of(*life));
            let retry_after_ms = ends.min().unwrap_or(now_ms).saturating_sub(now_ms).max(1);
            return Err(Full { what: "locks held", limit, retry_after_ms });
        }
        state.leases.insert(key, life);
        Ok(true)
    }

    /// Records that all other leases of this lock have ended.
    pub(crate) fn end_others(&self, key: &Key) {
        self.state().leases.retain(|known, _| known.0 != key.0 || known == key);
    }

    /// Records that a lease lives until `until_ms`, or while its session does. Leases granted by
    /// another server count from their first renewal here; a renewal is never refused.
    pub(crate) fn keep(&self, limits: &Limits, key: Key, now_ms: u64, until_ms: u64) {
        let Some(limit) = limits.locks else { return };
        let mut state = self.state();
        if matches!(state.leases.get(&key), Some(Life::Of(_))) {
            return;
        }
        if state.leases.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
            state.forget_leases(now_ms);
        }
        state.leases.insert(key, Life::Until(until_ms));
    }

    /// Reserves room for a session before it is requested; `true` if it is new.
    pub(crate) fn reserve_session(
        &self,
        limits: &Limits,
        id: SessionId,
        now_ms: u64,
        until_ms: u64,
    ) -> Result<bool, Full> {
        let mut state = self.state();
        if state.sessions.get(&id).is_some_and(|seen| seen.until_ms > now_ms) {
            return Ok(false);
        }
        let room = limits
            .sessions
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        if state.sessions.len() >= room {
            state.forget_sessions(now_ms);
        }
        if let Some(limit) = limits.sessions.filter(|_| state.sessions.len() >= room) {
            let next = state.sessions.values().map(|seen| seen.until_ms).min().unwrap_or(now_ms);
            let retry_after_ms = next.saturating_sub(now_ms).max(1);
            return Err(Full { what: "sessions", limit, retry_after_ms });
        }
        state.tidy_sessions(now_ms);
        state.sessions.insert(id, Seen { until_ms, is_own: false });
        Ok(true)
    }

    /// Records the store's reply that a session is the principal's and lives until `until_ms`.
    /// Sessions begun at another server count from their first use here.
    pub(crate) fn keep_session(&self, id: SessionId, now_ms: u64, until_ms: u64) {
        let mut state = self.state();
        state.tidy_sessions(now_ms);
        state.sessions.insert(id, Seen { until_ms, is_own: true });
    }

    /// Records that a session has ended or is not the principal's; its leases no longer count.
    pub(crate) fn end_session(&self, id: SessionId) {
        self.state().sessions.remove(&id);
    }

    /// Returns `true` if the store confirmed that a session is the principal's, until after
    /// `now_ms`.
    pub(crate) fn owns_session(&self, id: SessionId, now_ms: u64) -> bool {
        self.state().sessions.get(&id).is_some_and(|seen| seen.is_own && seen.until_ms > now_ms)
    }

    /// Records that a lease has ended.
    pub(crate) fn end(&self, key: &Key) {
        self.state().leases.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::Life::{Of, Until};
    use super::*;

    fn session(number: u128) -> SessionId {
        format!("{number:08x}-0000-4000-8000-000000000000").parse().unwrap()
    }

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
        assert_eq!(ledger.reserve(&limits, key("a", 1), 0, Until(100), false), Ok(true));
        assert_eq!(ledger.reserve(&limits, key("b", 2), 0, Until(200), false), Ok(true));
        assert_eq!(
            ledger.reserve(&limits, key("b", 2), 0, Until(200), false),
            Ok(false),
            "a repeat is no third"
        );
        let full = ledger.reserve(&limits, key("c", 3), 0, Until(100), false).unwrap_err();
        assert_eq!((full.what, full.retry_after_ms), ("locks held", 100));
        ledger.keep(&limits, key("a", 1), 0, 300);
        assert!(
            ledger.reserve(&limits, key("c", 3), 100, Until(400), false).is_err(),
            "a was renewed"
        );
        assert!(
            ledger.reserve(&limits, key("c", 3), 200, Until(400), false).is_ok(),
            "b has expired"
        );
        ledger.end(&key("a", 1));
        assert!(ledger.reserve(&limits, key("d", 4), 200, Until(400), false).is_ok());
        ledger.keep(&limits, key("e", 5), 200, 400);
        ledger.end(&key("c", 3));
        assert!(
            ledger.reserve(&limits, key("f", 6), 200, Until(400), false).is_err(),
            "the renewed one counts"
        );
    }

    #[test]
    fn waiters_count_while_they_wait() {
        let limits = Limits { waiters: Some(1), ..Limits::default() };
        let ledger = Ledger::default();
        ledger.wait(&limits, &key("a", 1)).unwrap();
        assert_eq!(ledger.wait(&limits, &key("a", 2)).unwrap_err().limit, 1);
        assert_eq!(ledger.stream(&limits).unwrap_err().limit, 1);
        ledger.waited(&key("a", 1));
        ledger.stream(&limits).unwrap();
        ledger.streamed();
        ledger.wait(&limits, &key("a", 2)).unwrap();
    }

    /// A client sends the next request before the first one ends, and so on; more of them at a time
    /// need room.
    #[test]
    fn a_waiter_counts_once_while_its_next_request_overlaps() {
        let limits = Limits { waiters: Some(2), ..Limits::default() };
        let ledger = Ledger::default();
        let own = key("a", 1);
        ledger.wait(&limits, &own).unwrap();
        ledger.wait(&limits, &key("b", 1)).unwrap();
        for _ in 0..3 {
            ledger.wait(&limits, &own).unwrap();
            assert!(ledger.wait(&limits, &own).is_err(), "a third has no room");
            ledger.waited(&own);
        }
        ledger.waited(&key("b", 1));
        for _ in 0..2 {
            ledger.wait(&limits, &own).unwrap();
        }
        assert!(ledger.wait(&limits, &key("b", 1)).is_err(), "the third took the room");
        for _ in 0..3 {
            ledger.waited(&own);
        }
        let state = ledger.state();
        assert_eq!((state.waiters, state.waiting.len()), (0, 0));
    }

    #[test]
    fn sessions_count_until_they_end() {
        let limits = Limits { sessions: Some(2), ..Limits::default() };
        let ledger = Ledger::default();
        let reserve = |n, now_ms, until_ms| {
            ledger.reserve_session(&limits, session(n), now_ms, until_ms).map_err(|full| full.what)
        };
        assert_eq!([reserve(1, 0, 100), reserve(2, 0, 200)], [Ok(true), Ok(true)]);
        assert_eq!(reserve(2, 0, 200), Ok(false), "a repeat is no third");
        assert_eq!(reserve(3, 99, 300), Err("sessions"));
        ledger.keep_session(session(1), 50, 150);
        assert_eq!(reserve(3, 100, 300), Err("sessions"), "a heartbeat came");
        assert_eq!(reserve(3, 150, 300), Ok(true), "1 has expired");
        ledger.end_session(session(2));
        assert_eq!(reserve(4, 150, 300), Ok(true));
        ledger.keep_session(session(5), 150, 300);
        ledger.end_session(session(3));
        assert_eq!(reserve(6, 150, 300), Err("sessions"), "one of another server counts");
    }

    /// Requesting another principal's session does not make it one's own, whatever the outcome.
    #[test]
    fn only_the_store_says_whose_a_session_is() {
        let ledger = Ledger::default();
        ledger.reserve_session(&Limits::default(), session(1), 0, 100).unwrap();
        assert!(!ledger.owns_session(session(1), 0));
        ledger.keep_session(session(1), 0, 100);
        assert!(ledger.owns_session(session(1), 99) && !ledger.owns_session(session(1), 100));
        ledger.reserve_session(&Limits::default(), session(1), 100, 200).unwrap();
        assert!(!ledger.owns_session(session(1), 100), "it may be another one's by now");
    }

    #[test]
    fn leases_of_a_session_count_as_long_as_it_does() {
        let limits = Limits { locks: Some(1), ..Limits::default() };
        let ledger = Ledger::default();
        ledger.keep_session(session(1), 0, 100);
        let reserve = |lock, now_ms, life| {
            ledger
                .reserve(&limits, key(lock, 1), now_ms, life, false)
                .map_err(|full| full.retry_after_ms)
        };
        assert_eq!(reserve("a", 0, Of(session(1))), Ok(true));
        ledger.keep(&limits, key("a", 1), 0, 1);
        assert_eq!(reserve("a", 0, Until(1)), Ok(false));
        assert_eq!(reserve("b", 50, Until(60)), Err(50), "its own time says nothing");
        ledger.keep_session(session(1), 90, 190);
        assert_eq!(reserve("b", 150, Until(160)), Err(40), "a heartbeat keeps it");
        assert_eq!(reserve("b", 190, Until(300)), Ok(true), "the session is over");
        assert_eq!(reserve("b", 190, Of(session(2))), Ok(false));
        assert_eq!(reserve("c", 190, Until(200)), Err(110), "a repeat does not move a lease");
    }

    #[test]
    fn sessions_that_are_over_are_forgotten() {
        let ledger = Ledger::default();
        for number in 0..10_000_u64 {
            ledger.keep_session(session(u128::from(number)), number, number + 10);
        }
        assert!(ledger.state().sessions.len() <= SESSIONS_KEPT);
    }

    #[test]
    fn a_takeover_needs_no_room_beside_what_it_replaces() {
        let ledger = Ledger::default();
        let limits = Limits { locks: Some(1), ..Limits::default() };
        let beside = |lock, number, takes_over| {
            let until = Until(1_000);
            ledger.reserve(&limits, key(lock, number), 0, until, takes_over).is_ok()
        };
        assert!(beside("a", 1, false) && !beside("a", 2, false));
        assert!(!beside("b", 2, true), "it replaces nothing of the caller's");
        assert!(beside("a", 2, true));
        ledger.end_others(&key("a", 2));
        assert!(!beside("b", 3, false), "the new one counts");
        ledger.end(&key("a", 2));
        assert!(beside("b", 3, false), "and nothing but that");
    }
}

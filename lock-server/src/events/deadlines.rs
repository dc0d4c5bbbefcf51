//! Times at which to read leases from the store, to report how they ended. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token};

/// Delay after a lease's expiry before it is read, in milliseconds: the store's clock is not ours.
const MARGIN_MS: u64 = 20;
/// Time-out for the event of an end that must have come before another lease's grant, in
/// milliseconds.
const OVERTAKEN_MS: u64 = 200;

/// A lease. Its id alone is not enough: the leases of one acquire of several locks share it.
pub(super) type Key = (LockName, LeaseId);

/// A lease whose end was not published yet.
#[derive(Clone, Debug)]
pub(super) struct Followed {
    pub(super) token: Option<Token>,
    pub(super) owner: Option<Owner>,
    /// Time of its grant's event, on the monotonic clock.
    pub(super) granted_at_ms: u64,
    session: Option<SessionId>,
    due_ms: u64,
}

/// Leases published as granted and not as ended, by the time at which to read them.
#[derive(Debug)]
pub(super) struct Deadlines {
    leases: HashMap<Key, Followed>,
    /// The exclusive ones.
    by_lock: HashMap<LockName, LeaseId>,
    /// Those that are bound to a session: its end makes them due, and is not to search all the
    /// others.
    by_session: HashMap<SessionId, HashSet<Key>>,
    due: BTreeSet<(u64, Key)>,
    capacity: usize,
}

impl Deadlines {
    /// Follows at most `capacity` leases.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            leases: HashMap::new(),
            by_lock: HashMap::new(),
            by_session: HashMap::new(),
            due: BTreeSet::new(),
            capacity,
        }
    }

    /// Number of locks that followed leases hold.
    pub(super) fn lock_count(&self) -> usize {
        self.by_lock.len()
    }

    /// A followed lease.
    pub(super) fn lease(&self, key: &Key) -> Option<&Followed> {
        self.leases.get(key)
    }

    /// Records an event; returns `true` if a lease became due earlier than before.
    pub(super) fn record(&mut self, event: &Event, now_ms: u64) -> bool {
        match (event.kind, event.lock.clone().zip(event.lease_id)) {
            (EventKind::Granted, Some(key)) => self.granted(event, key, now_ms),
            (kind, Some(key)) if kind.is_end() => {
                self.forget(&key);
                false
            }
            (EventKind::SessionClosed, _) => self.make_session_due(event.session_id, now_ms),
            _ => false,
        }
    }

    fn granted(&mut self, event: &Event, key: Key, now_ms: u64) -> bool {
        let (lock, lease_id) = &key;
        let first = self.next_ms();
        if let Some(before) = self.by_lock.get(lock).copied().filter(|before| before != lease_id) {
            // It has ended; its event will follow, or no server has reported it.
            self.make_due(&(lock.clone(), before), now_ms + OVERTAKEN_MS);
        }
        if self.leases.len() >= self.capacity || self.leases.contains_key(&key) {
            return self.next_ms() < first;
        }
        let due_ms = now_ms.saturating_add(event.ttl_ms.unwrap_or(0)) + MARGIN_MS;
        let followed = Followed {
            token: event.token,
            owner: event.owner.clone(),
            granted_at_ms: now_ms,
            session: event.session_id,
            due_ms,
        };
        if event.mode.is_exclusive() {
            self.by_lock.insert(lock.clone(), *lease_id);
        }
        if let Some(session) = event.session_id {
            self.by_session.entry(session).or_default().insert(key.clone());
        }
        self.due.insert((due_ms, key.clone()));
        self.leases.insert(key, followed);
        first.is_none_or(|first| due_ms < first) || self.next_ms() < first
    }

    fn make_session_due(&mut self, session: Option<SessionId>, now_ms: u64) -> bool {
        let bound = session.and_then(|session| self.by_session.get(&session));
        let leases: Vec<Key> = bound.into_iter().flatten().cloned().collect();
        leases.iter().fold(false, |any, key| self.make_due(key, now_ms) | any)
    }

    /// Makes a lease due at `at_ms`, or earlier if it was due earlier; returns `true` if it is
    /// followed.
    pub(super) fn make_due(&mut self, key: &Key, at_ms: u64) -> bool {
        let Some(followed) = self.leases.get_mut(key) else { return false };
        let was_due = self.due.remove(&(followed.due_ms, key.clone()));
        if !was_due || at_ms < followed.due_ms {
            followed.due_ms = at_ms;
        }
        self.due.insert((followed.due_ms, key.clone()));
        true
    }

    /// Makes a live lease due at its new expiry.
    pub(super) fn extend(&mut self, key: &Key, now_ms: u64, expires_in_ms: u64) {
        let Some(followed) = self.leases.get_mut(key) else { return };
        self.due.remove(&(followed.due_ms, key.clone()));
        followed.due_ms = now_ms.saturating_add(expires_in_ms) + MARGIN_MS;
        self.due.insert((followed.due_ms, key.clone()));
    }

    /// Stops following a lease whose end was published.
    pub(super) fn forget(&mut self, key: &Key) {
        let Some(followed) = self.leases.remove(key) else { return };
        self.due.remove(&(followed.due_ms, key.clone()));
        if self.by_lock.get(&key.0) == Some(&key.1) {
            self.by_lock.remove(&key.0);
        }
        if let Some(session) = followed.session
            && let Some(bound) = self.by_session.get_mut(&session)
        {
            bound.remove(key);
            if bound.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }

    /// Takes at most `count` due leases; they are not due again until [`extend`](Self::extend) or
    /// [`make_due`](Self::make_due).
    pub(super) fn take_due(&mut self, now_ms: u64, count: usize) -> Vec<Key> {
        let mut taken = Vec::new();
        while taken.len() < count
            && self.next_ms().is_some_and(|due_ms| due_ms <= now_ms)
            && let Some((_, key)) = self.due.pop_first()
        {
            if self.leases.contains_key(&key) {
                taken.push(key);
            }
        }
        taken
    }

    /// Time at which the next lease is due.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.due.first().map(|(due_ms, _)| *due_ms)
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::wire::lock::LeaseMode;

    use super::*;

    fn lease(n: u128) -> LeaseId {
        LeaseId::new(uuid::Uuid::from_u128(n)).unwrap()
    }

    fn granted(n: u128, lock: &str, ttl_ms: u64) -> Event {
        let lock = LockName::new(lock).unwrap();
        let mut event = Event::new(EventKind::Granted).lock(&lock).lease(lease(n));
        event.ttl_ms = Some(ttl_ms);
        event
    }

    fn key(n: u128, lock: &str) -> Key {
        (LockName::new(lock).unwrap(), lease(n))
    }

    fn due(deadlines: &mut Deadlines, now_ms: u64) -> Vec<LeaseId> {
        deadlines.take_due(now_ms, 9).into_iter().map(|(_, lease_id)| lease_id).collect()
    }

    #[test]
    fn a_lease_is_due_when_it_expires() {
        let mut deadlines = Deadlines::new(9);
        assert!(deadlines.record(&granted(1, "a", 1_000), 0));
        assert!(!deadlines.record(&granted(2, "b", 6_000), 0));
        assert!(due(&mut deadlines, 1_000).is_empty());
        assert_eq!(due(&mut deadlines, 1_020), [lease(1)]);
        assert!(due(&mut deadlines, 1_500).is_empty(), "once taken it is not due by itself");
        deadlines.extend(&key(1, "a"), 1_020, 500);
        assert_eq!(due(&mut deadlines, 1_540), [lease(1)]);
        assert_eq!(due(&mut deadlines, 6_020), [lease(2)]);
    }

    #[test]
    fn an_overtaken_lease_is_due_soon() {
        let mut deadlines = Deadlines::new(9);
        deadlines.record(&granted(1, "a", 60_000), 0);
        assert!(deadlines.record(&granted(2, "a", 60_000), 10));
        assert_eq!(due(&mut deadlines, 210), [lease(1)]);
        let released = Event::new(EventKind::Released).lock(&key(1, "a").0).lease(lease(1));
        deadlines.record(&released, 211);
        let known = |n| deadlines.lease(&key(n, "a")).is_some();
        assert!(!known(1) && known(2));
    }

    /// A shared lease is not overtaken by the next one.
    #[test]
    fn shared_leases_are_followed_side_by_side() {
        let mut deadlines = Deadlines::new(9);
        for n in 1..=2 {
            let mode = LeaseMode::Shared;
            deadlines.record(&Event { mode, ..granted(n, "a", 60_000) }, 0);
        }
        assert!(due(&mut deadlines, 50_000).is_empty());
        assert_eq!(due(&mut deadlines, 60_020), [lease(1), lease(2)]);
    }

    /// The leases of a group share an id; each has an end of its own.
    #[test]
    fn the_leases_of_a_group_are_followed_one_by_one() {
        let mut deadlines = Deadlines::new(9);
        deadlines.record(&granted(1, "a", 1_000), 0);
        deadlines.record(&granted(1, "b", 1_000), 0);
        let released = Event::new(EventKind::Released).lock(&key(1, "a").0).lease(lease(1));
        deadlines.record(&released, 5);
        assert!(deadlines.lease(&key(1, "a")).is_none());
        assert_eq!(deadlines.take_due(1_020, 9), [key(1, "b")]);
    }

    #[test]
    fn a_session_that_closed_makes_its_leases_due() {
        let mut deadlines = Deadlines::new(9);
        let session = SessionId::new(uuid::Uuid::from_u128(7)).unwrap();
        let mut event = granted(1, "a", 60_000);
        event.session_id = Some(session);
        deadlines.record(&event, 0);
        deadlines.record(&granted(2, "b", 60_000), 0);
        let mut closed = Event::new(EventKind::SessionClosed);
        closed.session_id = Some(session);
        assert!(deadlines.record(&closed, 5));
        assert_eq!(due(&mut deadlines, 5), [lease(1)]);
        deadlines.forget(&key(1, "a"));
        assert!(deadlines.by_session.is_empty(), "nothing is kept of a session without leases");
        assert!(!deadlines.record(&closed, 6));
    }

    #[test]
    fn no_more_are_followed_than_there_is_room_for() {
        let mut deadlines = Deadlines::new(2);
        for n in 1..=3 {
            deadlines.record(&granted(n, &format!("l{n}"), 10), 0);
        }
        assert!(deadlines.lease(&key(3, "l3")).is_none());
        deadlines.forget(&key(1, "l1"));
        deadlines.record(&granted(3, "l3", 10), 0);
        assert!(deadlines.lease(&key(3, "l3")).is_some());
    }
}

//! Remembered events: a bounded list with ordered ids. Pure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LeaseId, LockName, Token};

use super::ring_index::Index;
use crate::engines::contract::ServerId;

/// The place of an event: rising within a namespace. Its text is the one of a Redis stream's ids,
/// `1795-3`; without Redis the first part is when the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId {
    /// The life of the numbering: milliseconds since 1970.
    pub ms: u64,
    /// The number in it.
    pub seq: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ms, seq) = text.split_once('-').ok_or(())?;
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse().map_err(|_| ()),
            false => Err(()),
        };
        Ok(Self { ms: number(ms)?, seq: number(seq)? })
    }
}

/// An event, and what every reader gets of it.
#[derive(Debug)]
pub(super) struct Published {
    event: Event,
    text: OnceLock<Box<str>>,
}

impl Deref for Published {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// A remembered event.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// `None` for a gap on this server, which is no event of the namespace.
    pub(super) id: Option<EventId>,
    pub(super) event: Arc<Published>,
    /// Time of publication on this server's clock, in milliseconds; negative before it started.
    pub(super) at_ms: i64,
    /// The server that reported it; zero where there is only this one.
    pub(super) origin: ServerId,
}

impl Entry {
    pub(super) fn new(id: Option<EventId>, event: Event, at_ms: i64, origin: ServerId) -> Self {
        let event = Arc::new(Published { event, text: OnceLock::new() });
        Self { id, event, at_ms, origin }
    }

    /// Its text for readers, which `render` makes for the first of them.
    pub(super) fn text(&self, render: impl FnOnce(Option<EventId>, &Event) -> Box<str>) -> &str {
        self.event.text.get_or_init(|| render(self.id, &self.event))
    }

    /// Time since its publication, in milliseconds.
    pub(super) fn ms_ago(&self, now_ms: i64) -> u64 {
        u64::try_from(now_ms - self.at_ms).unwrap_or(0)
    }

    /// The event with its age.
    pub(super) fn aged(&self, now_ms: i64) -> Event {
        let mut event = Event::clone(&self.event.event);
        event.ms_ago = self.ms_ago(now_ms);
        event
    }
}

/// The last events, oldest first. Positions are absolute, so a reader keeps its position while
/// entries are removed at the other end.
#[derive(Debug)]
pub(super) struct Ring {
    entries: VecDeque<Entry>,
    /// Position of the first entry.
    first: u64,
    capacity: usize,
    /// The id before the first entry.
    before: EventId,
    last: EventId,
    index: Index,
}

/// Position at which a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// Position of the first entry that it receives.
    pub(super) place: u64,
    /// `true` if events are missing before it.
    pub(super) has_gap: bool,
}

impl Ring {
    /// Remembers `capacity` events; those up to `before` are not known.
    pub(super) fn new(capacity: usize, before: EventId) -> Self {
        let entries = VecDeque::new();
        let index = Index::default();
        Self { entries, first: 0, capacity, before, last: before, index }
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.last = entry.id.unwrap_or(self.last);
        self.index.push(&entry.event, self.first + self.entries.len() as u64);
        self.entries.push_back(entry);
        while self.entries.len() > self.capacity
            && let Some(forgotten) = self.entries.pop_front()
        {
            self.index.forget(&forgotten.event, self.first);
            self.first += 1;
            self.before = forgotten.id.unwrap_or(self.before);
        }
    }

    /// The id of the newest event.
    pub(super) fn last(&self) -> EventId {
        self.last
    }

    /// Start of a reader that has read up to `seen`; a new reader begins with the `recent` newest
    /// events.
    ///
    /// Only an id that is known here shows that nothing is missing after it: one of a numbering
    /// that was lost, or one that was removed, does not.
    pub(super) fn start(&self, seen: Option<EventId>, recent: u64) -> Start {
        let end = self.first + self.entries.len() as u64;
        let Some(seen) = seen else {
            let place = end.saturating_sub(recent).max(self.first);
            return Start { place, has_gap: false };
        };
        if seen == self.before {
            return Start { place: self.first, has_gap: false };
        }
        match self.entries.iter().rposition(|entry| entry.id == Some(seen)) {
            Some(at) => Start { place: self.first + at as u64 + 1, has_gap: false },
            None => Start { place: self.first, has_gap: true },
        }
    }

    /// At most `count` entries from `place` on; `None` if they were removed already.
    pub(super) fn from(&self, place: u64, count: usize) -> Option<Vec<Entry>> {
        let skip = usize::try_from(place.checked_sub(self.first)?).ok()?;
        Some(self.entries.iter().skip(skip).take(count).cloned().collect())
    }

    /// The newest entries of a lock that `wanted` takes, newest first, at most `count`.
    pub(super) fn of_lock(
        &self,
        lock: &LockName,
        count: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Vec<Entry> {
        self.at(self.index.of_lock(lock), count, wanted)
    }

    /// The newest refusals of a lock that `wanted` takes, newest first, at most `count`.
    pub(super) fn refusals(
        &self,
        lock: &LockName,
        count: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Vec<Entry> {
        self.at(self.index.refusals(lock), count, wanted)
    }

    /// Index of the entries by lock.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The newest gap among the events of all locks.
    pub(super) fn gap(&self) -> Option<Entry> {
        self.at(self.index.gap().into_iter(), 1, |_| true).pop()
    }

    /// The locks that a server has granted, and whose leases have not ended since.
    pub(super) fn granted_by(&self, server: ServerId) -> Vec<LockName> {
        let mut live: HashMap<(&LockName, LeaseId), bool> = HashMap::new();
        for entry in &self.entries {
            let event = &*entry.event;
            let Some(lease) = event.lock.as_ref().zip(event.lease_id) else { continue };
            if event.kind == EventKind::Granted {
                live.insert(lease, entry.origin == server);
            } else if event.kind.is_end() {
                live.remove(&lease);
            }
        }
        let granted = live.into_iter().filter(|(_, is_its_own)| *is_its_own);
        granted.map(|((lock, _), _)| lock.clone()).collect()
    }

    fn at(
        &self,
        places: impl Iterator<Item = u64>,
        count: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Vec<Entry> {
        let entry = |place: u64| {
            let at = usize::try_from(place.checked_sub(self.first)?).ok()?;
            self.entries.get(at)
        };
        places.filter_map(entry).filter(|entry| wanted(&entry.event)).take(count).cloned().collect()
    }
}

/// Leases published as granted or as ended, so that each is published once; the oldest are removed.
#[derive(Debug)]
pub(super) struct PublishedOnce {
    known: HashSet<Key>,
    by_age: VecDeque<Key>,
    capacity: usize,
}

impl PublishedOnce {
    pub(super) fn new(capacity: usize) -> Self {
        Self { known: HashSet::new(), by_age: VecDeque::new(), capacity }
    }

    /// Records the event; `true` if it is new.
    pub(super) fn is_news(&mut self, event: &Event) -> bool {
        let Some(key) = key_of(event) else { return true };
        if !self.known.insert(key.clone()) {
            return false;
        }
        self.by_age.push_back(key);
        if self.by_age.len() > self.capacity
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

/// A lease, which its id alone does not name where several locks were acquired at once, or where an
/// id that was forgotten is granted anew; and whether this is its end.
pub(super) type Key = (LeaseId, Option<LockName>, Option<Token>, bool);

/// Key of an event that happens to a lease once: its grant or its end.
pub(super) fn key_of(event: &Event) -> Option<Key> {
    let is_end = event.kind.is_end();
    let once = is_end || event.kind == EventKind::Granted;
    let lease_id = event.lease_id.filter(|_| once)?;
    Some((lease_id, event.lock.clone(), event.token, is_end))
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;

    fn id(seq: u64) -> EventId {
        EventId { ms: 7, seq }
    }

    fn ring(capacity: usize, count: u64) -> Ring {
        let mut ring = Ring::new(capacity, id(0));
        for seq in 1..=count {
            ring.push(Entry::new(Some(id(seq)), Event::new(EventKind::Queued), 0, ServerId(1)));
        }
        ring
    }

    fn seqs(ring: &Ring, start: Start) -> Vec<u64> {
        let entries = ring.from(start.place, 100).unwrap();
        entries.iter().filter_map(|entry| entry.id).map(|id| id.seq).collect()
    }

    #[test]
    fn ids_are_read_back_and_nothing_else_is() {
        assert_eq!("7-12".parse(), Ok(EventId { ms: 7, seq: 12 }));
        assert_eq!(id(12).to_string(), "7-12");
        for bad in ["", "7", "-", "7-", "+7-1", "7-1-1", "x-1", "7-99999999999999999999", " 7-1"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn who_read_an_event_that_is_remembered_misses_nothing() {
        let ring = ring(4, 9);
        for seen in 5..=9 {
            let start = ring.start(Some(id(seen)), 0);
            assert!(!start.has_gap, "{seen}");
            assert_eq!(seqs(&ring, start), (seen.max(5) + 1..=9).collect::<Vec<_>>());
        }
        assert_eq!(seqs(&ring, ring.start(None, 0)), Vec::<u64>::new());
        assert_eq!(seqs(&ring, ring.start(None, 3)), [7, 8, 9]);
        assert_eq!(seqs(&ring, ring.start(None, 99)), [6, 7, 8, 9]);
    }

    /// A reader of an id that is not known here may have missed events.
    #[test]
    fn an_id_that_is_not_known_is_a_gap() {
        let ring = ring(4, 9);
        for seen in [id(4), id(1), id(10), EventId { ms: 6, seq: 7 }, EventId { ms: 8, seq: 7 }] {
            let start = ring.start(Some(seen), 9);
            assert!(start.has_gap, "{seen}");
            assert_eq!(seqs(&ring, start), [6, 7, 8, 9]);
        }
    }

    /// The index by lock finds the same as a search of all entries, and nothing of a lock that is
    /// forgotten stays.
    #[test]
    fn a_locks_events_are_found_without_looking_at_all() {
        use EventKind::{Gap, Granted, Refused};
        let lock = |n: u64| LockName::new(&format!("l{n}")).unwrap();
        let mut ring = Ring::new(8, id(0));
        for seq in 1..=100 {
            let kind = if seq % 3 == 0 { Refused } else { Granted };
            let mut event = Event::new(kind).lock(&lock(seq * seq % 7));
            if seq % 25 == 0 {
                event = Event::new(Gap);
            }
            ring.push(Entry::new(Some(id(seq)), event, 0, ServerId(1)));
            let scan = |wanted: &dyn Fn(&Event) -> bool| {
                let found = ring.entries.iter().rev().filter(|entry| wanted(&entry.event));
                found.filter_map(|entry| entry.id).collect::<Vec<_>>()
            };
            let ids = |entries: Vec<Entry>| {
                entries.into_iter().filter_map(|entry| entry.id).collect::<Vec<_>>()
            };
            for n in 0..7 {
                let is_of = |event: &Event| event.lock == Some(lock(n));
                assert_eq!(ids(ring.of_lock(&lock(n), 99, |_| true)), scan(&is_of));
                let is_refusal = |event: &Event| is_of(event) && event.kind == Refused;
                assert_eq!(ids(ring.refusals(&lock(n), 99, |_| true)), scan(&is_refusal));
                let refusals = scan(&is_refusal).len();
                assert_eq!(ring.index.refusal_count(&lock(n)), refusals);
                let mut listed = ring.index.refused(Bound::Unbounded);
                assert_eq!(listed.any(|name| *name == lock(n)), refusals > 0);
                let one: Vec<_> = scan(&is_of).into_iter().take(1).collect();
                assert_eq!(ids(ring.of_lock(&lock(n), 1, |_| true)), one);
            }
            let gaps = scan(&|event| event.kind == Gap);
            assert_eq!(ring.gap().and_then(|entry| entry.id), gaps.first().copied());
        }
        assert!(ring.index.lock_count() <= 8);
    }

    #[test]
    fn the_live_leases_of_a_server_are_known() {
        let mut ring = Ring::new(9, id(0));
        let lock = |name: &str| LockName::new(name).unwrap();
        let mut push = |kind, n: u128, name: &str, origin| {
            let lease = LeaseId::new(uuid::Uuid::from_u128(n)).unwrap();
            let event = Event::new(kind).lock(&lock(name)).lease(lease);
            ring.push(Entry::new(None, event, 0, ServerId(origin)));
        };
        push(EventKind::Granted, 1, "a", 1);
        push(EventKind::Granted, 2, "b", 1);
        push(EventKind::Granted, 3, "c", 2);
        push(EventKind::Released, 2, "b", 2);
        assert_eq!(ring.granted_by(ServerId(1)), [lock("a")]);
        assert_eq!(ring.granted_by(ServerId(2)), [lock("c")]);
    }

    #[test]
    fn a_place_that_is_forgotten_is_not_made_up() {
        let ring = ring(4, 9);
        assert!(ring.from(4, 1).is_none());
        assert_eq!(ring.from(5, 1).unwrap()[0].id, Some(id(6)));
        assert!(ring.from(9, 1).unwrap().is_empty());
        assert_eq!(ring.last(), id(9));
    }

    #[test]
    fn a_grant_and_an_end_are_reported_once() {
        let lease = |n: u128| LeaseId::new(uuid::Uuid::from_u128(n)).unwrap();
        let event = |kind, n| Event::new(kind).lease(lease(n));
        let mut published = PublishedOnce::new(4);
        assert!(published.is_news(&event(EventKind::Granted, 1)));
        assert!(!published.is_news(&event(EventKind::Granted, 1)));
        assert!(published.is_news(&event(EventKind::Expired, 1)));
        assert!(!published.is_news(&event(EventKind::Released, 1)), "it ended already");
        assert!(
            published.is_news(&event(EventKind::Queued, 1))
                && published.is_news(&event(EventKind::Queued, 1))
        );
        for n in 2..=5 {
            assert!(published.is_news(&event(EventKind::Granted, n)));
        }
        assert!(published.is_news(&event(EventKind::Granted, 1)), "the oldest made room");
        // An id that was forgotten is granted anew, with another token.
        let mut again = event(EventKind::Granted, 1);
        again.token = Token::new(7).ok();
        assert!(published.is_news(&again) && !published.is_news(&again));
        again.kind = EventKind::Expired;
        assert!(published.is_news(&again));
        // A group has one id and several leases.
        let of = |lock| event(EventKind::Granted, 9).lock(&LockName::new(lock).unwrap());
        assert!(
            published.is_news(&of("a"))
                && published.is_news(&of("b"))
                && !published.is_news(&of("a"))
        );
    }
}

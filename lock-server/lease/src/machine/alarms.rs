//! Changes by time, in slices: many leases that end together hold up no other lock.
//!
//! A slice handles the waits that are over first, whose clients have to be answered, then leases,
//! lock-delays and idle records, each by its time, as far as it has room. All that is due of one
//! lock is handled in the order of its times, and before a transition that asks for the lock.

use std::collections::{BTreeSet, HashMap};

use fence_protocol::{LeaseId, LockName};

use super::Machine;
use crate::record::Waiter;

/// Most waits of one lock that end ahead of a transition that asks for the lock.
const WAITS_AHEAD: usize = 64;

/// Reason for a timed check of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// A lease expires, a lock-delay ends, or the record becomes idle.
    Record,
    /// The waiter times out. A group has one alarm, at the first of its locks.
    Waiter(LeaseId),
}

/// An alarm with its time and its lock.
pub(super) type Entry = (u64, LockName, Alarm);

/// Alarms that are set.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    records: BTreeSet<Entry>,
    waits: BTreeSet<Entry>,
    /// Number of waits that began since [`Machine::forget_growth`].
    new_waits: usize,
}

impl Alarms {
    pub(super) fn insert(&mut self, entry: Entry) {
        self.new_waits += usize::from(matches!(entry.2, Alarm::Waiter(_)));
        self.set_of(entry.2).insert(entry);
    }

    pub(super) fn remove(&mut self, entry: &Entry) -> bool {
        self.set_of(entry.2).remove(entry)
    }

    fn contains(&self, entry: &Entry) -> bool {
        match entry.2 {
            Alarm::Record => self.records.contains(entry),
            Alarm::Waiter(_) => self.waits.contains(entry),
        }
    }

    fn set_of(&mut self, alarm: Alarm) -> &mut BTreeSet<Entry> {
        match alarm {
            Alarm::Record => &mut self.records,
            Alarm::Waiter(_) => &mut self.waits,
        }
    }

    /// Returns the alarms that are due, in the order in which they are handled.
    fn due(&self, now_ms: u64) -> impl Iterator<Item = &Entry> {
        let is_due = move |entry: &&Entry| entry.0 <= now_ms;
        self.waits.iter().take_while(is_due).chain(self.records.iter().take_while(is_due))
    }

    fn next_due(&self, now_ms: u64) -> Option<Entry> {
        self.due(now_ms).next().cloned()
    }

    fn first_ms(&self) -> Option<u64> {
        let first = [self.waits.first(), self.records.first()];
        first.into_iter().flatten().map(|(at_ms, ..)| *at_ms).min()
    }
}

/// Alarms of a lock that are due.
#[derive(Debug)]
pub struct Due {
    /// Lock that they are set for.
    pub lock: LockName,
    alarms: Vec<(u64, Alarm)>,
}

impl Machine {
    /// Lets [`tick`](Self::tick) handle `count` alarms until the next slice, or as many as will
    /// come of what was loaded or created since [`forget_growth`](Self::forget_growth), so that
    /// they do not pile up: one of each wait, and three of each record, whose lease ends, whose
    /// lock-delay ends, and which becomes idle. A lease whose time is over keeps its lock until its
    /// alarm is handled, or until a transition asks for the lock.
    pub fn begin_slice(&mut self, count: usize) {
        self.slice = count.max(self.alarms.new_waits + 3 * self.records.created());
    }

    /// Forgets what was loaded or created so far: a slice has had room for it.
    pub fn forget_growth(&mut self) {
        self.alarms.new_waits = 0;
        self.records.forget_created();
    }

    /// Leaves what is due as it is until the next slice.
    pub fn end_slice(&mut self) {
        self.slice = 0;
    }

    /// Applies what is due: expired leases, lock-delays, waiters that time out, sessions, idle
    /// records. Every other transition begins with it; if nothing is due, it costs next to
    /// nothing. What is due beyond a [slice](Self::begin_slice) is left as it is.
    pub fn tick(&mut self, now_ms: u64) {
        self.resume(now_ms);
        self.tick_sessions(now_ms);
        self.pass_on(now_ms);
        while self.slice > 0
            && let Some(entry) = self.alarms.next_due(now_ms)
        {
            self.slice -= 1;
            self.ring_in_order(now_ms, entry);
        }
    }

    /// Returns what [`tick`](Self::tick) would handle in this slice, by lock. The related records
    /// must be current when the result is committed.
    pub fn due(&self, now_ms: u64) -> Vec<Due> {
        let mut places: HashMap<&LockName, usize> = HashMap::new();
        let mut due: Vec<Due> = Vec::new();
        for (at_ms, lock, alarm) in self.alarms.due(now_ms).take(self.slice) {
            let place = *places.entry(lock).or_insert_with(|| {
                due.push(Due { lock: lock.clone(), alarms: Vec::new() });
                due.len() - 1
            });
            due[place].alarms.push((*at_ms, *alarm));
        }
        due
    }

    /// Handles alarms that were due and are still set.
    pub fn handle(&mut self, now_ms: u64, due: Due) {
        for (at_ms, alarm) in due.alarms {
            self.ring_in_order(now_ms, (at_ms, due.lock.clone(), alarm));
        }
    }

    /// Returns the time of the next change by [`tick`](Self::tick).
    pub fn next_alarm_ms(&self) -> Option<u64> {
        [self.alarms.first_ms(), self.sessions.next_alarm_ms(), self.paused_until_ms()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Like [`tick`](Self::tick), and handles what is due of one lock ahead of what the slice
    /// leaves. Of its waiters, those at the front count, [`WAITS_AHEAD`] at most: one behind them
    /// stays until its own alarm is handled.
    pub(crate) fn tick_for(&mut self, now_ms: u64, lock: &LockName) {
        self.tick(now_ms);
        let mut waits = WAITS_AHEAD;
        while self.is_alarm_due(now_ms)
            && let Some(entry) = self.first_alarm(now_ms, lock, waits > 0)
        {
            waits -= usize::from(matches!(entry.2, Alarm::Waiter(_)));
            self.ring(now_ms, entry);
        }
    }

    /// Like [`tick_for`](Self::tick_for), for several locks.
    pub(super) fn tick_for_all<'a>(
        &mut self,
        now_ms: u64,
        locks: impl IntoIterator<Item = &'a LockName>,
    ) {
        self.tick(now_ms);
        locks.into_iter().for_each(|lock| self.tick_for(now_ms, lock));
    }

    fn is_alarm_due(&self, now_ms: u64) -> bool {
        self.alarms.first_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Returns the first alarm that is due of a lock, and of the other locks of the group at its
    /// front: the alarm of each record and of each first waiter.
    fn first_alarm(&self, now_ms: u64, lock: &LockName, with_waits: bool) -> Option<Entry> {
        let front = self.records.get(lock)?.queue.front();
        let group = front.and_then(|front| self.groups.get(&front.group?));
        let others = group.into_iter().flat_map(|group| group.parts.iter().map(|(lock, _)| lock));
        let locks = std::iter::once(lock).chain(others.filter(|other| *other != lock));
        let entries = locks.filter_map(|lock| Some((lock, self.records.get(lock)?)));
        let entries = entries.flat_map(|(lock, record)| {
            let at_ms = self.alarm_ms(record);
            let ends = at_ms.map(|at_ms| (at_ms, lock.clone(), Alarm::Record));
            let front = record.queue.front().filter(|_| with_waits);
            ends.into_iter().chain(front.map(|front| self.alarm_of(lock, front)))
        });
        let due = entries.filter(|entry| entry.0 <= now_ms && self.alarms.contains(entry));
        due.min_by_key(|(at_ms, lock, alarm)| (*at_ms, *alarm, lock.clone()))
    }

    /// Returns the alarm of a waiter in the queue of a lock.
    fn alarm_of(&self, lock: &LockName, waiter: &Waiter) -> Entry {
        let group = waiter.group.and_then(|group| self.groups.get(&group));
        let at = group.map_or(lock, |group| group.first_lock());
        (self.patience_ms(waiter), at.clone(), Alarm::Waiter(waiter.request.lease_id))
    }

    /// Handles an alarm if it is set, after what was due of its lock before it.
    fn ring_in_order(&mut self, now_ms: u64, entry: Entry) {
        let is_earlier = |(at_ms, _, alarm): &Entry| (*at_ms, *alarm) < (entry.0, entry.2);
        while matches!(entry.2, Alarm::Waiter(_))
            && let Some(earlier) = self.first_alarm(entry.0, &entry.1, true).filter(is_earlier)
        {
            self.ring(now_ms, earlier);
        }
        self.ring(now_ms, entry);
    }

    /// Handles an alarm if it is set.
    fn ring(&mut self, now_ms: u64, entry: Entry) {
        if !self.alarms.remove(&entry) {
            return;
        }
        let (_, lock, alarm) = entry;
        match alarm {
            Alarm::Record => self.settle(now_ms, lock),
            Alarm::Waiter(lease_id) => self.time_out(now_ms, &lock, lease_id),
        }
        self.pass_on(now_ms);
    }
}

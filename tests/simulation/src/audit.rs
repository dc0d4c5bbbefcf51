//! The promises, checked independently of the rules: over every commit (`commits.rs`), over every
//! reply (`replies.rs`), and over what should have happened by itself (`waits.rs`).
//!
//! The audit sees what no server does: the records as they stand, the true time, and which client
//! still believes in which lease. The first broken promise ends the simulation.

mod commits;
mod replies;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::{LeaseId, LockName, SessionId};
use lease::{Mode, Reading, Record, Session, StoredSession, StoredWaiter, place_of};
use lock_server::engines::contract::{Key, ServerId, Snapshot, Version};

pub use replies::ReportedLease;

/// For how long ended ids are remembered, ms: the default of the servers.
const RETENTION_MS: u64 = 10_000;
/// A server that was silent may be taken for dead for so long after it is back, ms.
const SUSPECT_MS: u64 = 5_000;
/// Time after a fault in which waits have no bound, ms: lost requests are retried, and servers that
/// stopped become known to be dead.
pub const RECOVERY_MS: u64 = 8_000;
/// Time for which a server may go by a list of live servers from before a step of the clock, ms: it
/// may be paused for 6 s.
const STEP_MS: u64 = 12_000;
/// As [`RECOVERY_MS`], where a server stops and nothing else goes wrong: others know of it when it
/// was silent for 3 s, and look once a second.
pub const STOP_MS: u64 = 5_000;
/// A server that stopped and counts as alive no more is known to be dead after so long, ms.
const DEAD_MS: u64 = 1_500;

/// Observed state of a simulation, and the first promise that was broken.
#[derive(Debug, Default)]
pub struct Audit {
    kind: Option<Kind>,
    violation: Option<String>,
    locks: BTreeMap<LockName, Record>,
    sessions: BTreeMap<SessionId, Session>,
    /// Every token that was issued.
    issued: BTreeMap<u64, (LockName, LeaseId)>,
    highest: BTreeMap<LockName, u64>,
    grants: BTreeMap<(LockName, LeaseId), Granted>,
    requests: BTreeMap<LeaseId, Request>,
    servers: BTreeMap<u32, Server>,
    /// Servers go by clocks of their own: the engine has none.
    has_own_clocks: bool,
    beliefs: BTreeMap<LockName, Vec<replies::Belief>>,
    /// When a lock was last changed.
    changed_ms: BTreeMap<LockName, u64>,
    /// The last version of a record whose value was seen to say something: it is not parsed again.
    telling: BTreeMap<LockName, Version>,
    /// Locks that an operator has revoked leases of.
    revoked: BTreeSet<LockName>,
    /// Sessions that their clients ended.
    ended_sessions: BTreeSet<SessionId>,
    /// Since when a lock is free and its first waiter is not granted.
    overdue: BTreeMap<LockName, (LeaseId, u64)>,
    /// Grants that were rolled back before their callers had left, with what is to be said of that.
    rolled_back: Vec<(LeaseId, String)>,
    /// Since when a request waits for a reply without a place in its queues.
    without_place: BTreeMap<LeaseId, u64>,
    /// Waits have a bound from then on: 0 where nothing went wrong yet.
    calm_from_ms: u64,
    /// When the engine's clock was last stepped.
    clock_stepped_ms: Option<u64>,
    /// It was stepped back.
    is_stepped_back: bool,
    /// It jumped, and records were dropped of which nothing lives.
    has_jumped: bool,
    /// Steps forward that are never corrected: time of the step and its size, ms.
    shortened: Vec<(u64, u64)>,
    /// When something was last committed on a record, and how long the replies to that took on
    /// their way, ms. Servers cannot know that.
    ways_back: BTreeMap<Key, Vec<(u64, u64)>>,
    /// When a server stood still, and for how long.
    stalls: Vec<(u64, u64)>,
    /// Number of times each kind of event happened, for the summary.
    counts: BTreeMap<&'static str, u64>,
}

/// Memory that the audit takes for the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The engine's: several servers.
    Shared,
    /// That of the only server.
    Alone,
}

/// A grant that was committed.
#[derive(Clone, Copy, Debug)]
struct Granted {
    token: u64,
    at_ms: u64,
    /// When its end was committed.
    ended_ms: Option<u64>,
    /// The engine lost it.
    is_lost: bool,
}

/// A request with everything that its client does about it.
#[derive(Debug, Default)]
struct Request {
    locks: BTreeSet<LockName>,
    mode: Mode,
    session: Option<SessionId>,
    /// A call of it ended without a reply, or with one that names no outcome.
    was_left: bool,
    /// The client received the grant.
    is_received: bool,
    /// Calls that wait for a reply, and when the first and the last one began.
    open_calls: u32,
    first_called_ms: Option<u64>,
    called_ms: u64,
    /// For how long each of them waits.
    wait_ms: u64,
    /// When its client hung up on the last of them.
    left_ms: Option<u64>,
    /// A call of it ended otherwise: what its server knows of its client is not known.
    is_answered: bool,
    /// The locks whose release began.
    released: BTreeSet<LockName>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Server {
    until_ms: u64,
    /// When it was last silent for too long.
    lapsed_ms: Option<u64>,
    is_stopped: bool,
    /// By how much the engine's clock is ahead of its own, ms, where it goes by its own.
    ahead_ms: i64,
}

/// A commit.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The time of the simulation.
    pub now_ms: u64,
    /// The engine's time.
    pub engine_ms: u64,
    /// The counter before the batch, and how many tokens it took.
    pub tokens: (u64, u64),
    /// Transit time of the reply, ms.
    pub back_ms: u64,
}

impl Audit {
    /// An audit of servers that share an engine, or of one that is alone.
    pub fn for_kind(kind: Kind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// `true` if anything is checked.
    pub fn is_on(&self) -> bool {
        self.kind.is_some()
    }

    fn is_shared(&self) -> bool {
        self.kind == Some(Kind::Shared)
    }

    /// The first broken promise.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Number of times each kind of event happened.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn check(&mut self, holds: bool, broken: impl FnOnce() -> String) {
        if !holds && self.violation.is_none() {
            self.violation = Some(broken());
        }
    }

    /// Checks that a server's highest known token was issued: it takes an engine with a lower
    /// counter for one that lost its memory.
    pub fn counter_is_known(&mut self, known: u64, counter: u64) {
        let holds = known <= counter || !self.is_on() || !self.is_shared();
        self.check(holds, || format!("a server knows of token {known}, the engine of {counter}"));
    }

    /// The highest token that was issued.
    pub fn highest_issued(&self) -> u64 {
        self.issued.last_key_value().map_or(0, |(token, _)| *token)
    }

    /// The engine forgot what was not durable: leases are gone, and their holders still believe.
    pub fn memory_was_lost(&mut self, now_ms: u64, read: impl Fn(&Key) -> Snapshot) {
        self.count("losses");
        self.trouble(now_ms, RECOVERY_MS);
        // What was removed since is there again.
        for (lock, changed_ms) in &mut self.changed_ms {
            self.locks
                .insert(lock.clone(), record_of(&self.servers, &read(&Key::Lock(lock.clone()))));
            // A reply that is on its way says what was true before.
            *changed_ms = now_ms;
        }
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            match session_of(&self.servers, &read(&Key::Session(id))) {
                Some(found) => self.sessions.insert(id, found),
                None => self.sessions.remove(&id),
            };
        }
        // Places in queues are lost too, and so is which servers live.
        self.requests.values_mut().for_each(|request| request.was_left = true);
        self.servers.values_mut().for_each(|server| server.lapsed_ms = Some(now_ms));
        for ((lock, lease), grant) in &mut self.grants {
            let record = self.locks.get(lock);
            let lives = record.is_some_and(|record| record.holders.get(*lease).is_some());
            grant.is_lost = true;
            grant.ended_ms = if lives { None } else { grant.ended_ms.or(Some(now_ms)) };
        }
    }

    /// Records that a server is paused: it reads replies that much later.
    pub fn server_stalls(&mut self, now_ms: u64, ms: u64) {
        self.stalls.push((now_ms, ms));
    }

    /// The engine's clock was stepped back: what was over lives again.
    pub fn clock_stepped_back(&mut self, now_ms: u64) {
        self.is_stepped_back = true;
        self.stepped(now_ms);
    }

    /// The engine's clock was stepped forward by less than servers notice: leases end that much
    /// earlier.
    pub fn clock_stepped_forward(&mut self, now_ms: u64, ms: u64) {
        self.shortened.push((now_ms, ms));
        for belief in self.beliefs.values_mut().flatten() {
            belief.until_ms = belief.until_ms.saturating_sub(ms);
        }
        self.stepped(now_ms);
    }

    /// The engine's clock jumped, and was corrected: leases keep their time.
    pub fn clock_jumped(&mut self, now_ms: u64) {
        self.count("clock jumps");
        self.has_jumped = true;
        self.trouble(now_ms, RECOVERY_MS);
    }

    fn stepped(&mut self, now_ms: u64) {
        self.count("clock steps");
        self.clock_stepped_ms = Some(now_ms);
        self.trouble(now_ms, RECOVERY_MS);
    }

    /// By how much the engine's clock was stepped forward since; without what its servers knew
    /// then.
    fn shortened_ms(&self, since_ms: u64) -> u64 {
        let late = self.shortened.iter().filter(|(at_ms, _)| at_ms + STEP_MS > since_ms);
        late.map(|(_, ms)| ms).sum()
    }

    /// A server starts that goes by its own clock.
    pub fn server_has_clock(&mut self, server: ServerId, ahead_ms: i64) {
        self.has_own_clocks = true;
        self.servers.entry(server.0).or_default().ahead_ms = ahead_ms;
    }

    /// By how much the engine's clock is ahead of the one that a server goes by, ms.
    pub fn ahead_ms(&self, server: ServerId) -> i64 {
        ahead_ms(&self.servers, server.0)
    }

    /// A server said that it lives.
    pub fn server_beat(&mut self, now_ms: u64, server: ServerId, ms: u64) {
        let server = self.servers.entry(server.0).or_default();
        if server.until_ms > 0 && server.until_ms <= now_ms {
            server.lapsed_ms = Some(now_ms);
        }
        server.until_ms = now_ms + ms;
    }

    /// A server stops, or begins to.
    pub fn server_stopped(&mut self, now_ms: u64, server: ServerId) {
        self.count("stops");
        self.trouble(now_ms, STOP_MS);
        self.servers.entry(server.0).or_default().is_stopped = true;
    }

    /// Something goes wrong on purpose that may delay what has to happen by itself, for so long.
    pub fn trouble(&mut self, now_ms: u64, ms: u64) {
        self.calm_from_ms = self.calm_from_ms.max(now_ms + ms);
    }

    /// By how much a reply about a record may promise more than the engine honours, where its
    /// request was sent at `invoked_ms`.
    fn unknowable_ms(&self, key: &Key, invoked_ms: u64) -> u64 {
        let ways = self.ways_back.get(key).into_iter().flatten();
        let back_ms = ways.filter(|(at_ms, _)| *at_ms >= invoked_ms).map(|(_, ms)| *ms).max();
        let others = self.shortened.iter().chain(&self.stalls);
        let others = others.filter(|(at_ms, _)| *at_ms >= invoked_ms);
        back_ms.unwrap_or(0) + others.map(|(_, ms)| *ms).sum::<u64>()
    }

    /// `true` if nothing has gone wrong yet.
    fn is_calm(&self) -> bool {
        self.calm_from_ms == 0
    }

    /// `true` if others may take a server for dead. After a step of the clock that is any server:
    /// one that got its list of live servers before the step takes a server that began after it for
    /// one that is not listed, until it gets the next list, late if it is paused. No lease depends
    /// on that: a waiter loses its place, and its server retries.
    fn is_suspect(&self, now_ms: u64, server: u32) -> bool {
        if self.clock_stepped_ms.is_some_and(|at_ms| now_ms < at_ms + STEP_MS) {
            return true;
        }
        self.servers.get(&server).is_none_or(|server| {
            let lapsed = server.lapsed_ms.is_some_and(|at_ms| now_ms < at_ms + SUSPECT_MS);
            server.is_stopped || server.until_ms <= now_ms || lapsed
        })
    }

    /// `true` if others must know that a server is dead.
    fn is_dead(&self, now_ms: u64, server: u32) -> bool {
        let server = self.servers.get(&server);
        server.is_some_and(|server| server.is_stopped && server.until_ms + DEAD_MS <= now_ms)
    }

    /// Until when a lease lives, by the engine's clock.
    fn lives_until_ms(&self, engine_ms: u64, holder: &lease::Holder) -> u64 {
        let Some(id) = holder.session else { return holder.expires_at_ms };
        self.sessions.get(&id).and_then(|session| session.lives(engine_ms).ok()).unwrap_or(0)
    }
}

fn ahead_ms(servers: &BTreeMap<u32, Server>, server: u32) -> i64 {
    servers.get(&server).map_or(0, |server| server.ahead_ms)
}

/// A record with its queue, as it stands in the engine, by the engine's clock.
///
/// # Panics
/// If it cannot be read.
fn record_of(servers: &BTreeMap<u32, Server>, snapshot: &Snapshot) -> Record {
    let Key::Lock(lock) = &snapshot.key else { return Record::default() };
    if snapshot.version == Version::ABSENT {
        return Record::default();
    }
    let stored = lease::from_bytes(&snapshot.value).expect("a record");
    let reading = reading(servers, snapshot.version.writer().0, snapshot);
    let mut record = Record::from_stored(stored, reading).expect("tokens");
    for (name, value) in &snapshot.items {
        let stored: StoredWaiter = lease::from_bytes(value).expect("a waiter");
        let reading = self::reading(servers, stored.origin().0, snapshot);
        let (waiter, _) = stored.read(lock, place_of(name).expect("a place"), reading);
        record.queue.insert(waiter);
    }
    assert_eq!(record.queue.len(), snapshot.items.len(), "two entries of one id");
    record
}

fn session_of(servers: &BTreeMap<u32, Server>, snapshot: &Snapshot) -> Option<Session> {
    if snapshot.version == Version::ABSENT {
        return None;
    }
    let stored: StoredSession = lease::from_bytes(&snapshot.value).expect("a session");
    let reading = reading(servers, snapshot.version.writer().0, snapshot);
    Some(Session::from_stored(stored, reading))
}

/// The interpretation of what a server wrote.
fn reading(servers: &BTreeMap<u32, Server>, server: u32, snapshot: &Snapshot) -> Reading {
    Reading::Shared { base: snapshot.base, shift_ms: ahead_ms(servers, server) }
}

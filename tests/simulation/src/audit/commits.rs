//! Checks of what a commit may change.

use std::collections::BTreeMap;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName};
use lease::{Holder, Mode, Record, Waiter};
use lock_server::engines::contract::{Group, Key, Snapshot};

use super::{At, Audit, Granted, RETENTION_MS, record_of, session_of};

/// Number of ended leases that a record remembers.
const ENDED_KEPT: usize = 8;
/// The longest call of a client, ms.
const CALL_MS: u64 = 30_000;

impl Audit {
    /// A group was committed.
    pub fn committed(&mut self, at: At, group: &Group, read: impl Fn(&Key) -> Snapshot) {
        if !self.is_on() {
            return;
        }
        let At { now_ms, engine_ms, .. } = at;
        self.check(group.not_before_ms <= engine_ms && engine_ms < group.before_ms, || {
            format!("a group was committed at {engine_ms}, outside of its time: {group:?}")
        });
        for (key, _) in &group.reads {
            let ways = self.ways_back.entry(key.clone()).or_default();
            ways.retain(|(at_ms, _)| at_ms + CALL_MS > now_ms);
            ways.push((now_ms, at.back_ms));
        }
        // Sessions first: leases are judged by them.
        for write in &group.writes {
            if let Key::Session(id) = &write.key
                && let Some(session) = session_of(&self.servers, &read(&write.key))
            {
                self.sessions.insert(*id, session);
            }
        }
        let mut granted: BTreeMap<LeaseId, Vec<LockName>> = BTreeMap::new();
        for write in &group.writes {
            let Key::Lock(lock) = &write.key else { continue };
            let new = record_of(&self.servers, &read(&write.key));
            let old = self.locks.insert(lock.clone(), new.clone()).unwrap_or_default();
            self.changed_ms.insert(lock.clone(), now_ms);
            for lease in self.compare(lock, &old, &new, at) {
                granted.entry(lease).or_default().push(lock.clone());
            }
        }
        for (lease, locks) in granted {
            let Some(request) = self.requests.get(&lease) else { continue };
            let asked = request.locks.len();
            let got = locks.len();
            // One of its locks may be known as ended from before a loss of memory.
            let is_lost = |lock: &LockName| {
                self.grants.get(&(lock.clone(), lease)).is_some_and(|grant| grant.is_lost)
            };
            let was_lost = request.locks.iter().any(is_lost);
            self.check(asked == got || was_lost, || {
                format!("{lease} asked for {asked} locks and was granted {locks:?} alone")
            });
        }
    }

    /// Compares a record with what it was; returns the leases that are new.
    fn compare(&mut self, lock: &LockName, old: &Record, new: &Record, at: At) -> Vec<LeaseId> {
        self.check_sharing(lock, new, at);
        for holder in old.holders.iter() {
            match new.holders.get(holder.lease_id) {
                Some(kept) => self.check_kept(lock, holder, kept, at),
                None => self.check_ended(lock, holder, new, at),
            }
        }
        let passed = self.passed_by(lock, new);
        let is_new = |holder: &&Holder| old.holders.get(holder.lease_id).is_none();
        let granted: Vec<Holder> = new.holders.iter().filter(is_new).cloned().collect();
        let mut began: Vec<(LeaseId, u64)> =
            granted.iter().map(|holder| (holder.lease_id, holder.token.get())).collect();
        began.extend(passed.iter().copied());
        if at.now_ms >= self.calm_from_ms {
            let is_dead = |server: u32| self.is_dead(at.now_ms, server);
            let lost = granted.iter().find(|holder| holder.deliverer.is_some_and(is_dead)).cloned();
            self.check(lost.is_none(), || format!("{lock} was granted to the dead: {lost:?}"));
        }
        began.sort_unstable_by_key(|(_, token)| *token);
        for (lease, token) in &began {
            // The last eight are remembered.
            let is_displaced = old.ended.len() >= ENDED_KEPT;
            self.check_granted(lock, (*lease, *token), is_displaced, at);
            self.check_order(lock, old, new, *lease, at);
        }
        for (lease, _) in passed {
            if let Some(grant) = self.grants.get_mut(&(lock.clone(), lease)) {
                grant.ended_ms = Some(at.now_ms);
            }
        }
        if self.is_shared() {
            for waiter in old.queue.iter() {
                self.check_waiter(lock, waiter, new, at);
            }
            self.check_queue(lock, old, new);
            self.check_ended_ids(lock, old, new, at);
        }
        began.into_iter().map(|(lease, _)| lease).collect()
    }

    /// Leases that began and ended in one commit, with their tokens.
    fn passed_by(&self, lock: &LockName, new: &Record) -> Vec<(LeaseId, u64)> {
        let ended = new.ended.iter().filter_map(|ended| Some((ended.lease_id, ended.token?.get())));
        let is_new = |(lease, token): &(LeaseId, u64)| {
            let known = self.grants.get(&(lock.clone(), *lease));
            known.is_none_or(|known| known.is_lost && known.token < *token)
        };
        ended.filter(is_new).collect()
    }

    /// L2: who may hold the lock beside whom.
    fn check_sharing(&mut self, lock: &LockName, record: &Record, at: At) {
        let live = |holder: &&Holder| self.lives_until_ms(at.engine_ms, holder) > at.engine_ms;
        let held: Vec<Mode> = match self.is_shared() {
            true => record.holders.iter().filter(live).map(|holder| holder.mode).collect(),
            false => record.holders.iter().map(|holder| holder.mode).collect(),
        };
        let closed = record.closed.iter().filter(|closed| closed.until_ms > at.engine_ms);
        let taken: Vec<Mode> = held.into_iter().chain(closed.map(|closed| closed.mode)).collect();
        let shares = match taken.first() {
            None | Some(Mode::Exclusive) => taken.len() <= 1,
            Some(mode @ Mode::Shared) => taken.iter().all(|other| other == mode),
            Some(mode @ Mode::Permit { size }) => {
                taken.len() <= *size as usize && taken.iter().all(|other| other == mode)
            }
        };
        self.check(shares, || format!("L2: {lock} is held {taken:?} at once: {record:?}"));
    }

    /// L1 and L3: a grant has a token of its own, and its id had none before.
    fn check_granted(
        &mut self,
        lock: &LockName,
        (lease, token): (LeaseId, u64),
        is_displaced: bool,
        at: At,
    ) {
        self.count("grants");
        let highest = self.highest.get(lock).copied().unwrap_or(0);
        self.check(token > highest, || {
            format!("L1: {lock} got token {token} after {highest}, for {lease}")
        });
        let (base, tokens) = at.tokens;
        let is_taken = !self.is_shared() || (base < token && token <= base + tokens);
        self.check(is_taken, || {
            format!("L1: token {token} of {lock} is none of the {tokens} above {base}")
        });
        let owner = (lock.clone(), lease);
        if let Some(other) = self.issued.insert(token, owner.clone()) {
            self.check(other == owner, || format!("L1: token {token} for {other:?} and {owner:?}"));
        }
        self.highest.insert(lock.clone(), token.max(highest));
        let granted = Granted { token, at_ms: at.now_ms, ended_ms: None, is_lost: false };
        let before = self.grants.insert(owner, granted);
        if before.is_some()
            && let Some(request) = self.requests.get_mut(&lease)
        {
            // Granted again: nothing that its client knows is about this grant.
            (request.is_received, request.was_left) = (false, true);
        }
        // Ended ids alone keep no record over a jump of the clock.
        if let Some(before) = before.filter(|before| !before.is_lost && !self.has_jumped) {
            let is_forgotten = before.ended_ms.is_some_and(|ended_ms| {
                is_displaced || at.now_ms + self.shortened_ms(ended_ms) >= ended_ms + RETENTION_MS
            });
            let first = before.token;
            self.check(is_forgotten, || {
                format!("L3: {lease} was granted {lock} again: tokens {first} and {token}")
            });
        }
    }

    /// A lease that lives on: its token stays, and its time is not cut.
    fn check_kept(&mut self, lock: &LockName, old: &Holder, new: &Holder, at: At) {
        self.check(old.token == new.token, || {
            format!("the token of {lock} changed: {old:?} to {new:?}")
        });
        let is_cut = new.session.is_none() && new.expires_at_ms < old.expires_at_ms;
        let was_live = old.expires_at_ms > at.engine_ms;
        // A renewal by a server whose time is behind may end a little earlier than the last one:
        // the reply said so, and the check of the reply is the one that counts.
        let is_stepped = self.is_stepped_back;
        self.check(!is_cut || !was_live || is_stepped || old.renewals < new.renewals, || {
            format!("the time of {lock} was cut: {old:?} to {new:?}")
        });
    }

    /// A lease is gone: by its holder's word, or because its time was over.
    fn check_ended(&mut self, lock: &LockName, holder: &Holder, new: &Record, at: At) {
        let lease = holder.lease_id;
        // A lease ended when its time was over, whenever that is noticed: its id is remembered from
        // then on.
        let over_ms = match holder.session {
            None => at.engine_ms.saturating_sub(holder.expires_at_ms),
            Some(_) => 0,
        };
        if let Some(grant) = self.grants.get_mut(&(lock.clone(), lease)) {
            grant.ended_ms = Some(at.now_ms.saturating_sub(over_ms));
        }
        let until_ms = self.lives_until_ms(at.engine_ms, holder);
        if !self.is_shared() || until_ms <= at.engine_ms {
            return;
        }
        let ended = new.ended(lease).map(|ended| ended.reason);
        let request = self.requests.get(&lease);
        let is_left = request.is_some_and(|request| request.was_left && !request.is_received);
        let grant = self.grants.get(&(lock.clone(), lease)).copied();
        let is_lost = grant.is_some_and(|grant| grant.is_lost);
        let server = if holder.is_unread { holder.deliverer.unwrap_or(0) } else { 0 };
        let is_unreceived = server != 0 && self.is_suspect(at.now_ms, server);
        let is_unknown = is_left || is_lost || is_unreceived;
        let is_fine = match ended {
            // Its caller is gone, or its server.
            Some(EndReason::Released | EndReason::Expired) if is_unknown => true,
            Some(EndReason::Released) => {
                request.is_some_and(|request| request.released.contains(lock))
            }
            Some(EndReason::Revoked) => self.revoked.contains(lock),
            Some(EndReason::SessionEnded) => {
                holder.session.is_some_and(|id| self.ended_sessions.contains(&id))
            }
            // Its id was pushed out by later ones in the same commit.
            None => new.ended.len() >= 8,
            Some(_) => false,
        };
        let left_ms = until_ms - at.engine_ms;
        let text = || {
            format!("{lock} lost {lease} as {ended:?}, {left_ms} ms before its time: {request:?}")
        };
        let is_open = request.is_some_and(|request| request.open_calls > 0 && !request.is_received);
        if !is_fine && is_open && ended == Some(EndReason::Released) {
            // Its caller may be about to learn that the outcome is not known.
            let text = text();
            self.rolled_back.push((lease, text));
            return;
        }
        let text = if is_fine { String::new() } else { text() };
        self.check(is_fine, || text);
    }

    /// Checks that a client whose grant was rolled back, or that lost its place, got an unknown
    /// outcome.
    pub(super) fn check_rolled_back(&mut self) {
        for (lease, text) in std::mem::take(&mut self.rolled_back) {
            let request = self.requests.get(&lease);
            let is_left = request.is_some_and(|request| request.was_left && !request.is_received);
            self.check(is_left, || text);
        }
    }

    /// Checks arrival order: a granted waiter was first, or found an empty queue.
    fn check_order(&mut self, lock: &LockName, old: &Record, new: &Record, lease: LeaseId, at: At) {
        if !self.is_shared() {
            return;
        }
        let before = old.queue.iter().take_while(|waiter| waiter.request.lease_id != lease);
        // One that had timed out may have been asked for again, and stands at the end.
        let before = before.filter(|waiter| waiter.until_ms > at.engine_ms);
        let before = before.map(|waiter| waiter.request.lease_id);
        let stays = |lease: &LeaseId| {
            let was_left = self.requests.get(lease).is_some_and(|request| request.was_left);
            new.queue.get(*lease).is_some() && !was_left
        };
        let overtaken: Vec<LeaseId> = before.filter(stays).collect();
        self.check(overtaken.is_empty(), || {
            format!("{lock} was granted to {lease}, which overtook {overtaken:?}")
        });
    }

    /// A waiter leaves by a grant, when its time is over, or when its caller or its server is gone.
    fn check_waiter(&mut self, lock: &LockName, waiter: &Waiter, new: &Record, at: At) {
        let lease = waiter.request.lease_id;
        if let Some(place) = new.queue.get(lease).map(|kept| kept.place) {
            // One that had timed out may have been asked for again.
            let is_new = waiter.until_ms <= at.engine_ms
                || self.requests.get(&lease).is_none_or(|request| request.was_left);
            self.check(place == waiter.place || is_new, || {
                format!("{lease} moved from place {} of {lock} to {place}", waiter.place)
            });
            return;
        }
        let known = new.holders.get(lease).is_some() || new.ended(lease).is_some();
        let session = waiter.request.session.map(|id| self.sessions.get(&id));
        let session_over = session.is_some_and(|session| {
            session.is_none_or(|session| session.serves(at.engine_ms).is_err())
        });
        let left = self
            .requests
            .get(&lease)
            .is_none_or(|request| request.was_left || !request.released.is_empty());
        let is_fine = known
            || session_over
            || left
            || waiter.until_ms <= at.engine_ms
            || self.is_suspect(at.now_ms, waiter.server);
        let request = self.requests.get(&lease);
        let is_open = request.is_some_and(|request| request.open_calls > 0 && !request.is_received);
        let text = || {
            format!("{lease} of server {} left the queue of {lock} without a reason", waiter.server)
        };
        if !is_fine && is_open {
            // Its callers may be about to learn that the outcome is not known.
            let text = text();
            self.rolled_back.push((lease, text));
            return;
        }
        let text = if is_fine { String::new() } else { text() };
        self.check(is_fine, || text);
    }

    /// Checks that a new waiter is behind all others.
    fn check_queue(&mut self, lock: &LockName, old: &Record, new: &Record) {
        let places: Vec<u64> = new.queue.iter().map(|waiter| waiter.place).collect();
        self.check(places.is_sorted(), || format!("the queue of {lock} is out of order"));
        let stays = |waiter: &&Waiter| {
            let kept = new.queue.get(waiter.request.lease_id);
            kept.is_some_and(|kept| kept.since_ms == waiter.since_ms)
        };
        let last = old.queue.iter().rfind(stays).map_or(0, |waiter| waiter.place);
        let is_new = |waiter: &&Waiter| old.queue.get(waiter.request.lease_id).is_none();
        let early = new.queue.iter().filter(is_new).find(|waiter| waiter.place <= last).cloned();
        self.check(early.is_none(), || format!("a newcomer of {lock} is not the last: {early:?}"));
    }

    /// L3 needs the ids of leases that ended lately.
    fn check_ended_ids(&mut self, lock: &LockName, old: &Record, new: &Record, at: At) {
        for ended in &old.ended {
            let kept = new.ended(ended.lease_id).is_some();
            let is_old = ended.at_ms + RETENTION_MS <= at.engine_ms
                || self.is_stepped_back
                || self.has_jumped;
            self.check(kept || is_old || new.ended.len() >= 8, || {
                format!("{lock} forgot that {} has ended", ended.lease_id)
            });
        }
    }

    /// Records that the engine forgot must have had nothing left to say.
    pub(super) fn check_forgotten(&mut self, engine_ms: u64, read: &impl Fn(&Key) -> Snapshot) {
        let locks: Vec<LockName> = self.locks.keys().cloned().collect();
        for lock in locks {
            let found = read(&Key::Lock(lock.clone()));
            if !found.items.is_empty() || self.telling.get(&lock) == Some(&found.version) {
                continue;
            }
            if record_of(&self.servers, &found) != Record::default() {
                self.telling.insert(lock, found.version);
                continue;
            }
            let Some(record) = self.locks.remove(&lock) else { continue };
            let live = record
                .holders
                .iter()
                .find(|holder| self.lives_until_ms(engine_ms, holder) > engine_ms)
                .map(|holder| holder.lease_id);
            let waits = record.queue.iter().find(|waiter| waiter.until_ms > engine_ms);
            let waits = waits.map(|waiter| waiter.request.lease_id);
            let closed = record.closed.iter().any(|closed| closed.until_ms > engine_ms);
            let ended = !self.is_stepped_back
                && !self.has_jumped
                && record.ended.iter().any(|ended| ended.at_ms + RETENTION_MS > engine_ms);
            self.check(live.is_none() && waits.is_none() && !closed && !ended, || {
                format!("the engine forgot {lock}: live {live:?}, waits {waits:?}: {record:?}")
            });
        }
    }
}

//! Checks of the replies that clients receive.

use std::collections::BTreeSet;

use fence_protocol::{LeaseId, LockName, SessionId};
use lease::Mode;
use lock_server::engines::contract::Key;

use super::{Audit, Granted, Request};

/// By how much a server's knowledge of the engine's clock may be behind where nothing fails, ms.
const CLOCK_SLACK_MS: u64 = 100;

/// A reply that names a live lease.
#[derive(Clone, Debug)]
pub struct ReportedLease {
    /// Lock that the reply is about.
    pub lock: LockName,
    /// Lease that the reply is about.
    pub lease: LeaseId,
    /// Its token.
    pub token: u64,
    /// Remaining time to live, ms.
    pub remaining_ms: u64,
    /// When the client sent the request, by the time of the simulation: clients count from then on.
    pub invoked_ms: u64,
}

/// A lease that its client believes in.
#[derive(Clone, Debug)]
pub(super) struct Belief {
    lease: LeaseId,
    mode: Mode,
    session: Option<SessionId>,
    pub(super) until_ms: u64,
}

impl Audit {
    /// A client is about to ask for locks.
    pub fn asks(
        &mut self,
        lease: LeaseId,
        locks: BTreeSet<LockName>,
        mode: Mode,
        session: Option<SessionId>,
        wait_ms: u64,
    ) {
        let new = Request { locks, mode, session, wait_ms, ..Request::default() };
        self.requests.entry(lease).or_insert(new);
    }

    /// A call of a request ended without a reply that names its outcome.
    pub fn leaves(&mut self, lease: LeaseId) {
        if let Some(request) = self.requests.get_mut(&lease) {
            request.was_left = true;
        }
    }

    /// A call begins.
    pub fn calls(&mut self, now_ms: u64, lease: LeaseId) {
        if let Some(request) = self.requests.get_mut(&lease) {
            request.open_calls += 1;
            request.first_called_ms.get_or_insert(now_ms);
            request.called_ms = now_ms;
            request.left_ms = None;
        }
    }

    /// A call ends with a reply, or because its server stops.
    pub fn ends_call(&mut self, lease: LeaseId) {
        if let Some(request) = self.requests.get_mut(&lease) {
            request.open_calls -= 1;
            request.is_answered = true;
        }
    }

    /// A client hangs up.
    pub fn hangs_up(&mut self, now_ms: u64, lease: LeaseId) {
        if let Some(request) = self.requests.get_mut(&lease) {
            request.open_calls -= 1;
            request.was_left = true;
            request.left_ms = Some(now_ms);
        }
    }

    /// A client got a reply: where nothing fails, requests do not fail.
    pub fn received_status(&mut self, is_failure: bool, reply: &str) {
        self.check(!is_failure || !self.is_calm(), || format!("nothing failed, but {reply}"));
    }

    /// A client is about to release a lease.
    pub fn releases(&mut self, lock: &LockName, lease: LeaseId) {
        if let Some(request) = self.requests.get_mut(&lease) {
            request.released.insert(lock.clone());
        }
        if let Some(beliefs) = self.beliefs.get_mut(lock) {
            beliefs.retain(|belief| belief.lease != lease);
        }
    }

    /// An operator is about to end, or has ended, every lease of a lock.
    pub fn revokes(&mut self, lock: &LockName) {
        self.revoked.insert(lock.clone());
        self.beliefs.remove(lock);
    }

    /// A client ends a session: it believes in none of its leases any more.
    pub fn ends_session(&mut self, id: SessionId) {
        self.ended_sessions.insert(id);
        for beliefs in self.beliefs.values_mut() {
            beliefs.retain(|belief| belief.session != Some(id));
        }
    }

    /// A client received a live lease, in the reply to an acquire or a renewal.
    pub fn received_lease(&mut self, now_ms: u64, engine_ms: u64, reply_lease: &ReportedLease) {
        let ReportedLease { lock, lease, token, remaining_ms, .. } = reply_lease;
        let grant = self.grants.get(&(lock.clone(), *lease)).copied();
        let committed = grant.map(|grant| grant.token);
        self.check(committed == Some(*token), || {
            format!("{lease} got token {token} of {lock} in a reply; committed was {committed:?}")
        });
        let Some(grant) = grant else { return };
        self.check_promise(engine_ms, reply_lease, grant);
        let Some(request) = self.requests.get_mut(lease) else { return };
        let is_new = !std::mem::replace(&mut request.is_received, true);
        let mode = request.mode;
        let session = request.session;
        let was_released = request.released.contains(lock);
        let counted_ms = now_ms - reply_lease.invoked_ms.max(grant.at_ms);
        let until_ms = (now_ms + remaining_ms).saturating_sub(counted_ms);
        // What its server did not know yet of the engine's clock.
        let until_ms = until_ms.saturating_sub(self.shortened_ms(now_ms));
        let belief = Belief { lease: *lease, mode, session, until_ms };
        let beliefs = self.beliefs.entry(lock.clone()).or_default();
        beliefs.retain(|other| other.lease != *lease && other.until_ms > now_ms);
        // A revocation whose reply was lost may be carried out at any time. A grant that is
        // received after a loss of memory may live again by that: it had ended, and another one,
        // which is lost, came after it. Fencing covers that.
        let lives_again = is_new && grant.is_lost;
        if was_released || until_ms <= now_ms || self.revoked.contains(lock) || lives_again {
            return;
        }
        beliefs.push(belief);
        let modes: Vec<Mode> = beliefs.iter().map(|belief| belief.mode).collect();
        let shares = match mode {
            Mode::Exclusive => modes.len() == 1,
            Mode::Shared => modes.iter().all(|other| *other == mode),
            Mode::Permit { size } => modes.len() <= size as usize,
        };
        let text = format!("{beliefs:?}");
        self.check(shares, || format!("L2: clients believe in {lock} at once: {text}"));
    }

    /// Checks that the engine honours the reported time to live.
    fn check_promise(&mut self, engine_ms: u64, reply_lease: &ReportedLease, grant: Granted) {
        let ReportedLease { lock, lease, remaining_ms, invoked_ms, .. } = reply_lease;
        let was_released =
            self.requests.get(lease).is_some_and(|request| request.released.contains(lock));
        let is_excused = grant.is_lost || was_released || self.revoked.contains(lock);
        if !self.is_shared() || is_excused || self.is_stepped_back {
            return;
        }
        let holder = self.locks.get(lock).and_then(|record| record.holders.get(*lease));
        let until_ms = holder.map_or(0, |holder| self.lives_until_ms(engine_ms, holder));
        let honoured_ms = until_ms.saturating_sub(engine_ms);
        // A reply says what remains when it is sent.
        let unknowable_ms = self.unknowable_ms(&Key::Lock(lock.clone()), *invoked_ms);
        self.check(*remaining_ms <= honoured_ms + unknowable_ms, || {
            format!("{lease} got {remaining_ms} ms of {lock} in a reply; the engine has {honoured_ms} ms")
        });
    }

    /// A client received a live session, with the locks that are bound to it.
    pub fn received_session(
        &mut self,
        now_ms: u64,
        engine_ms: u64,
        id: SessionId,
        (remaining_ms, invoked_ms): (u64, u64),
    ) {
        let shortened_ms = self.shortened_ms(now_ms);
        let grants = &self.grants;
        for (lock, beliefs) in &mut self.beliefs {
            // A session may survive a loss of memory that its newest lease did not: its heartbeats
            // continue, and its client believes. Fencing covers that.
            let lives = |belief: &&mut Belief| {
                let grant = grants.get(&(lock.clone(), belief.lease));
                belief.session == Some(id) && grant.is_some_and(|grant| !grant.is_lost)
            };
            for belief in beliefs.iter_mut().filter(lives) {
                belief.until_ms = (invoked_ms + remaining_ms).saturating_sub(shortened_ms);
            }
        }
        if !self.is_shared() || self.counts.contains_key("losses") || self.is_stepped_back {
            return;
        }
        let lives = self.sessions.get(&id).and_then(|session| session.lives(engine_ms).ok());
        let honoured_ms = lives.unwrap_or(0).saturating_sub(engine_ms);
        let unknowable_ms = self.unknowable_ms(&Key::Session(id), invoked_ms);
        self.check(remaining_ms <= honoured_ms + unknowable_ms, || {
            format!(
                "session {id} got {remaining_ms} ms in a reply; the engine has {honoured_ms} ms"
            )
        });
    }

    /// A client got a reply that names no lease: it waits for no grant any more.
    pub fn received_refusal(&mut self, lease: LeaseId) {
        self.leaves(lease);
    }

    /// A client received the reply that its lease has ended.
    pub fn received_lost(
        &mut self,
        engine_ms: u64,
        invoked_ms: u64,
        lock: &LockName,
        lease: LeaseId,
    ) {
        self.count("lost leases");
        let Some(grant) = self.grants.get(&(lock.clone(), lease)).copied() else { return };
        let holder = self.locks.get(lock).and_then(|record| record.holders.get(lease));
        let Some(holder) = holder.filter(|_| self.is_shared()) else { return };
        let lives = self.lives_until_ms(engine_ms, holder) > engine_ms;
        // Its end may have been committed, and lost with the engine's memory before the reply
        // arrived; and a lease whose time was over lives again where the engine's clock is set
        // back.
        let is_back = grant.is_lost || self.is_stepped_back;
        self.check(!lives || grant.at_ms >= invoked_ms || is_back, || {
            format!("{lease} got a reply that it lost {lock}, which it holds")
        });
    }

    /// A client received the reply that its lease is released.
    pub fn received_released(&mut self, lock: &LockName, lease: LeaseId) {
        self.count("releases");
        let holds = self.locks.get(lock).is_some_and(|record| record.holders.get(lease).is_some());
        // As above.
        let is_lost = self.grants.get(&(lock.clone(), lease)).is_some_and(|grant| grant.is_lost);
        self.check(!holds || is_lost, || {
            format!("{lease} got a reply that {lock} is released, and holds it")
        });
    }

    /// A client that did not wait received the refusal that a lock is held.
    pub fn received_held(&mut self, now_ms: u64, engine_ms: u64, invoked_ms: u64, lock: &LockName) {
        self.count("refusals");
        if !self.is_shared() {
            return;
        }
        let Some(record) = self.locks.get(lock) else {
            let changed_ms = self.changed_ms.get(lock).copied().unwrap_or(0);
            self.check(changed_ms >= invoked_ms, || format!("{lock} is held, and was never"));
            return;
        };
        // A session that has ended lived as long as its leases say.
        let end_ms = |holder: &lease::Holder| {
            self.lives_until_ms(engine_ms, holder).max(holder.expires_at_ms)
        };
        let ends = record.holders.iter().map(end_ms);
        let ends_ms = ends.chain(record.closed.iter().map(|closed| closed.until_ms)).max();
        let over_ms = engine_ms.saturating_sub(ends_ms.unwrap_or(0));
        let changed_ms = self.changed_ms.get(lock).copied().unwrap_or(0);
        let free_since_ms = changed_ms.max(now_ms.saturating_sub(over_ms));
        let is_free = record.queue.is_empty() && free_since_ms < invoked_ms;
        let is_stepped = self.is_stepped_back || self.shortened_ms(now_ms) > 0;
        self.check(!is_free || is_stepped, || {
            format!("{lock} was refused as held, and is free since {free_since_ms} ms")
        });
    }

    /// A client received the reply that its wait timed out.
    pub fn received_timed_out(
        &mut self,
        now_ms: u64,
        invoked_ms: u64,
        wait_ms: u64,
        lease: LeaseId,
    ) {
        self.count("time-outs");
        let waited_ms = now_ms - invoked_ms;
        self.check_wait(waited_ms, wait_ms, || {
            format!("{lease} timed out after {waited_ms} ms of {wait_ms}")
        });
    }

    /// A client received the time for which its request has waited.
    pub fn received_waited(&mut self, now_ms: u64, waited_ms: u64, lease: LeaseId) {
        let first_ms = self.requests.get(&lease).and_then(|request| request.first_called_ms);
        let since_ms = now_ms - first_ms.unwrap_or(now_ms);
        self.check_wait(since_ms, waited_ms, || {
            format!("{lease} waited {waited_ms} ms by the reply, and asked {since_ms} ms ago")
        });
    }

    /// Checks that no more time passed for a server than for its client. A server that goes by the
    /// engine's clock knows that clock as well as the replies are quick.
    fn check_wait(&mut self, passed_ms: u64, at_server_ms: u64, broken: impl FnOnce() -> String) {
        let slack_ms = if self.has_own_clocks { 0 } else { CLOCK_SLACK_MS };
        let is_checked = self.has_own_clocks || self.is_calm();
        self.check(!is_checked || at_server_ms <= passed_ms + slack_ms, broken);
    }
}

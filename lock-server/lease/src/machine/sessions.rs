//! Transitions of sessions (begin, renewal, end), and the leases bound to them.

use std::collections::{BTreeMap, BTreeSet};

use fence_protocol::wire::event::EventKind;
use fence_protocol::wire::lock::EndReason;
use fence_protocol::wire::session::{
    SessionEndReason, SessionEndedReply, SessionPage, SessionReply,
};
use fence_protocol::{LeaseId, LockName, Owner, SessionId};

use super::{Machine, Related, limit};
use crate::record::Holder;
use crate::session::{Session, SessionState};
use crate::{Acquire, NewSession, NoSession, StoreError};

/// Leases that end in the transition that ends their session, if servers share them: each is a
/// record of the commit.
const SHARED_STEP: usize = 32;

/// The sessions of a namespace.
///
/// Invariant: a live lease that names a session is in that session's `held`, and a waiter in its
/// `waits`; both go when the lease or the waiter does.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    alarms: BTreeSet<(u64, SessionId)>,
    /// Number of those that have not ended.
    live: usize,
    dirty: BTreeSet<SessionId>,
}

impl Sessions {
    pub(super) fn next_alarm_ms(&self) -> Option<u64> {
        self.alarms.first().map(|(at_ms, _)| *at_ms)
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub(super) fn live_count(&self) -> usize {
        self.live
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.all.get(&id)
    }

    fn put(&mut self, id: SessionId, session: Session, retention_ms: u64) {
        self.alarms.insert((session.alarm_ms(retention_ms), id));
        self.live += usize::from(session.is_live());
        self.all.insert(id, session);
    }

    fn take(&mut self, id: SessionId, retention_ms: u64) -> Option<Session> {
        let session = self.all.remove(&id)?;
        self.live -= usize::from(session.is_live());
        self.alarms.remove(&(session.alarm_ms(retention_ms), id));
        Some(session)
    }

    pub(super) fn hold(&mut self, id: SessionId, lock: &LockName, lease_id: LeaseId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.held.insert((lock.clone(), lease_id));
        }
    }

    pub(super) fn unbind(&mut self, id: SessionId, lock: &LockName, lease_id: LeaseId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.held.remove(&(lock.clone(), lease_id));
        }
    }

    /// Returns the time until which a bound lease lives; `None` for one that is not bound.
    pub(super) fn until_ms(&self, now_ms: u64, holder: &Holder) -> Option<u64> {
        self.get(holder.session?)?.lives(now_ms).ok()
    }

    /// Copies the expiry of a bound lease from its session.
    pub(super) fn refresh(&self, now_ms: u64, holder: &mut Holder) {
        if let Some(until_ms) = self.until_ms(now_ms, holder) {
            holder.expires_at_ms = until_ms;
        }
    }

    pub(super) fn wait(&mut self, id: SessionId, lock: &LockName, lease_id: LeaseId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.waits.insert((lock.clone(), lease_id));
        }
    }

    /// Replaces what was read of a session, and keeps what is known of its leases and waiters here.
    pub(super) fn load(&mut self, id: SessionId, session: Option<Session>, retention_ms: u64) {
        let before = self.take(id, retention_ms);
        self.dirty.remove(&id);
        let Some(mut session) = session else { return };
        if let Some(before) = before {
            (session.held, session.waits) = (before.held, before.waits);
        }
        self.put(id, session, retention_ms);
    }

    /// Returns the time at which a live session ends unless it is renewed.
    pub(super) fn ends_at_ms(&self, id: SessionId) -> Option<u64> {
        match self.all.get(&id)?.state {
            SessionState::Until(at_ms) => Some(at_ms),
            SessionState::Ended(..) => None,
        }
    }

    /// Returns the time at which a session ended; `now_ms` for an unknown one, `None` for a live
    /// one.
    pub(super) fn ended_at_ms(&self, now_ms: u64, id: SessionId) -> Option<u64> {
        match self.get(id).map(|session| session.state) {
            None => Some(now_ms),
            Some(SessionState::Until(at_ms)) => (at_ms <= now_ms).then_some(at_ms),
            Some(SessionState::Ended(_, at_ms)) => Some(at_ms.min(now_ms)),
        }
    }

    /// Returns whether the session is known to have ended.
    pub(super) fn has_ended(&self, id: SessionId) -> bool {
        self.get(id).is_some_and(|session| matches!(session.state, SessionState::Ended(..)))
    }

    pub(super) fn remove_waiter(&mut self, id: SessionId, lock: &LockName, lease_id: LeaseId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.waits.remove(&(lock.clone(), lease_id));
        }
    }
}

impl Machine {
    /// Restores a session from a journal; sessions come before locks.
    pub fn restore_session(&mut self, id: SessionId, session: Session) {
        self.sessions.put(id, session, self.limits.ended_retention_ms);
    }

    /// Takes the sessions whose stored part changed since the last call; `None` means delete it.
    pub fn take_session_changes(&mut self) -> Vec<(SessionId, Option<&Session>)> {
        let dirty = std::mem::take(&mut self.sessions.dirty);
        dirty.into_iter().map(|id| (id, self.sessions.all.get(&id))).collect()
    }

    /// Returns a session, if it is known.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(id)
    }

    /// Marks an ended session that no record names any more: it is remembered for the retention
    /// time, and then forgotten.
    pub fn session_cleared(&mut self, id: SessionId) {
        let retention_ms = self.limits.ended_retention_ms;
        if !self.sessions.get(id).is_some_and(Session::is_to_be_cleared) {
            return;
        }
        if let Some(mut session) = self.sessions.take(id, retention_ms) {
            session.is_cleared = true;
            self.sessions.put(id, session, retention_ms);
            self.sessions.dirty.insert(id);
        }
    }

    /// Begins a session. Idempotent: a retry with the same id and owner gets the same session.
    ///
    /// # Errors
    /// [`StoreError::Session`], [`StoreError::Limit`].
    pub fn create_session(
        &mut self,
        now_ms: u64,
        new: NewSession,
    ) -> Result<SessionReply, StoreError> {
        let id = new.session_id;
        self.tick(now_ms);
        if let Some(session) = self.sessions.get(id) {
            session.lives(now_ms).map_err(|why| why.refusal(id))?;
            if session.owner != new.owner {
                return Err(NoSession::OtherOwner(session.owner.clone()).refusal(id));
            }
            return Ok(session.reply(id, now_ms, false));
        }
        if self.sessions.all.len() >= self.limits.sessions {
            return Err(limit("sessions live or remembered", self.limits.sessions));
        }
        let session = Session::begin(new, now_ms);
        let reply = session.reply(id, now_ms, false);
        self.sessions.put(id, session, self.limits.ended_retention_ms);
        self.sessions.dirty.insert(id);
        self.report_session(EventKind::SessionBegun, id);
        Ok(reply)
    }

    /// Restores the time to live of the session, and so of its leases, at a cost that does not
    /// depend on their number.
    ///
    /// # Errors
    /// [`StoreError::Session`].
    pub fn heartbeat(&mut self, now_ms: u64, id: SessionId) -> Result<SessionReply, StoreError> {
        self.known_session(now_ms, id)?.serves(now_ms).map_err(|why| why.refusal(id))?;
        let retention_ms = self.limits.ended_retention_ms;
        let mut session =
            self.sessions.take(id, retention_ms).ok_or_else(|| NoSession::Unknown.refusal(id))?;
        session.state = SessionState::Until(now_ms + session.ttl.ms());
        session.heartbeats += 1;
        let reply = session.reply(id, now_ms, false);
        // A restart gives a session its full time again: a heartbeat is not written to the journal.
        self.sessions.put(id, session, retention_ms);
        if self.is_shared() {
            self.sessions.dirty.insert(id);
        }
        Ok(reply)
    }

    /// Ends the session and the leases bound to it.
    ///
    /// # Errors
    /// [`StoreError::Session`].
    pub fn end_session(
        &mut self,
        now_ms: u64,
        id: SessionId,
    ) -> Result<SessionEndedReply, StoreError> {
        self.known_session(now_ms, id)?.lives(now_ms).map_err(|why| why.refusal(id))?;
        let reason = SessionEndReason::Ended;
        self.report_session(EventKind::SessionClosed, id);
        let lease_count = self.close_session(now_ms, id, reason);
        self.pass_on(now_ms);
        Ok(SessionEndedReply { session_id: id, reason, lease_count })
    }

    /// Refuses heartbeats and new leases; live leases last until the session's time has passed.
    ///
    /// # Errors
    /// [`StoreError::Session`].
    pub fn block_session(
        &mut self,
        now_ms: u64,
        id: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        self.known_session(now_ms, id)?.lives(now_ms).map_err(|why| why.refusal(id))?;
        let session =
            self.sessions.all.get_mut(&id).ok_or_else(|| NoSession::Unknown.refusal(id))?;
        session.blocked.get_or_insert(reason);
        self.sessions.dirty.insert(id);
        self.report_session(EventKind::SessionBlocked, id);
        self.refuse_waiters(now_ms, id);
        self.pass_on(now_ms);
        self.show_session(now_ms, id)
    }

    /// Returns one session with its leases.
    ///
    /// # Errors
    /// [`StoreError::Session`].
    pub fn show_session(&mut self, now_ms: u64, id: SessionId) -> Result<SessionReply, StoreError> {
        let session = self.known_session(now_ms, id)?;
        session.lives(now_ms).map_err(|why| why.refusal(id))?;
        Ok(session.reply(id, now_ms, true))
    }

    /// Returns a page of live sessions.
    pub fn list_sessions(
        &mut self,
        now_ms: u64,
        after: Option<SessionId>,
        limit: usize,
    ) -> SessionPage {
        self.tick(now_ms);
        let behind = |id: &SessionId| after.is_none_or(|after| *id > after);
        let mut live = self
            .sessions
            .all
            .iter()
            .filter(|(id, session)| behind(id) && session.lives(now_ms).is_ok())
            .map(|(id, session)| session.reply(*id, now_ms, false));
        let sessions: Vec<SessionReply> = live.by_ref().take(limit).collect();
        let more = live.next().is_some();
        let next_after = sessions.last().filter(|_| more).map(|last| last.session_id);
        SessionPage { sessions, next_after }
    }

    fn known_session(&mut self, now_ms: u64, id: SessionId) -> Result<&Session, StoreError> {
        self.tick(now_ms);
        self.sessions.get(id).ok_or_else(|| NoSession::Unknown.refusal(id))
    }

    /// Checks that the session of a request may get `places` more leases, which are not bound to it
    /// yet.
    ///
    /// It changes nothing: otherwise a hand-over would end sessions recursively.
    pub(super) fn check_session(
        &self,
        now_ms: u64,
        request: &Acquire,
        places: usize,
    ) -> Result<(), StoreError> {
        let Some(id) = request.session else { return Ok(()) };
        let most = self.limits.session_leases;
        let session = self.sessions.get(id).ok_or_else(|| NoSession::Unknown.refusal(id))?;
        session.serves(now_ms).map_err(|why| why.refusal(id))?;
        if session.owner != request.owner {
            return Err(NoSession::OtherOwner(session.owner.clone()).refusal(id));
        }
        if session.bonds() + places > most
            && !session.waits.contains(&(request.lock.clone(), request.lease_id))
        {
            return Err(limit("leases of this session", most));
        }
        Ok(())
    }

    /// Ends a session whose time has passed, and forgets one whose retention has passed.
    fn settle_session(&mut self, now_ms: u64, id: SessionId) {
        let retention_ms = self.limits.ended_retention_ms;
        let Some(session) = self.sessions.get(id) else { return };
        if session.alarm_ms(retention_ms) > now_ms {
            return;
        }
        if let SessionState::Until(at_ms) = session.state {
            let reason = session.natural_end();
            let ended_at_ms = if self.is_shared() { at_ms } else { now_ms };
            self.close_session(ended_at_ms, id, reason);
        } else {
            self.sessions.take(id, retention_ms);
            if self.is_shared() {
                // The engine itself deletes records that servers share.
                self.note_forgotten(Related::Session(id));
            } else {
                self.sessions.dirty.insert(id);
            }
        }
    }

    pub(super) fn tick_sessions(&mut self, now_ms: u64) {
        while let Some((at_ms, id)) = self.sessions.alarms.first().copied() {
            if at_ms > now_ms {
                return;
            }
            self.settle_session(now_ms, id);
        }
    }

    /// Ends a session: first its waiters, so that none of them is granted, then its leases.
    fn close_session(&mut self, now_ms: u64, id: SessionId, reason: SessionEndReason) -> usize {
        let retention_ms = self.limits.ended_retention_ms;
        let Some(mut session) = self.sessions.take(id, retention_ms) else { return 0 };
        let bonds = session.bonds();
        session.state = SessionState::Ended(reason, now_ms);
        session.is_cleared = !self.is_shared();
        let mut held = std::mem::take(&mut session.held);
        if self.is_shared()
            && let Some(rest) = held.iter().nth(SHARED_STEP).cloned()
        {
            // These end in transitions of their own: with the session they have ended already.
            session.held = held.split_off(&rest);
        }
        self.sessions.put(id, session, retention_ms);
        self.sessions.dirty.insert(id);
        self.refuse_waiters(now_ms, id);
        for (lock, lease_id) in held {
            let Some(mut record) = self.take_out(&lock) else { continue };
            // No caller waits for this reply: the record shows the end of the lease.
            let _ = self.close(now_ms, &lock, &mut record, lease_id, EndReason::SessionEnded, None);
            self.put_back(lock, record);
        }
        bonds
    }

    /// Removes the requests of a session from their queues with a refusal.
    pub(super) fn refuse_waiters(&mut self, now_ms: u64, id: SessionId) {
        let Some(session) = self.sessions.all.get_mut(&id) else { return };
        let Err(why) = session.serves(now_ms) else { return };
        let waits = std::mem::take(&mut session.waits);
        for (lock, lease_id) in waits {
            // The parts of a group leave with the first of them.
            if let Some(left) = self.leave(&lock, lease_id) {
                self.refuse_waiter(&lock, &left, why.clone().refusal(id));
            }
        }
    }
}

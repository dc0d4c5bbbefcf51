//! Sessions in etcd: an etcd lease each, and everything that is bound to a session hangs on it.
//!
//! Keys, under `fencepost/<ns>/`:
//! - `S/<id>` is the session's record, on an etcd lease that outlives the session by the
//!   retention.
//! - `l/<id>` says that it lives, on the session's own etcd lease.
//! - `s/<id>` says that it serves: it takes heartbeats and leases. Each heartbeat writes it, so that
//!   its version counts them and its last revision says whose heartbeat was the last. Blocking and
//!   ending delete it, which wakes whoever waits in the session's name.
//! - `b/<id>/<lock>!<lease>` is a bond: a lease of the session, on the session's etcd lease, or a
//!   waiting request.
//!
//! A session ends in two steps: the record says how, and `s` goes; then its etcd lease is revoked,
//! and `l`, the bonds and all bound leases go in that one step. Whoever sees a session between the
//! two carries the end through. The server that heard the last heartbeat ends a session to the
//! millisecond; where it is gone, etcd does, by whole seconds.

mod beginning;
mod ending;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod heartbeat;
mod record;
mod terms;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::wire::session::{
    SessionEndReason, SessionEndedReply, SessionLease, SessionPage, SessionReply,
};
use fence_protocol::{Owner, SessionId};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::sync::Notify;

pub(super) use self::ending::run;
use self::record::{Blocked, Deadline, Deadlines, Seen};
pub(super) use self::terms::{HELD, Terms};
use super::txn::{Compare, On, Op, Txn};
use super::{EtcdStore, Inner, TRIES, store_error};
use crate::store::{NewSession, NoSession, SessionStore, StoreError};

/// How many leases a reply lists.
const LEASES_SHOWN: usize = 100;
/// How many bonds are read to find them; the others may be waiting requests.
const BONDS_READ: usize = 1_000;
/// How many sessions of a page are looked at side by side.
const LOOKS_AT_ONCE: usize = 8;

/// The sessions whose last heartbeat this server heard.
#[derive(Debug, Default)]
pub(super) struct Watched {
    deadlines: Mutex<Deadlines>,
    changed: Notify,
}

impl Watched {
    fn deadlines(&self) -> MutexGuard<'_, Deadlines> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a heartbeat, or the beginning.
    fn heard(&self, id: SessionId, deadline: Deadline) {
        self.deadlines().note(id, deadline);
        self.changed.notify_one();
    }
}

/// The sessions of a namespace. Cheap to make.
#[derive(Clone)]
pub(super) struct Sessions {
    inner: Arc<Inner>,
}

impl EtcdStore {
    fn sessions(&self) -> Sessions {
        Sessions { inner: self.inner.clone() }
    }
}

impl Sessions {
    /// When it ends, where its last heartbeat was heard here.
    fn deadline_ms(&self, id: SessionId, seen: &Seen) -> Option<u64> {
        self.inner.watched.deadlines().of(id, seen.last_beat())
    }

    /// What etcd knows of a session. One whose time has passed here is ended first, and one that is
    /// half ended is ended wholly.
    async fn look(&self, id: SessionId) -> Result<Option<Seen>, StoreError> {
        let mut seen = self.read(id).await?;
        for _ in 0..TRIES {
            let Some(session) = seen.as_ref().filter(|session| self.must_end(id, session)) else {
                break;
            };
            self.carry_out(id, session).await?;
            seen = self.read(id).await?;
        }
        Ok(seen)
    }

    /// A session that lives.
    async fn living(&self, id: SessionId) -> Result<Seen, StoreError> {
        let seen = self.look(id).await?.ok_or_else(|| NoSession::Unknown.of(id))?;
        seen.lives().map_err(|why| why.of(id))?;
        Ok(seen)
    }

    /// A session that takes heartbeats and leases.
    async fn serving(&self, id: SessionId) -> Result<Seen, StoreError> {
        let seen = self.living(id).await?;
        match (&seen.stored.blocked, seen.serves) {
            (None, Some(_)) => Ok(seen),
            (Some(blocked), _) => {
                let reason = blocked.reason.clone();
                let ends_in_ms = self.remaining_ms(id, &seen).await?;
                Err(NoSession::Blocked { reason, ends_in_ms }.of(id))
            }
            // Both keys that hang on its etcd lease go at once, so this is an etcd that was changed
            // by hand.
            (None, None) => Err(NoSession::Ended(seen.stored.natural_end()).of(id)),
        }
    }

    /// Why a session does not serve, after a step that asked for one that does.
    async fn refusal(&self, id: SessionId) -> StoreError {
        match self.serving(id).await {
            Ok(_) => busy(id),
            Err(error) => error,
        }
    }

    /// The steps that read what [`Seen`] holds.
    fn reading(&self, id: SessionId) -> [Op; 4] {
        let keys = &self.inner.keys;
        [
            Op::get(&keys.session_record(id)),
            Op::get(&keys.session_lives(id)),
            Op::get(&keys.session(id)),
            Op::count(&keys.bonds(id)),
        ]
    }

    async fn read(&self, id: SessionId) -> Result<Option<Seen>, StoreError> {
        let txn = Txn::reading(self.reading(id).into());
        Seen::read(self.inner.gateway.read(&txn).await.map_err(store_error)?)
    }

    async fn reply(&self, id: SessionId, seen: &Seen) -> Result<SessionReply, StoreError> {
        let stored = &seen.stored;
        Ok(SessionReply {
            session_id: id,
            owner: stored.owner.clone(),
            ttl_ms: stored.ttl_ms.ms(),
            expires_in_ms: self.remaining_ms(id, seen).await?,
            age_ms: self.inner.clock.wall_ms().saturating_sub(stored.created_at_ms),
            heartbeats: seen.heartbeats(),
            blocked: stored.blocked.as_ref().map(|blocked| blocked.reason.clone()),
            lease_count: seen.bonds,
            leases: Vec::new(),
            metadata: stored.metadata.as_deref().and_then(|m| serde_json::from_str(m).ok()),
            principal: stored.principal.clone(),
        })
    }

    /// What remains of it: to the millisecond where its last heartbeat was heard here, else what
    /// etcd's whole seconds leave. That is for people to read: etcd's time begins anew with a new
    /// leader, and the watch of the server that heard the heartbeat does not.
    async fn remaining_ms(&self, id: SessionId, seen: &Seen) -> Result<u64, StoreError> {
        if let Some(at_ms) = self.deadline_ms(id, seen) {
            return Ok(at_ms.saturating_sub(self.inner.clock.monotonic_ms()));
        }
        let left_s = self.inner.gateway.lease_remaining(seen.stored.lease).await;
        let left_ms = left_s.map_err(store_error)?.unwrap_or(0).saturating_mul(1_000);
        let ttl_ms = seen.stored.ttl_ms.ms();
        let longer_ms = seen.stored.lease_ttl_s.saturating_mul(1_000).saturating_sub(ttl_ms);
        Ok(left_ms.saturating_sub(longer_ms).min(ttl_ms))
    }

    fn store(&self) -> EtcdStore {
        EtcdStore { inner: self.inner.clone() }
    }
}

#[async_trait]
impl SessionStore for EtcdStore {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        let (sessions, id) = (self.sessions(), new.session_id);
        for _ in 0..TRIES {
            let Some(seen) = sessions.look(id).await? else {
                sessions.begin(&new).await?;
                continue;
            };
            seen.lives().map_err(|why| why.of(id))?;
            if seen.stored.owner != new.owner {
                return Err(NoSession::OtherOwner(seen.stored.owner).of(id));
            }
            let seen = sessions.heard_here(id, seen).await?;
            return sessions.reply(id, &seen).await;
        }
        Err(busy(id))
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let sessions = self.sessions();
        let seen = sessions.serving(session).await?;
        match sessions.beat(session, &seen.stored).await? {
            Some(seen) => sessions.reply(session, &seen).await,
            None => Err(sessions.refusal(session).await),
        }
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        let sessions = self.sessions();
        for _ in 0..TRIES {
            let seen = sessions.living(session).await?;
            let reason = SessionEndReason::Ended;
            if let Some(lease_count) = sessions.close(session, &seen, reason).await? {
                return Ok(SessionEndedReply { session_id: session, reason, lease_count });
            }
        }
        Err(busy(session))
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        let (sessions, keys, id) = (self.sessions(), &self.inner.keys, session);
        for _ in 0..TRIES {
            let seen = sessions.living(id).await?;
            let Some(beat) = seen.serves else { break };
            let (last_beat, heartbeats) = (beat.revision, beat.count);
            let mut stored = seen.stored.clone();
            stored.blocked = Some(Blocked { reason: reason.clone(), last_beat, heartbeats });
            let txn = Txn {
                compare: vec![
                    Compare::unchanged(&keys.session_record(id), seen.stored_revision),
                    Compare::unchanged(&keys.session(id), beat.revision),
                ],
                success: vec![
                    Op::put(&keys.session_record(id), &stored.text(), On::TheSame),
                    Op::delete(&keys.session(id)),
                ],
                failure: Vec::new(),
            };
            if self.inner.gateway.write(&txn).await.map_err(store_error)?.succeeded {
                break;
            }
        }
        self.show_session(id).await
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let mut reply = self.look_session(session).await?;
        let keys = &self.inner.keys;
        let page = self.inner.gateway.page(&keys.bonds(session), BONDS_READ).await;
        let bonds = page.map_err(store_error)?.kvs;
        let held = bonds.iter().filter(|bond| bond.value == terms::HELD);
        let leases = held.filter_map(|bond| keys.bond_of(session, &bond.key));
        reply.leases = leases
            .take(LEASES_SHOWN)
            .map(|(lock, lease_id)| SessionLease { lock, lease_id })
            .collect();
        Ok(reply)
    }

    async fn look_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let sessions = self.sessions();
        let seen = sessions.living(session).await?;
        sessions.reply(session, &seen).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let mut page = SessionPage { sessions: Vec::new(), next_after: None };
        let mut after = after;
        while page.sessions.len() < limit {
            let range = self.inner.keys.sessions_after(after);
            let found = self.inner.gateway.page(&range, limit - page.sessions.len()).await;
            let found = found.map_err(store_error)?;
            let ids: Vec<SessionId> =
                found.kvs.iter().filter_map(|kv| self.inner.keys.living(&kv.key)).collect();
            let looks = stream::iter(ids.clone()).map(|id| async move {
                match self.look_session(id).await {
                    Ok(session) => Ok(Some(session)),
                    // It ended since the list was read.
                    Err(StoreError::Session(_)) => Ok(None),
                    Err(error) => Err(error),
                }
            });
            let looks = looks.buffered(LOOKS_AT_ONCE);
            let live: Vec<Option<SessionReply>> = looks.try_collect().await?;
            page.sessions.extend(live.into_iter().flatten());
            after = ids.last().copied();
            page.next_after = after.filter(|_| found.count > found.kvs.len() as u64);
            if page.next_after.is_none() {
                break;
            }
        }
        Ok(page)
    }
}

fn busy(id: SessionId) -> StoreError {
    StoreError::Unavailable(format!(
        "session {id} changes all the time; nothing was done; try again"
    ))
}

//! Sessions in etcd: an etcd lease each, and everything that is bound to a session hangs on it.
//!
//! Keys, under `fencepost/<ns>/`:
//! - `S/<id>` is the session's record ([`Stored`]), on an etcd lease that outlives the session by the
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

mod ending;
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
use self::record::{Blocked, Deadline, Deadlines, Seen, Stored};
pub(super) use self::terms::Terms;
use super::leases::random_id;
use super::txn::{Compare, On, Op, Txn};
use super::{EtcdStore, Inner, TRIES, secs, store_error};
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
    /// Writes a new session; false where there is one of this id.
    async fn begin(&self, new: &NewSession) -> Result<bool, StoreError> {
        let (inner, id, limits) = (&self.inner, new.session_id, self.inner.options.limits);
        let records = Txn::reading(vec![Op::count(&inner.keys.session_records())]);
        let count = inner.gateway.read(&records).await.map_err(store_error)?;
        if count.ranges().next().unwrap_or_default().count >= limits.sessions as u64 {
            let what = "sessions live or remembered";
            return Err(StoreError::Limit { what, limit: limits.sessions as u64 });
        }
        let (lease, lease_after) = (random_id(), random_id());
        // Counted from before etcd counts, so that etcd never ends it first.
        let at_ms = inner.clock.monotonic_ms().saturating_add(new.ttl.ms());
        let granted = tokio::try_join!(
            inner.gateway.lease_grant(lease, secs(new.ttl.ms())),
            inner.gateway.lease_grant(lease_after, secs(new.ttl.ms() + limits.ended_retention_ms)),
        );
        let (lease_ttl_s, _) = granted.map_err(store_error)?;
        let stored = Stored::begin(new, inner.clock.wall_ms(), lease, lease_ttl_s, lease_after);
        let keys = &inner.keys;
        let txn = Txn {
            compare: vec![
                Compare::absent(&keys.session_record(id)),
                Compare::absent(&keys.session_lives(id)),
            ],
            success: vec![
                Op::put(&keys.session_record(id), &stored.text(), On::Lease(lease_after)),
                Op::put(&keys.session_lives(id), "", On::Lease(lease)),
                Op::put(&keys.session(id), &inner.server_id, On::Lease(lease)),
            ],
            failure: Vec::new(),
        };
        let reply = inner.gateway.write(&txn).await.map_err(store_error)?;
        if reply.succeeded {
            inner.watched.heard(id, Deadline { at_ms, beat: reply.header.revision });
        } else {
            // Somebody was faster; nothing hangs on these.
            self.store().revoke_later(vec![lease, lease_after]);
        }
        Ok(reply.succeeded)
    }

    /// Gives both etcd leases their time again, before it is said that the session has it.
    async fn keep_alive(&self, stored: &Stored) -> Result<(), StoreError> {
        let gateway = &self.inner.gateway;
        let both = tokio::try_join!(
            gateway.lease_keepalive(stored.lease),
            gateway.lease_keepalive(stored.lease_after),
        );
        both.map(|_| ()).map_err(store_error)
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
    /// etcd's whole seconds certainly leave.
    async fn remaining_ms(&self, id: SessionId, seen: &Seen) -> Result<u64, StoreError> {
        if let Some(at_ms) = self.inner.watched.deadlines().of(id, seen.last_beat()) {
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
            return sessions.reply(id, &seen).await;
        }
        Err(busy(id))
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let (sessions, inner, id) = (self.sessions(), &self.inner, session);
        let seen = sessions.serving(id).await?;
        // Counted from before etcd counts, so that etcd never ends it first.
        let at_ms = self.now_ms().saturating_add(seen.stored.ttl_ms.ms());
        sessions.keep_alive(&seen.stored).await?;
        let key = inner.keys.session(id);
        let mut success = vec![Op::put(&key, &inner.server_id, On::Lease(seen.stored.lease))];
        success.extend(sessions.reading(id));
        let txn = Txn { compare: vec![Compare::exists(&key)], success, failure: Vec::new() };
        match inner.gateway.write(&txn).await {
            Ok(reply) if reply.succeeded => {
                inner.watched.heard(id, Deadline { at_ms, beat: reply.header.revision });
                let seen = Seen::read(reply)?.ok_or_else(|| NoSession::Unknown.of(id))?;
                sessions.reply(id, &seen).await
            }
            Ok(_) => Err(sessions.refusal(id).await),
            Err(error) if error.is_no_lease() => Err(sessions.refusal(id).await),
            Err(error) => Err(store_error(error)),
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

//! The terms of a lease: its own time to live, or its session's.

use fence_protocol::{LeaseId, LockName, SessionId};

use super::super::EtcdStore;
use super::super::leases::Leases;
use super::super::txn::{Compare, On, Op};
use crate::store::{Acquire, NoSession, StoreError};

/// The value of a bond of a live lease.
pub(in crate::store::etcd) const HELD: &str = "h";
/// The value of a bond of a waiting request.
const WAITS: &str = "w";

/// How long a lease lives, and what its keys hang on.
#[derive(Clone, Debug, Default)]
pub(in crate::store::etcd) struct Terms {
    bound: Option<Bound>,
}

/// The session that a lease lives as long as, as it was a moment ago: the transaction that grants, or
/// queues, compares that it still serves.
#[derive(Clone, Debug)]
struct Bound {
    ttl_ms: u64,
    /// When the session ends, in milliseconds of our monotonic clock.
    until_ms: u64,
    leases: Leases,
    session_key: String,
    bond_key: String,
}

impl Terms {
    /// Whether a session keeps the lease.
    pub(in crate::store::etcd) fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The session's etcd leases; none where the lease gets its own.
    pub(in crate::store::etcd) fn leases(&self) -> Option<Leases> {
        self.bound.as_ref().map(|bound| bound.leases)
    }

    /// What the lease lives.
    pub(in crate::store::etcd) fn ttl_ms(&self, request: &Acquire) -> u64 {
        self.bound.as_ref().map_or(request.ttl.ms(), |bound| bound.ttl_ms)
    }

    /// What remains of the session.
    pub(in crate::store::etcd) fn remaining_ms(&self, now_ms: u64) -> Option<u64> {
        self.bound.as_ref().map(|bound| bound.until_ms.saturating_sub(now_ms))
    }

    /// What the granting, or queueing, transaction compares beside the lock: that the session takes
    /// leases.
    pub(in crate::store::etcd) fn compare(&self) -> Vec<Compare> {
        self.bound.iter().map(|bound| Compare::exists(&bound.session_key)).collect()
    }

    /// What the granting transaction does beside: the lease is bound.
    pub(in crate::store::etcd) fn hold(&self) -> Vec<Op> {
        let hold = |bound: &Bound| Op::put(&bound.bond_key, HELD, On::Lease(bound.leases.holder));
        self.bound.iter().map(hold).collect()
    }

    /// What the queueing transaction does beside: the request waits in the session's name. `place` is
    /// the etcd lease that its place hangs on.
    pub(in crate::store::etcd) fn wait(&self, place: u64) -> Vec<Op> {
        let wait = |bound: &Bound| Op::put(&bound.bond_key, WAITS, On::Lease(place));
        self.bound.iter().map(wait).collect()
    }
}

impl EtcdStore {
    /// The terms that a request's lease is granted on.
    ///
    /// # Errors
    /// [`StoreError::Session`] with why its session does not serve, [`StoreError::Limit`] where it
    /// has too many leases, [`StoreError::Unavailable`].
    pub(in crate::store::etcd) async fn terms(
        &self,
        request: &Acquire,
    ) -> Result<Terms, StoreError> {
        let Some(id) = request.session else { return Ok(Terms::default()) };
        let sessions = self.sessions();
        let seen = sessions.serving(id).await?;
        if seen.stored.owner != request.owner {
            return Err(NoSession::OtherOwner(seen.stored.owner).of(id));
        }
        let keys = &self.inner.keys;
        let bond_key = keys.bond(id, &request.lock, request.lease_id);
        let limit = self.inner.options.limits.session_leases;
        if seen.bonds >= limit && !self.is_bound(&bond_key).await? {
            let what = "leases and waiting requests of a session";
            return Err(StoreError::Limit { what, limit: limit as u64 });
        }
        let seen = sessions.heard_here(id, seen).await?;
        let until_ms = self.now_ms() + sessions.remaining_ms(id, &seen).await?;
        let (holder, record) = (seen.stored.lease, seen.stored.lease_after);
        Ok(Terms {
            bound: Some(Bound {
                ttl_ms: seen.stored.ttl_ms.ms(),
                until_ms,
                leases: Leases { holder, record, until_ms },
                session_key: keys.session(id),
                bond_key,
            }),
        })
    }

    async fn is_bound(&self, bond_key: &str) -> Result<bool, StoreError> {
        let txn = super::Txn::reading(vec![Op::get(bond_key)]);
        let reply = self.inner.gateway.read(&txn).await.map_err(super::store_error)?;
        Ok(reply.ranges().any(|range| !range.kvs.is_empty()))
    }

    /// What undoes a bond: a part of every transaction that ends a bound lease, or takes a waiting
    /// request out of its queue without granting it.
    pub(in crate::store::etcd) fn unbind(
        &self,
        session: Option<SessionId>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Vec<Op> {
        let keys = &self.inner.keys;
        session.iter().map(|id| Op::delete(&keys.bond(*id, lock, lease))).collect()
    }

    /// What remains of a session, in milliseconds, so that whoever relies on it may be told; 0 where
    /// that cannot be known.
    ///
    /// # Errors
    /// Where etcd cannot be used.
    pub(in crate::store::etcd) async fn session_told_ms(
        &self,
        session: SessionId,
    ) -> Result<u64, StoreError> {
        let sessions = self.sessions();
        let Some(seen) = sessions.look(session).await? else { return Ok(0) };
        if seen.lives().is_err() {
            return Ok(0);
        }
        let seen = match sessions.heard_here(session, seen).await {
            Err(StoreError::Session(_)) => return Ok(0),
            seen => seen?,
        };
        let deadline_ms = sessions.deadline_ms(session, &seen).unwrap_or(0);
        Ok(deadline_ms.saturating_sub(self.now_ms()))
    }

    /// What remains of a session, in milliseconds, for people to read; 0 where it has ended.
    ///
    /// # Errors
    /// Where etcd cannot be used.
    pub(in crate::store::etcd) async fn session_remaining_ms(
        &self,
        session: SessionId,
    ) -> Result<u64, StoreError> {
        let sessions = self.sessions();
        match sessions.look(session).await? {
            Some(seen) if seen.lives().is_ok() => sessions.remaining_ms(session, &seen).await,
            _ => Ok(0),
        }
    }

    /// Why a request's session does not serve any more.
    pub(in crate::store::etcd) async fn session_is_gone(&self, request: &Acquire) -> StoreError {
        match request.session {
            Some(id) => self.sessions().refusal(id).await,
            None => StoreError::Unavailable("the request has no session".to_owned()),
        }
    }
}

//! A wrapper of a store that publishes its replies as events.

use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

use super::Events;
use crate::store::report::report_waiting;
use crate::store::session::SessionStore;
use crate::store::{Acquire, Grant, ListQuery, LockStore, NewSession, Revoke, StoreError};

/// A store whose replies are published as events.
///
/// The handler of a revocation publishes it, because it knows the reason.
#[derive(Debug)]
pub struct Observed {
    store: Arc<dyn LockStore>,
    events: Events,
}

impl Observed {
    pub(super) fn new(store: Arc<dyn LockStore>, events: Events) -> Self {
        Self { store, events }
    }

    fn publish_grant(&self, lock: &LockName, session: Option<SessionId>, grant: &Grant) {
        let mut event = Event::new(EventKind::Granted).lock(lock).lease(grant.lease_id);
        (event.token, event.owner) = (Some(grant.token), Some(grant.owner.clone()));
        (event.ttl_ms, event.waited_ms) = (Some(grant.remaining_ms), Some(grant.waited_ms));
        (event.session_id, event.mode) = (session, grant.mode.wire());
        self.events.publish(event);
    }
}

#[async_trait]
impl LockStore for Observed {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let lock = request.lock.clone();
        let session = request.session;
        let result = match request.wait_ms {
            0 => self.store.acquire(request).await,
            _ => {
                let parts = [request.clone()];
                report_waiting(&self.events, &parts, self.store.acquire(request)).await
            }
        };
        if let Ok(grant) = &result {
            self.publish_grant(&lock, session, grant);
        }
        result
    }

    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let result = self.store.renew_as(principal, lock, lease, ttl).await;
        if let Err(StoreError::Lost { .. }) = result {
            self.events.check_lease(lock, lease);
        }
        result
    }

    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        let result = self.store.release_as(principal, lock, lease).await;
        match &result {
            Ok(ended) => self.events.publish_end(ended, None),
            Err(StoreError::Lost { .. }) => self.events.check_lease(lock, lease),
            Err(_) => {}
        }
        result
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        let requested: Vec<_> =
            parts.iter().map(|part| (part.lock.clone(), part.session)).collect();
        let result = match parts.iter().any(|part| part.wait_ms > 0) {
            false => self.store.acquire_all(parts).await,
            true => {
                report_waiting(&self.events, &parts, self.store.acquire_all(parts.clone())).await
            }
        };
        for ((lock, session), grant) in requested.iter().zip(result.iter().flatten()) {
            self.publish_grant(lock, *session, grant);
        }
        result
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.store.revoke(lock, revoke).await
    }

    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError> {
        self.store.mint(lock).await
    }

    async fn floor(&self) -> Result<Token, StoreError> {
        self.store.floor().await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        self.store.show(lock).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.store.list(query).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.store.lift(mark).await
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }
}

/// A store that has to be observed has no sessions, so they have no events.
#[async_trait]
impl SessionStore for Observed {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        self.store.create_session(new).await
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.store.heartbeat(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        self.store.end_session(session).await
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        self.store.block_session(session, reason).await
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.store.show_session(session).await
    }

    async fn look_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.store.look_session(session).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        self.store.list_sessions(after, limit).await
    }
}

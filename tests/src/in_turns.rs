//! Two servers of one namespace as one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use lock_server::store::session::SessionStore;
use lock_server::store::{Acquire, Grant, ListQuery, LockStore, NewSession, Revoke, StoreError};

/// A store whose calls go to two servers in turns.
#[derive(Debug)]
pub struct InTurns {
    servers: [Arc<dyn LockStore>; 2],
    calls: AtomicUsize,
}

impl InTurns {
    /// Of these two.
    pub fn new(one: Arc<dyn LockStore>, two: Arc<dyn LockStore>) -> Self {
        Self { servers: [one, two], calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &dyn LockStore {
        &*self.servers[self.calls.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl LockStore for InTurns {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        self.next().acquire(request).await
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        self.next().acquire_all(parts).await
    }

    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.next().renew_as(principal, lock, lease, ttl).await
    }

    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.next().release_as(principal, lock, lease).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.next().revoke(lock, revoke).await
    }

    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError> {
        self.next().mint(lock).await
    }

    async fn floor(&self) -> Result<Token, StoreError> {
        self.next().floor().await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        self.next().show(lock).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.next().list(query).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.next().lift(mark).await
    }

    fn name(&self) -> &'static str {
        "two servers in turns"
    }
}

#[async_trait]
impl SessionStore for InTurns {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        self.next().create_session(new).await
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.next().heartbeat(session).await
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        self.next().end_session(session).await
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        self.next().block_session(session, reason).await
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.next().show_session(session).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        self.next().list_sessions(after, limit).await
    }
}

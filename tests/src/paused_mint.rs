//! A store that pauses revocations before they mint their token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use lock_server::store::records::ServerId;
use lock_server::store::{
    Acquire, Grant, ListQuery, LockStore, NewSession, Report, Revoke, SessionStore, StoreError,
};
use tokio::sync::Notify;

/// A store whose [`mint`](LockStore::mint) waits, once it is armed.
#[derive(Debug)]
pub struct PausedMint {
    store: Arc<dyn LockStore>,
    is_armed: AtomicBool,
    reached: Notify,
    resumed: Notify,
}

impl PausedMint {
    /// Over this store; not armed.
    pub fn new(store: Arc<dyn LockStore>) -> Self {
        let is_armed = AtomicBool::new(false);
        Self { store, is_armed, reached: Notify::new(), resumed: Notify::new() }
    }

    /// Pauses from now on.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
    }

    /// Waits until a call is paused.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Resumes the call that is paused, and pauses no other.
    pub fn resume(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
        self.resumed.notify_one();
    }
}

#[async_trait]
impl LockStore for PausedMint {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        self.store.acquire(request).await
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        self.store.acquire_all(parts).await
    }

    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.store.renew_as(principal, lock, lease, ttl).await
    }

    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.store.release_as(principal, lock, lease).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.store.revoke(lock, revoke).await
    }

    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError> {
        if self.is_armed.load(Ordering::SeqCst) {
            self.reached.notify_one();
            self.resumed.notified().await;
        }
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

    fn report_to(&self, reports: Arc<dyn Report>) -> Option<ServerId> {
        self.store.report_to(reports)
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }
}

#[async_trait]
impl SessionStore for PausedMint {
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

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        self.store.list_sessions(after, limit).await
    }
}

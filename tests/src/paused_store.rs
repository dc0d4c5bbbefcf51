//! A store that pauses a step.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use lock_server::engines::contract::ServerId;
use lock_server::store::report::Report;
use lock_server::store::session::SessionStore;
use lock_server::store::{Acquire, Grant, ListQuery, LockStore, NewSession, Revoke, StoreError};
use tokio::sync::Notify;

/// A step that can be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedStep {
    /// [`LockStore::mint`], with which a revocation begins.
    Mint,
    /// [`LockStore::release_as`].
    Release,
}

/// A store that waits before a step, once it is armed.
#[derive(Debug)]
pub struct PausedStore {
    store: Arc<dyn LockStore>,
    armed: Mutex<Option<PausedStep>>,
    reached: Notify,
    resumed: Notify,
}

impl PausedStore {
    /// Over this store; not armed.
    pub fn new(store: Arc<dyn LockStore>) -> Self {
        let armed = Mutex::new(None);
        Self { store, armed, reached: Notify::new(), resumed: Notify::new() }
    }

    /// Pauses before this step from now on.
    ///
    /// # Panics
    /// If another test's thread has panicked meanwhile.
    pub fn arm(&self, step: PausedStep) {
        *self.armed.lock().expect("no panic") = Some(step);
    }

    /// Waits until a call is paused.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Resumes the call that is paused, and pauses no other.
    ///
    /// # Panics
    /// As [`arm`](Self::arm).
    pub fn resume(&self) {
        *self.armed.lock().expect("no panic") = None;
        self.resumed.notify_one();
    }

    async fn pause(&self, step: PausedStep) {
        let is_armed = *self.armed.lock().expect("no panic") == Some(step);
        if is_armed {
            self.reached.notify_one();
            self.resumed.notified().await;
        }
    }
}

#[async_trait]
impl LockStore for PausedStore {
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
        self.pause(PausedStep::Release).await;
        self.store.release_as(principal, lock, lease).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.store.revoke(lock, revoke).await
    }

    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError> {
        self.pause(PausedStep::Mint).await;
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
impl SessionStore for PausedStore {
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

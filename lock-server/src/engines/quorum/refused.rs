//! Refusals of requests that this engine does not offer, before anything is sent.

use async_trait::async_trait;
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{Owner, SessionId};

use super::{NAME, QuorumStore};
use crate::store::session::SessionStore;
use crate::store::{Acquire, Mode, NewSession, StoreError, Takeover};

/// The refusal of something that only a store with one record a namespace can do.
pub(super) fn not_offered(what: &'static str) -> StoreError {
    StoreError::NotOffered { store: NAME, what }
}

/// Checks that this store can do what the request asks for.
///
/// # Errors
/// [`StoreError::NotOffered`].
pub(super) fn check(request: &Acquire) -> Result<(), StoreError> {
    if request.mode != Mode::Exclusive {
        return Err(not_offered("shared leases and permits"));
    }
    if request.takeover != Takeover::Never {
        return Err(not_offered("takeover"));
    }
    if request.session.is_some() {
        return Err(not_offered("sessions"));
    }
    if request.lock_delay_ms > 0 {
        return Err(not_offered("lock-delays"));
    }
    Ok(())
}

#[async_trait]
impl SessionStore for QuorumStore {
    async fn create_session(&self, _: NewSession) -> Result<SessionReply, StoreError> {
        Err(not_offered("sessions"))
    }

    async fn heartbeat(&self, _: SessionId) -> Result<SessionReply, StoreError> {
        Err(not_offered("sessions"))
    }

    async fn end_session(&self, _: SessionId) -> Result<SessionEndedReply, StoreError> {
        Err(not_offered("sessions"))
    }

    async fn block_session(&self, _: SessionId, _: Owner) -> Result<SessionReply, StoreError> {
        Err(not_offered("sessions"))
    }

    async fn show_session(&self, _: SessionId) -> Result<SessionReply, StoreError> {
        Err(not_offered("sessions"))
    }

    async fn list_sessions(
        &self,
        _: Option<SessionId>,
        _: usize,
    ) -> Result<SessionPage, StoreError> {
        Err(not_offered("sessions"))
    }
}

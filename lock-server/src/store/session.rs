//! Sessions: one heartbeat keeps every lease that is bound to it.

use std::fmt;

use async_trait::async_trait;
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{Owner, SessionId};

use super::{NewSession, StoreError};

/// Sessions of a store.
///
/// # Contract
/// - The session's expiry alone decides how long its leases live: a heartbeat writes the session
///   alone, however many leases are bound to it.
/// - When a session ends, all its leases end in the same transition. The waiters for their locks
///   are granted, and its own waiting requests are refused.
/// - Only its live holder can shorten a session: blocking refuses heartbeats and new leases, and
///   lets the time pass.
#[async_trait]
pub trait SessionStore: Send + Sync + fmt::Debug + 'static {
    /// Begins a session. Idempotent: a retry with the same id and owner gets the same session.
    ///
    /// # Errors
    /// [`StoreError::Session`] for an id that has ended or is another owner's,
    /// [`StoreError::Limit`].
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError>;

    /// Restores the time to live of a session, and so of its leases.
    ///
    /// # Errors
    /// [`StoreError::Session`] if it has ended, is blocked, or is unknown.
    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError>;

    /// Ends a session and everything that is bound to it.
    ///
    /// # Errors
    /// [`StoreError::Session`] where it has ended or is not known.
    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError>;

    /// Refuses heartbeats and new leases from now on; the first reason stays.
    ///
    /// # Errors
    /// [`StoreError::Session`] where it has ended or is not known.
    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError>;

    /// One live session with its leases.
    ///
    /// # Errors
    /// [`StoreError::Session`] where it has ended or is not known.
    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError>;

    /// One live session; its leases may be left out, so that it costs the same for any number.
    ///
    /// # Errors
    /// [`StoreError::Session`] where it has ended or is not known.
    async fn look_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.show_session(session).await
    }

    /// Live sessions in the order of their ids, without their leases.
    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError>;
}

//! Sessions in Redis: one record each, which its leases refer to.

use async_trait::async_trait;
use fence_protocol::wire::session::{
    SessionEndReason, SessionEndedReply, SessionPage, SessionReply,
};
use fence_protocol::{Owner, SessionId};

use super::RedisStore;
use super::reply::{self, Answer};
use crate::store::{NewSession, SessionStore, StoreError};

/// How many bonds of an ended session are cleared away in one step, so that no step holds Redis up.
const CLEAR: usize = 256;
/// How many such steps follow at once; the sweep does what a broken connection leaves.
const STEPS_MAX: usize = 1_000;

impl RedisStore {
    async fn session(
        &self,
        id: SessionId,
        verb: &str,
        word: &str,
        new: Option<&NewSession>,
    ) -> Result<Answer, StoreError> {
        let limit = self.inner.options.limits.sessions;
        let answer = self
            .run(&self.inner.scripts.session, |command| {
                command.arg(id.to_string()).arg(verb).arg(word);
                command.arg(new.map_or(0, |new| new.ttl.ms()));
                command.arg(new.and_then(|new| new.metadata.as_deref()).unwrap_or_default());
                command.arg(limit);
                command.arg(new.and_then(|new| new.principal.as_deref()).unwrap_or_default());
            })
            .await?;
        match answer {
            Answer::NoSession(StoreError::Limit { what, .. }) => {
                Err(StoreError::Limit { what, limit: limit as u64 })
            }
            Answer::NoSession(refusal) => Err(refusal),
            answer => Ok(answer),
        }
    }

    async fn live(
        &self,
        id: SessionId,
        verb: &str,
        word: &str,
        new: Option<&NewSession>,
    ) -> Result<SessionReply, StoreError> {
        match self.session(id, verb, word, new).await? {
            Answer::Live(session) => Ok(*session),
            other => Err(reply::unexpected(&other)),
        }
    }

    /// Clears away what an ended session leaves, a part at a time. It has ended for everybody by
    /// now; this wakes those who wait for its locks.
    async fn clear(&self, id: SessionId) {
        for _ in 0..STEPS_MAX {
            match self.session(id, "clear", &CLEAR.to_string(), None).await {
                Ok(Answer::Gone { left, .. }) if left > 0 => tokio::task::yield_now().await,
                Ok(_) => return,
                Err(error) => {
                    tracing::debug!(%id, %error, "the sweep clears the rest of a session away");
                    return;
                }
            }
        }
    }
}

#[async_trait]
impl SessionStore for RedisStore {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        self.live(new.session_id, "create", new.owner.as_str(), Some(&new)).await
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.live(session, "heartbeat", "", None).await
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        match self.session(session, "end", "", None).await? {
            Answer::Gone { bonds, left } => {
                if left > 0 {
                    self.clear(session).await;
                }
                let reason = SessionEndReason::Ended;
                Ok(SessionEndedReply { session_id: session, reason, lease_count: bonds })
            }
            other => Err(reply::unexpected(&other)),
        }
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        self.live(session, "block", reason.as_str(), None).await?;
        self.show_session(session).await
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.live(session, "show", "", None).await
    }

    async fn look_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        self.live(session, "look", "", None).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        let ids = self.session_ids().await?;
        let behind = |id: &SessionId| after.is_none_or(|after| *id > after);
        let mut ids = ids.into_iter().filter(behind).peekable();
        let mut page = SessionPage { sessions: Vec::new(), next_after: None };
        while page.sessions.len() < limit
            && let Some(id) = ids.next()
        {
            match self.live(id, "look", "", None).await {
                Ok(session) => page.sessions.push(session),
                // It ended since the list was read.
                Err(StoreError::Session(_)) => {}
                Err(error) => return Err(error),
            }
            page.next_after = ids.peek().is_some().then_some(id);
        }
        Ok(page)
    }
}

//! The contract of sessions as plain requests.

use fence_protocol::SessionId;
use fence_protocol::wire::session::SessionReply;
use http::Method;
use serde_json::{Value, json};

use crate::api::{Api, Reply};

/// lock-server's contract for sessions.
#[derive(Clone, Debug)]
pub struct Sessions(pub Api);

impl Sessions {
    /// `POST /v1/sessions`, or an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn try_create(&self, body: &Value) -> Result<Reply, String> {
        self.attempt(Method::POST, "/v1/sessions", body.to_string()).await
    }

    /// A session that must be had at once. Where the store was too slow, the request is retried
    /// with its id.
    ///
    /// # Panics
    /// If it is refused or not answered.
    pub async fn begin(&self, owner: &str, ttl_ms: u64) -> SessionReply {
        let session = crate::key_file::session_id();
        let ask = json!({"session_id": session, "owner": owner, "ttl_ms": ttl_ms});
        crate::wait::until("a session", || async {
            let reply = self.try_create(&ask).await.expect("an answer");
            (!reply.is_of_a_slow_store()).then(|| reply.expect(200).read())
        })
        .await
    }

    /// `POST …/heartbeat`, or an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn heartbeat(&self, session: SessionId) -> Result<Reply, String> {
        self.attempt(Method::POST, &format!("/v1/sessions/{session}/heartbeat"), "{}").await
    }

    /// `DELETE …`, or an error where no complete reply came back.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub async fn end(&self, session: SessionId) -> Result<Reply, String> {
        self.attempt(Method::DELETE, &format!("/v1/sessions/{session}"), "").await
    }

    async fn attempt(
        &self,
        method: Method,
        path: &str,
        body: impl Into<bytes::Bytes>,
    ) -> Result<Reply, String> {
        let json = [("content-type", "application/json")];
        self.0.attempt(method, path, &json, body.into()).await
    }
}

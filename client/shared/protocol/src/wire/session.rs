//! Sessions: a client process whose heartbeat keeps all of its leases.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::words;
use crate::{LeaseId, LockName, Owner, SessionId, Ttl};

/// `POST /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Time to live of the session without a heartbeat.
    #[serde(default)]
    pub ttl_ms: Ttl,
    /// Owner of the session and of every lease of it.
    pub owner: Owner,
    /// Id of the session. A retry with the same id is idempotent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Any JSON, shown with the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The reply to creating, heartbeat, block and `GET /v1/sessions/{id}`: a live session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionReply {
    /// Id of the session.
    pub session_id: SessionId,
    /// Owner of the session.
    pub owner: Owner,
    /// The time to live that a heartbeat restores, in milliseconds.
    pub ttl_ms: u64,
    /// Remaining time without a heartbeat, in milliseconds.
    pub expires_in_ms: u64,
    /// Time since its begin, in milliseconds.
    pub age_ms: u64,
    /// Number of heartbeats.
    pub heartbeats: u64,
    /// Reason why it was blocked: heartbeats are refused, and it ends after `expires_in_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Owner>,
    /// Number of leases that it holds or waits for.
    pub lease_count: usize,
    /// The leases that it holds, in the order of the locks' names; at most 100, and only where one
    /// session is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<SessionLease>,
    /// Metadata of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Principal of the access file that began it, if the server had one: no other principal may
    /// use the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// A lease of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionLease {
    /// Name of the lock.
    pub lock: LockName,
    /// The grant.
    pub lease_id: LeaseId,
}

/// The reply to `DELETE /v1/sessions/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionEndedReply {
    /// Id of the session.
    pub session_id: SessionId,
    /// Reason of the end.
    pub reason: SessionEndReason,
    /// Number of leases and waiting requests that ended with it.
    pub lease_count: usize,
}

/// `POST /v1/sessions/{id}/block`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlockRequest {
    /// Why, for the audit log and for the client: 1 to 256 bytes.
    pub reason: Owner,
}

words! {
    /// Reason of a session's end.
    pub enum SessionEndReason {
        /// Its time to live passed without a heartbeat.
        Expired = "expired",
        /// Its client ended it.
        Ended = "ended",
        /// An operator had blocked it, and then its time to live passed.
        Blocked = "blocked",
    }
}

/// `GET /v1/sessions`: live sessions in the order of their ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionPage {
    /// One entry a session.
    pub sessions: Vec<SessionReply>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<SessionId>,
}

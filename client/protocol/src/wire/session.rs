//! Sessions: a client process whose heartbeat keeps all of its leases.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{LeaseId, LockName, Owner, SessionId, Ttl};

/// `POST /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// How long the session lives without a heartbeat.
    #[serde(default)]
    pub ttl_ms: Ttl,
    /// Who; every lease of the session has this owner.
    pub owner: Owner,
    /// The id of the session. A repeat with the same id gets the same session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Anything that people who look at the session should see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// The reply to creating, heartbeat, block and `GET /v1/sessions/{id}`: a live session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReply {
    /// The session.
    pub session_id: SessionId,
    /// Who.
    pub owner: Owner,
    /// The time to live that a heartbeat restores, in milliseconds.
    pub ttl_ms: u64,
    /// What remains without a heartbeat, in milliseconds.
    pub expires_in_ms: u64,
    /// How long ago it began, in milliseconds.
    pub age_ms: u64,
    /// How often it was renewed.
    pub heartbeats: u64,
    /// Why it was blocked: heartbeats are refused, and it ends when `expires_in_ms` have passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Owner>,
    /// How many leases it holds and waits for.
    pub lease_count: usize,
    /// The leases that it holds, in the order of the locks' names; at most 100, and only where one
    /// session is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<SessionLease>,
    /// What its client wanted people to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Whose it is by the server's access file, where there was one when it began: nobody else may
    /// use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// A lease of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionLease {
    /// The lock.
    pub lock: LockName,
    /// The grant.
    pub lease_id: LeaseId,
}

/// The reply to `DELETE /v1/sessions/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionEndedReply {
    /// The session.
    pub session_id: SessionId,
    /// How it ended.
    pub reason: SessionEndReason,
    /// How many leases and waiting requests ended with it.
    pub lease_count: usize,
}

/// `POST /v1/sessions/{id}/block`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRequest {
    /// Why, for the audit log and for the client: 1 to 256 bytes.
    pub reason: Owner,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionEndReason {
    /// Its time to live passed without a heartbeat.
    Expired,
    /// Its client ended it.
    Ended,
    /// An operator had blocked it, and then its time to live passed.
    Blocked,
}

impl SessionEndReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Ended => "ended",
            Self::Blocked => "blocked",
        }
    }

    /// The reason that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Expired, Self::Ended, Self::Blocked].into_iter().find(|end| end.as_str() == word)
    }
}

/// `GET /v1/sessions`: live sessions in the order of their ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionPage {
    /// One entry a session.
    pub sessions: Vec<SessionReply>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<SessionId>,
}

//! Several locks in one step.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lock::{LeaseMode, LeaseReply};
use crate::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

/// `POST /v1/acquire`: all of the locks in one step, or none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AcquireAllRequest {
    /// 1 to [`LOCKS_PER_ACQUIRE_MAX`](super::lock::LOCKS_PER_ACQUIRE_MAX), each once.
    pub locks: Vec<LockWish>,
    /// How long the leases live unless they are renewed.
    pub ttl_ms: Ttl,
    /// How long to wait in the queues; 0 answers at once.
    pub wait_ms: u64,
    /// Who asks, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The id of every grant. A repeat with the same id gets the same grants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// Anything that people who look at the locks should see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The session that the leases live as long as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Which life of the owner asks, so that a later one can take the leases over one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Owner>,
}

/// One lock of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockWish {
    /// The lock.
    pub lock: LockName,
    /// How the lease shares it.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Of a permit, and only there: how many the semaphore has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// The grant's token must exceed this one: a guard has seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_token: Option<Token>,
}

/// The reply to [`AcquireAllRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeasesReply {
    /// In the order of the request.
    pub leases: Vec<LeaseReply>,
}

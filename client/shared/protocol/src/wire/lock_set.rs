//! Several locks in one step.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[cfg(feature = "schema")]
use super::lock::{LOCKS_PER_ACQUIRE_MAX, MAX_WAIT_MS, PERMITS_MAX};
use super::lock::{LeaseMode, LeaseReply};
use crate::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

/// `POST /v1/acquire`: all of the locks in one step, or none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AcquireAllRequest {
    /// Each lock once; the tokens of their grants rise in this order.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = LOCKS_PER_ACQUIRE_MAX)))]
    pub locks: Vec<LockWish>,
    /// Time to live of the leases unless they are renewed.
    pub ttl_ms: Ttl,
    /// Longest wait in the queues, in milliseconds; 0 for a reply at once.
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_WAIT_MS)))]
    pub wait_ms: u64,
    /// Owner of the leases, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Id of every grant. A retry with the same id is idempotent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// Any JSON, shown with the locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Session of the leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Incarnation of the owner, so that a later one can take the leases over one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Owner>,
}

/// One lock of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LockWish {
    /// Name of the lock.
    pub lock: LockName,
    /// Mode of the lease.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Size of the semaphore; with mode `permit` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = PERMITS_MAX)))]
    pub size: Option<u32>,
    /// The grant's token must exceed this one: a guard has seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_token: Option<Token>,
}

/// The reply to [`AcquireAllRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeasesReply {
    /// In the order of the request.
    pub leases: Vec<LeaseReply>,
}

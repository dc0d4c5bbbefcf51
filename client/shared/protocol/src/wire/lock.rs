//! Requests and replies of lock-server.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::words;
use crate::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

/// The longest that an acquire may wait, in milliseconds.
pub const MAX_WAIT_MS: u64 = 300_000;
/// The largest metadata, as JSON text, in bytes.
pub const METADATA_BYTES_MAX: usize = 4_096;
/// The largest semaphore.
pub const PERMITS_MAX: u32 = 1_024;
/// Largest number of locks in one request.
pub const LOCKS_PER_ACQUIRE_MAX: usize = 64;

/// `POST /v1/locks/{lock}/acquire`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AcquireRequest {
    /// Time to live of the lease unless it is renewed.
    pub ttl_ms: Ttl,
    /// Longest wait in the queue, in milliseconds; 0 for a reply at once.
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_WAIT_MS)))]
    pub wait_ms: u64,
    /// Owner of the lease, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Id of the grant. A retry with the same id is idempotent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// Any JSON, shown with the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// The grant's token must exceed this one: a guard has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_token: Option<Token>,
    /// Session of the lease, which lives as long as the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Incarnation of the owner: a text that every restart changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Owner>,
    /// Takes the lock over from an earlier incarnation of the same owner, at once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takeover: bool,
    /// Takes the lock over from this lease of the same owner, at once: its holder is known to be
    /// dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takeover_of: Option<LeaseId>,
    /// Mode of the lease.
    #[serde(skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Size of the semaphore, 1 to [`PERMITS_MAX`]; with mode `permit` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = PERMITS_MAX)))]
    pub size: Option<u32>,
}

words! {
    /// Mode of a lease.
    #[derive(Default)]
    pub enum LeaseMode {
        /// The only lease of the lock.
        #[default]
        Exclusive = "exclusive",
        /// Beside other shared leases; not beside an exclusive one.
        Shared = "shared",
        /// One permit of a semaphore.
        Permit = "permit",
    }
}

impl LeaseMode {
    /// `true` for an exclusive lease.
    pub fn is_exclusive(&self) -> bool {
        *self == Self::Exclusive
    }
}

/// The reply to acquire and renew: a live lease.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseReply {
    /// Name of the lock.
    pub lock: LockName,
    /// The grant.
    pub lease_id: LeaseId,
    /// Mode of the lease.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// The fencing token of the grant.
    pub token: Token,
    /// Remaining time of the lease, in milliseconds.
    pub ttl_ms: u64,
    /// Owner of the lease.
    pub owner: Owner,
    /// Time that the acquire waited, in milliseconds; 0 for a renewal.
    pub waited_ms: u64,
    /// The same token for the Redis port, as the password of its clients or in their URL
    /// (see [`crate::credential`]).
    pub fencing_credential: String,
    /// The value of the `Fencing-Token` header, ready to send to the guard. It stays the last
    /// member: the documentation's one-line shell functions cut it off the end.
    pub fencing_token: String,
}

/// Shows no credential.
impl fmt::Debug for LeaseReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LeaseReply");
        shown.field("lock", &self.lock).field("lease_id", &self.lease_id);
        shown.field("token", &self.token).finish_non_exhaustive()
    }
}

/// `POST /v1/locks/{lock}/renew`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The lease to renew.
    pub lease_id: LeaseId,
    /// A new time to live; without it the lease's own is used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<Ttl>,
}

/// `POST /v1/locks/{lock}/release`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The lease to end.
    pub lease_id: LeaseId,
}

/// The reply to release and revoke.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndedReply {
    /// Name of the lock.
    pub lock: LockName,
    /// The lease that ended.
    pub lease_id: LeaseId,
    /// Its token.
    pub token: Token,
    /// Reason of the end.
    pub reason: EndReason,
}

/// `POST /v1/locks/{lock}/revoke`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Why, for the holder and the audit log: 1 to 256 bytes.
    pub reason: Owner,
    /// Only this lease; without it every lease of the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
}

/// The reply to [`RevokeRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RevokedReply {
    /// The lease that ended, or the oldest of them; none where only a lock-delay was lifted.
    #[serde(flatten)]
    pub ended: Option<EndedReply>,
    /// The other leases that ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<EndedReply>,
    /// `true` if a lock-delay was lifted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delay_lifted: bool,
    /// Outcome of sealing each guard before the lease ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardSeal>,
}

/// Outcome of sealing one guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardSeal {
    /// Address of the guard, without credentials.
    pub guard: String,
    /// Mark in its reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Token>,
    /// Reason why it was not sealed; absent if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

words! {
    /// Reason of a lease's end.
    pub enum EndReason {
        /// Its time to live passed without a renewal, or nothing is remembered of it and no other
        /// lease holds the lock.
        Expired = "expired",
        /// The same owner took the lock over, or another lease holds the lock and nothing more is
        /// remembered of this one.
        Superseded = "superseded",
        /// Its holder released it, or it was rolled back because the grant could not be delivered.
        Released = "released",
        /// An operator ended it.
        Revoked = "revoked",
        /// The session that it was bound to ended.
        SessionEnded = "session-ended",
    }
}

/// Holder of a lock, as shown to other callers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderInfo {
    /// Owner of the lease.
    pub owner: Owner,
    /// The token of the grant.
    pub token: Token,
    /// For how long it has been held, in milliseconds.
    pub held_ms: u64,
    /// When it expires unless it is renewed, in milliseconds from now.
    pub expires_in_ms: u64,
}

/// `GET /v1/locks/{lock}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockReply {
    /// Name of the lock.
    pub lock: LockName,
    /// `free` or `held`.
    pub state: LockState,
    /// The live lease, where there is one; of several the one that was granted first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderReply>,
    /// The other live leases, in the order of their grants; at most 100 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_held: Vec<HolderReply>,
    /// Number of live leases.
    #[serde(default)]
    pub lease_count: usize,
    /// Number of permits, while the lock is in use as a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Remaining lock-delay of the lock, or of one of its permits, in milliseconds; the longest of
    /// several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
    /// Number of waiters.
    pub queue_length: usize,
    /// Waiters in arrival order; at most 100 are listed.
    pub queue: Vec<WaiterReply>,
    /// The leases that ended last, newest first; kept for the time of `--ended-retention` after
    /// the lock became idle, at most 8.
    pub history: Vec<EndedLease>,
}

words! {
    /// State of a lock.
    pub enum LockState {
        /// No lease is live.
        Free = "free",
        /// A lease is live.
        Held = "held",
        /// No lease is live, and none is granted until the lock-delay is over.
        Delayed = "delayed",
    }
}

/// The live lease of a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderReply {
    /// The grant.
    pub lease_id: LeaseId,
    /// Owner, token and times.
    #[serde(flatten)]
    pub info: HolderInfo,
    /// The time to live that a renewal restores, in milliseconds.
    pub ttl_ms: u64,
    /// Number of renewals.
    pub renewals: u64,
    /// Mode of the lease.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Session of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Incarnation of its owner, if the request named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Owner>,
    /// Metadata of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// A waiter in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaiterReply {
    /// The id that its grant will have.
    pub lease_id: LeaseId,
    /// Owner of the request.
    pub owner: Owner,
    /// Time waited so far, in milliseconds.
    pub waiting_ms: u64,
    /// Mode of its lease.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
}

/// A lease that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EndedLease {
    /// The grant.
    pub lease_id: LeaseId,
    /// Its token; none where a release came before its acquire.
    pub token: Option<Token>,
    /// Owner of the lease, if known.
    pub owner: Option<Owner>,
    /// Reason of the end.
    pub reason: EndReason,
    /// Reason that the operator who revoked it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Owner>,
    /// For how long it was held, in milliseconds.
    pub held_ms: u64,
    /// Time since its end, in milliseconds.
    pub ended_ms_ago: u64,
}

words! {
    /// Locks that a listing is narrowed to.
    pub enum LockFilter {
        /// With a live lease, not with a lock-delay alone.
        Held = "held",
        /// With waiters.
        Waiting = "waiting",
        /// With refused operations that the server remembers; also free ones.
        Refused = "refused",
    }
}

words! {
    /// Order of the locks on a page, the largest value first.
    pub enum LockOrder {
        /// Number of waiters.
        Queue = "queue",
        /// Time for which the lock has been held.
        Age = "age",
        /// Number of refused operations.
        Refusals = "refusals",
    }
}

/// The query of `GET /v1/locks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LockQuery {
    /// Begin of the names.
    pub prefix: String,
    /// Only names after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<LockName>,
    /// Most locks that are read for the page; filters drop some of them.
    pub limit: usize,
    /// Only such locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<LockFilter>,
    /// Only locks that an owner holds whose name contains this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Order of the page in place of that of the names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<LockOrder>,
}

impl Default for LockQuery {
    fn default() -> Self {
        let prefix = String::new();
        Self { prefix, after: None, limit: 100, filter: None, owner: None, sort: None }
    }
}

/// `GET /v1/locks`: held locks in the order of their names, unless `sort` names another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockPage {
    /// One line a lock.
    pub locks: Vec<LockLine>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<LockName>,
}

/// A lock in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockLine {
    /// Name of the lock.
    pub lock: LockName,
    /// Its live lease, or the one before its lock-delay; of several the first whose owner is
    /// searched for, or else the first. Absent only with the filter `refused`.
    #[serde(flatten)]
    pub holder: Option<HolderInfo>,
    /// Number of waiters.
    pub queue_length: usize,
    /// Mode of its leases.
    #[serde(default, skip_serializing_if = "LeaseMode::is_exclusive")]
    pub mode: LeaseMode,
    /// Number of live leases, if it is not 1; 0 in a lock-delay, and of a free lock.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub lease_count: usize,
    /// Number of permits, while the lock is in use as a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Number of refused operations among the events that the server remembers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: usize,
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_acquire_takes_the_defaults() {
        let request: AcquireRequest = serde_json::from_str("{}").unwrap();
        assert_eq!(request.ttl_ms.ms(), 15_000);
        assert_eq!(request.wait_ms, 0);
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let error = serde_json::from_str::<AcquireRequest>(r#"{"tll_ms":5}"#).unwrap_err();
        assert!(error.to_string().contains("tll_ms"), "{error}");
    }

    #[test]
    fn reasons_are_words() {
        for reason in [EndReason::Expired, EndReason::SessionEnded, EndReason::Superseded] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(EndReason::from_word(reason.as_str()), Some(reason));
        }
        assert_eq!(EndReason::from_word("nope"), None);
    }
}

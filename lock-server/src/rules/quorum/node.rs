//! One node, as a state machine: the reference for its scripts.

use fence_protocol::{LeaseId, LockName, Owner, Token};

use super::Bucket;

/// Tells a node of a lease that a majority holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopUp {
    /// The lock.
    pub lock: LockName,
    /// Its bucket.
    pub bucket: Bucket,
    /// The id of the grant.
    pub lease: LeaseId,
    /// The token that a majority confirmed for it.
    pub token: Token,
    /// What remains of the lease, in milliseconds.
    pub remaining_ms: u64,
    /// The time to live that a renewal restores, in milliseconds.
    pub ttl_ms: u64,
    /// Who holds it.
    pub owner: Owner,
    /// As in [`Vote::metadata`](super::Vote::metadata).
    pub metadata: String,
    /// The attempt that the grant was made for, so that [`End::Drop`](super::End::Drop) takes it back
    /// here as well; empty after a renewal.
    pub attempt: String,
    /// For how long ended ids are remembered, in milliseconds.
    pub retention_ms: u64,
}

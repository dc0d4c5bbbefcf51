//! Replies of fenced-store.

use serde::{Deserialize, Serialize};

use crate::{LeaseId, LockName, Owner, Token};

/// What a guard guarantees for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// The store itself checks the token and applies the operation in one step.
    Atomic,
    /// The guard drains, and trusts a stated maximum request lifetime.
    Bounded,
}

impl Guarantee {
    /// The word on the wire and in the `Fencing-Guarantee` header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Bounded => "bounded",
        }
    }
}

/// What became of an operation that was not answered with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was done.
    Applied,
    /// It was not done and will not be.
    NotApplied,
    /// Nobody knows.
    Unknown,
}

/// `POST /v1/fences/{lock}/seal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealReply {
    /// The lock.
    pub lock: LockName,
    /// Its mark: nothing below it is applied from now on.
    pub mark: Token,
}

/// `GET /v1/fences/{lock}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FenceReply {
    /// The lock.
    pub lock: LockName,
    /// The highest token seen; none where no token has been seen.
    pub mark: Option<Token>,
    /// The lease that owns the mark.
    pub lease_id: Option<LeaseId>,
    /// What the guard guarantees.
    pub guarantee: Guarantee,
    /// How many operations this guard process refused since it started.
    pub refused_total: u64,
    /// The last of them, newest first, at most 16.
    pub last_refusals: Vec<Refusal>,
}

/// An operation that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The token that was presented.
    pub token: Token,
    /// The lease that presented it.
    pub lease_id: LeaseId,
    /// What it tried to do: method and key.
    pub operation: String,
    /// The stable word of the refusal: `stale-token` or `token-collision`.
    pub code: String,
    /// The mark that it met.
    pub mark: Token,
    /// How long ago, in milliseconds.
    pub ms_ago: u64,
    /// Who, where the caller said so in the `Fence-Owner` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// `GET /v1/fences`: fences in the order of their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FencePage {
    /// One line a fence.
    pub fences: Vec<FenceLine>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<LockName>,
}

/// A fence in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FenceLine {
    /// The lock.
    pub lock: LockName,
    /// The highest token seen.
    pub mark: Token,
    /// The lease that owns it.
    pub lease_id: LeaseId,
    /// How many operations this guard process refused since it started.
    pub refused_total: u64,
}

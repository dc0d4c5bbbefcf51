//! Replies of fenced-store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Invalid, LeaseId, LockName, Namespace, Owner, Token};

/// What a guard guarantees for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// The store itself checks the token and applies the operation in one step.
    Atomic,
    /// The guard drains, and trusts a stated maximum request lifetime.
    Bounded,
    /// Nothing: the guard only watches, and what it would refuse is done all the same.
    Observe,
}

impl Guarantee {
    /// Every guarantee.
    pub const ALL: [Self; 3] = [Self::Atomic, Self::Bounded, Self::Observe];

    /// The word on the wire and in the `Fencing-Guarantee` header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Bounded => "bounded",
            Self::Observe => "observe",
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

/// `POST /v1/floor`, and the reply to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloorRequest {
    /// The first token to be admitted: nothing below it is applied from now on.
    pub floor: Token,
    /// State it although it is far above the clock floor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
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
    /// The stable word of the refusal: `stale-token` or `token-collision`; `forbidden` of a script at the
    /// Redis port.
    pub code: String,
    /// The mark that it met; the token itself where that was not refused.
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
    /// The highest mark of the whole namespace, whatever the page shows; absent where no token has
    /// been seen, and for those who may not read the whole namespace. A lock server whose tokens are not above it grants nothing that the guard takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_mark: Option<Token>,
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

/// Whether a guard refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// What the fence refuses is refused.
    #[default]
    Enforce,
    /// What the fence would refuse is counted, logged, and done.
    Observe,
}

impl Mode {
    /// The word on the wire and in the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "enforce" => Ok(Self::Enforce),
            "observe" => Ok(Self::Observe),
            _ => Err(Invalid::new("mode", text, "must be enforce or observe")),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `GET /v1/stores`: everything that this guard stands before, and how far it can be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoresReply {
    /// The namespace that tokens must belong to.
    pub namespace: Namespace,
    /// Whether anything is refused.
    pub mode: Mode,
    /// One line a store.
    pub stores: Vec<StoreLine>,
    /// What would have been refused, or was let pass, since this process started; observe mode
    /// alone. One line a rule and code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<WouldRefuse>,
}

/// One store of a guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreLine {
    /// `memory`, `embedded`, `redis`, `http`, …
    pub kind: String,
    /// Where it is, without a password.
    pub target: String,
    /// Where it is reached through this guard.
    pub fronts: Vec<Front>,
    /// What the guard promises now: `observe` where it only watches.
    pub guarantee: Guarantee,
    /// What the store's own probe showed: what the guard promises once it enforces.
    pub store_guarantee: Guarantee,
    /// What the probe did and saw, in words.
    pub probe: String,
    /// What can void the guarantee as this store is set up, a sentence each.
    pub gaps: Vec<String>,
}

/// A front door of a guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Front {
    /// `objects`, `reverse-proxy`, `redis`, …
    pub kind: String,
    /// Host and port.
    pub listen: String,
}

/// What a guard in observe mode let pass although the fence says no.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldRefuse {
    /// The rule that says which lock is asked for, as it was configured; `default` where none did.
    pub rule: String,
    /// The code of the refusal: `token-required`, `stale-token`, …
    pub code: String,
    /// How many.
    pub total: u64,
}

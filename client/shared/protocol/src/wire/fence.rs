//! Replies of fenced-store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::words;
use crate::{Invalid, LeaseId, LockName, Namespace, Owner, Token};

words! {
    /// Guarantee of a guard for a store.
    pub enum Guarantee {
        /// The store itself checks the token and applies the operation in one step.
        Atomic = "atomic",
        /// The guard drains, and trusts a stated maximum request lifetime.
        Bounded = "bounded",
        /// None: the guard observes, and applies operations that it would refuse.
        Observe = "observe",
    }
}

/// Outcome of an operation whose reply is not a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WriteOutcome {
    /// It was applied.
    Applied,
    /// It was not applied and will not be.
    NotApplied,
    /// It may or may not have been applied.
    Unknown,
}

/// `POST /v1/fences/{lock}/seal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SealReply {
    /// Lock that was sealed.
    pub lock: LockName,
    /// Mark of the lock: lower tokens are refused from now on.
    pub mark: Token,
}

/// Reply to `POST /v1/floor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FloorReply {
    /// At a guard: lower tokens are refused from now on. At a lock server: lower tokens were issued
    /// before the request, and later ones are at least as high.
    pub floor: Token,
}

/// `POST /v1/floor` to a guard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FloorRequest {
    /// Lowest token to admit: lower tokens are refused from now on. If absent, the guard asks a
    /// lock server for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Token>,
    /// Accept a floor far above the clock floor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `GET /v1/fences/{lock}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FenceReply {
    /// Lock of the mark.
    pub lock: LockName,
    /// Highest token seen; absent if none was seen.
    pub mark: Option<Token>,
    /// The lease that owns the mark.
    pub lease_id: Option<LeaseId>,
    /// Guarantee of the guard.
    pub guarantee: Guarantee,
    /// Operations that this guard process refused since it started.
    pub refused_total: u64,
    /// The last of them, newest first, at most 16.
    pub last_refusals: Vec<Refusal>,
}

/// An operation that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    /// The token that was presented; the mark's for a Terraform state, which comes without one.
    pub token: Token,
    /// The lease that presented it.
    pub lease_id: LeaseId,
    /// The operation: method and key.
    pub operation: String,
    /// Code of the refusal: `stale-token` or `token-collision`; `forbidden` for a script at the
    /// Redis port.
    pub code: String,
    /// The mark that it met; the token itself where that was not refused.
    pub mark: Token,
    /// Time since the refusal, in milliseconds.
    pub ms_ago: u64,
    /// Owner that the caller named in the `Fence-Owner` header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// `GET /v1/fences`: fences in the order of their names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FencePage {
    /// One line a fence.
    pub fences: Vec<FenceLine>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<LockName>,
    /// Highest mark of the whole namespace; absent if no token was seen, and for callers that may
    /// not read the whole namespace. The guard refuses tokens of a lock server that are not above
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_mark: Option<Token>,
}

/// A fence in a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FenceLine {
    /// Lock of the mark.
    pub lock: LockName,
    /// The highest token seen.
    pub mark: Token,
    /// The lease that owns it.
    pub lease_id: LeaseId,
    /// Operations that this guard process refused since it started.
    pub refused_total: u64,
}

words! {
    /// Mode of a guard.
    #[derive(Default)]
    pub enum Mode {
        /// Operations are refused.
        #[default]
        Enforce = "enforce",
        /// Operations that would be refused are counted, logged and applied.
        Observe = "observe",
    }
}

impl FromStr for Mode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let rule = "must be enforce or observe";
        Self::from_word(text).ok_or_else(|| Invalid::new("mode", text, rule))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `GET /v1/stores`: the datastores behind this guard, with their guarantees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoresReply {
    /// The namespace that tokens must belong to.
    pub namespace: Namespace,
    /// Mode of the guard.
    pub mode: Mode,
    /// One line a store.
    pub stores: Vec<StoreLine>,
    /// In observe mode: operations that would have been refused since this process started, one
    /// line for each rule and code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_refuse: Vec<WouldRefuse>,
}

/// One store of a guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoreLine {
    /// `memory`, `embedded`, `redis`, `http`, …
    pub kind: String,
    /// Address, without a password.
    pub target: String,
    /// Addresses of this guard that serve it.
    pub fronts: Vec<Front>,
    /// Guarantee now: `observe` in observe mode.
    pub guarantee: Guarantee,
    /// Guarantee by the probe of the store: in force once the guard enforces.
    pub store_guarantee: Guarantee,
    /// Result of the probe, in words.
    pub probe: String,
    /// Properties of this set-up that can void the guarantee, a sentence each.
    pub gaps: Vec<String>,
    /// Those of the gaps that other settings of the store would close.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoidable: Vec<String>,
}

/// A front door of a guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Front {
    /// `objects`, `reverse-proxy`, `redis`, …
    pub kind: String,
    /// Host and port.
    pub listen: String,
}

/// Operations that a guard in observe mode applied although it would refuse them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WouldRefuse {
    /// Rule that named the lock, as configured; `default` without a rule.
    pub rule: String,
    /// The code of the refusal: `token-required`, `stale-token`, …
    pub code: String,
    /// Number of operations.
    pub total: u64,
}

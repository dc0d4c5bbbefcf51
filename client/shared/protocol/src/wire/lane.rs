//! Lanes of a guard before an HTTP datastore.

use serde::{Deserialize, Serialize};

use crate::{LockName, Owner, Token};

/// `GET /v1/lanes`: lanes in use, in the order of their names. A lane is in use if it is open or
/// quarantined, or if operations wait in it or are at the upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LanePage {
    /// One line a lane.
    pub lanes: Vec<LaneLine>,
    /// Pass it as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<LockName>,
}

/// State of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneLine {
    /// Lock of the lane.
    pub lock: LockName,
    /// Highest token admitted; lower ones are refused.
    pub mark: Option<Token>,
    /// Lowest token whose writes may be at the upstream; a restart would quarantine the lane.
    pub open_token: Option<Token>,
    /// Writes at the upstream.
    pub writes_in_flight: u32,
    /// Reads at the upstream.
    pub reads_in_flight: u32,
    /// Operations that wait.
    pub waiting: usize,
    /// Absent unless a write has an unknown outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
}

/// Quarantine of a lane, until its writes with an unknown outcome can no longer take effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quarantine {
    /// Names the quarantine and the writes that it waits for: another unknown outcome changes it.
    pub id: String,
    /// Lowest token with an unknown outcome.
    pub token: Token,
    /// Cause of the last unknown outcome.
    pub cause: QuarantineCause,
    /// Unknown outcomes so far; all those of an earlier process count as one.
    pub unknown_outcomes: u32,
    /// Time until it ends, in milliseconds.
    pub ms_left: u64,
    /// Time until it can be resolved, in milliseconds: so long may the guard that led before write.
    #[serde(default)]
    pub unresolvable_ms: u64,
}

/// Cause of an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum QuarantineCause {
    /// The upstream did not reply completely, or with a status that leaves the outcome unknown.
    NoReply,
    /// The lane was open when the last process ended.
    Restart,
    /// The lane was open when this guard took it over from another.
    TakeOver,
}

/// `POST /v1/lanes/{lock}/quarantine`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum QuarantineRequest {
    /// Ends the quarantine now.
    Resolve {
        /// The listed `id` of the quarantine. With another one the request has no effect.
        quarantine: String,
        /// Statement of the caller, `true`: none of the writes with an unknown outcome can take
        /// effect any more.
        none_can_take_effect: bool,
        /// Why, for the audit log: 1 to 256 bytes.
        reason: Owner,
    },
    /// Makes the quarantine longer, until a restart of the guard.
    Extend {
        /// As for `resolve`.
        quarantine: String,
        /// Added time, in milliseconds: 1 to 86400000.
        extend_ms: u64,
        /// Why, for the audit log: 1 to 256 bytes.
        reason: Owner,
    },
}

impl QuarantineRequest {
    /// Returns the quarantine that the request names.
    pub fn quarantine(&self) -> &str {
        let (Self::Resolve { quarantine, .. } | Self::Extend { quarantine, .. }) = self;
        quarantine
    }
}

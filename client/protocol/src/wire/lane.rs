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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Quarantine {
    /// Lowest token with an unknown outcome.
    pub token: Token,
    /// Cause of the last unknown outcome.
    pub cause: QuarantineCause,
    /// Unknown outcomes so far; all those of an earlier process count as one.
    pub unknown_outcomes: u32,
    /// Time until it ends, in milliseconds.
    pub ms_left: u64,
}

/// Cause of an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum QuarantineCause {
    /// The upstream did not reply completely, or replied 202, 502 or 504.
    NoReply,
    /// The lane was open when the last process ended.
    Restart,
}

/// `POST /v1/lanes/{lock}/quarantine`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
pub enum QuarantineRequest {
    /// Ends the quarantine now.
    Resolve {
        /// Statement of the caller: so many writes have an unknown outcome, the `unknown_outcomes`
        /// of the list, and none of them can take effect any more. With another number the request
        /// has no effect.
        none_can_take_effect: u32,
        /// Why, for the audit log: 1 to 256 bytes.
        reason: Owner,
    },
    /// Makes the quarantine longer, until a restart of the guard.
    Extend {
        /// Added time, in milliseconds: 1 to 86400000.
        extend_ms: u64,
        /// Why, for the audit log: 1 to 256 bytes.
        reason: Owner,
    },
}

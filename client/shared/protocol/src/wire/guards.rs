//! `GET /v1/guards`: the guards of a lock server, as it sees them.

use serde::{Deserialize, Serialize};

use super::fence::{FencePage, FenceReply, StoresReply};

/// `GET /v1/guards`: the guards that `--guard` names, in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardsReply {
    /// One entry a guard.
    pub guards: Vec<GuardReply>,
}

/// One guard: its own replies, or the problem that prevented them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GuardReply {
    /// Address of the guard, without credentials.
    pub guard: String,
    /// Its stores; absent where one lock is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores: Option<StoresReply>,
    /// Its first marks under the prefix; absent where one lock is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marks: Option<FencePage>,
    /// The mark of the lock that is asked for, and what was refused there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceReply>,
    /// Reason why there is no reply of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

//! `GET /v1/principal`: the caller, as the server knows it.

use serde::{Deserialize, Serialize};

/// `GET /v1/principal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrincipalReply {
    /// Name in the access file; absent without one, when every caller may do everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Rights of the principal, as in the access file: `read,acquire jobs/*`.
    pub rights: Vec<String>,
}

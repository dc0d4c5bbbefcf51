//! Reply of `GET /version`, which both services have.

use serde::{Deserialize, Serialize};

use crate::{KeyId, Namespace};

/// `GET /version`: the server's name and version, and what its tokens are bound to. Two servers
/// belong together if namespace and keys agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VersionReply {
    /// `lock-server` or `fenced-store`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Namespace of the tokens.
    pub namespace: Namespace,
    /// Keys of the tokens; the first signs, all verify. Empty if tokens are unsigned.
    pub keys: Vec<KeyDigest>,
}

/// A key's name, and a digest that equal keys share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyDigest {
    /// Name of the key.
    pub kid: KeyId,
    /// 16 hexadecimal digits: the beginning of the HMAC-SHA256 of a fixed label under the key.
    pub digest: String,
}

//! Values of flags that several commands take.

use fence_protocol::{Invalid, Owner};

/// Reads the reason of an operator's change, for the client that it concerns and the audit log: a
/// text of the same form as an owner.
pub(crate) fn reason(text: &str) -> Result<Owner, Invalid> {
    let rule = "must be 1 to 256 bytes without control characters";
    Owner::new(text).map_err(|_| Invalid::new("reason", text, rule))
}

/// Reads JSON of any form.
pub(crate) fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("must be JSON: {error}"))
}

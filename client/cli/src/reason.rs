//! Reason of an operator's change, for the client that it concerns and the audit log.

use fence_protocol::{Invalid, Owner};

/// Reads a reason: a text of the same form as an owner.
pub(crate) fn parse(text: &str) -> Result<Owner, Invalid> {
    let rule = "must be 1 to 256 bytes without control characters";
    Owner::new(text).map_err(|_| Invalid::new("reason", text, rule))
}

//! Errors in the words of the protocol.

use fence_client::protocol::Invalid;
use fence_client::{Error, ErrorKind, LostReason};
use serde_json::{Value, json};

pub(crate) type DriverResult = Result<Value, Failure>;

/// Reason why a request has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    Sdk(Error),
    Own { kind: &'static str, message: String },
    Unsupported,
}

impl Failure {
    pub(crate) fn own(kind: &'static str, message: impl Into<String>) -> Self {
        Self::Own { kind, message: message.into() }
    }

    /// Something that does not compile in Rust, or a mistake in a scenario.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::own("invalid", message)
    }

    pub(crate) fn reply(self) -> Value {
        match self {
            Self::Unsupported => json!({"unsupported": true}),
            Self::Own { kind, message } => json!({
                "error": {"kind": kind, "code": null, "retryable": false, "message": message}
            }),
            Self::Sdk(error) => {
                let (kind, reason) = words(error.kind());
                let code = error.problem().map(|problem| problem.code.as_str());
                let (reason, end) = reason.map(loss).unwrap_or_default();
                let retryable = matches!(kind, "contended" | "unavailable" | "outcome-unknown");
                json!({"error": {
                    "kind": kind, "code": code, "reason": reason, "end": end,
                    "retryable": retryable, "message": error.to_string(),
                }})
            }
        }
    }
}

/// The kind, and the reason of a loss.
fn words(kind: &ErrorKind) -> (&'static str, Option<LostReason>) {
    let word = match kind {
        ErrorKind::LeaseLost { reason } => return ("lease-lost", Some(*reason)),
        ErrorKind::Contended { .. } => "contended",
        ErrorKind::TakeoverRefused { .. } => "takeover-refused",
        ErrorKind::Stale { .. } => "stale",
        ErrorKind::Precondition => "precondition",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::OutcomeUnknown => "outcome-unknown",
        ErrorKind::Invalid => "invalid",
        _ => "internal",
    };
    (word, None)
}

/// The reason of a loss, and the end that the server gave.
pub(crate) fn loss(reason: LostReason) -> (Option<&'static str>, Option<&'static str>) {
    match reason {
        LostReason::Deadline => (Some("deadline"), None),
        LostReason::Ended(end) => (Some("ended"), Some(end.as_str())),
        LostReason::NoProgress { .. } => (Some("no-progress"), None),
        LostReason::HeldTooLong { .. } => (Some("held-too-long"), None),
        _ => (None, None),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Sdk(error)
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::Sdk(invalid.into())
    }
}

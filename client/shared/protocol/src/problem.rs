//! Problem bodies (RFC 9457): one shape for every error of both services.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

macro_rules! codes {
    (
        $(
            $(#[$doc:meta])*
            $name:ident = $text:literal, $status:literal, $retryable:literal, $title:literal,
            $hint:literal;
        )*
    ) => {
        /// Stable word for the kind of error: programs branch on it.
        ///
        /// A code fixes the HTTP status, the title, whether the same request may be repeated, and
        /// what to do next unless the place that raised it knows better.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
            /// A code that this version of the crate does not know.
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// The word itself.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* Code::Unknown => "unknown" }
            }

            /// The HTTP status.
            pub fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* Code::Unknown => 500 }
            }

            /// `true` if a retry of the same request can help and cannot harm.
            pub fn retryable(self) -> bool {
                match self { $(Code::$name => $retryable,)* Code::Unknown => false }
            }

            /// A short sentence that names the kind of error.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title,)* Code::Unknown => "Unknown error" }
            }

            /// Next step for the caller.
            pub fn hint(self) -> &'static str {
                match self { $(Code::$name => $hint,)* Code::Unknown => "" }
            }
        }
    };
}

codes! {
    /// The request breaks a rule of the API.
    InvalidRequest = "invalid-request", 400, false, "The request is not valid",
        "Correct the value that the detail names; nothing was changed.";
    /// The `Fencing-Token` header cannot be read, or there are several.
    MalformedToken = "malformed-token", 400, false, "The fencing token cannot be read",
        "Send the fencing_token of the grant once and unchanged as the Fencing-Token header.";
    /// The caller is not authenticated.
    Unauthorized = "unauthorized", 401, false, "The caller is not authenticated",
        "Send Authorization: Bearer and a token of the access file; with fence, --auth-file.";
    /// The token's signature is missing or wrong.
    BadSignature = "bad-signature", 401, false, "The fencing token is not genuine",
        "Use the fencing_token that the lock server returned, and give both servers the same key file.";
    /// The caller lacks the right, or a rule denies it.
    Forbidden = "forbidden", 403, false, "Not allowed",
        "Ask an operator for the right that is missing.";
    /// A browser sent it for a page of another origin.
    CrossOrigin = "cross-origin", 403, false, "A page of another origin may not do this",
        "Send the request from a program, or from a page of this server's own origin.";
    /// An operator has blocked the session.
    SessionBlocked = "session-blocked", 403, false, "The session is blocked",
        "Finish the work and end the session.";
    /// The token belongs to another lock than the resource does.
    WrongLock = "wrong-lock", 403, false, "The token is for another lock",
        "Acquire the lock that the detail names and present its token.";
    /// There is nothing under this path.
    NotFound = "not-found", 404, false, "Nothing is here",
        "Check the path; docs/reference/http-api.md lists them all.";
    /// The session is unknown.
    SessionUnknown = "session-unknown", 404, false, "The session is unknown",
        "Stop the work that its leases protected; create a new session.";
    /// The path exists, the method does not.
    MethodNotAllowed = "method-not-allowed", 405, false, "The path does not support this method",
        "Use a method that the Allow header names.";
    /// The request did not arrive in time.
    RequestTimeout = "request-timeout", 408, true, "The request did not arrive in time",
        "Send the whole request faster; nothing was changed.";
    /// The lease id is in use for something else.
    LeaseIdConflict = "lease-id-conflict", 409, false, "The lease id belongs to another request",
        "Use a fresh UUID as lease_id for every acquire.";
    /// The live lease is not one that the caller may take over.
    TakeoverRefused = "takeover-refused", 409, false, "The lock cannot be taken over",
        "Acquire without takeover; stop if this incarnation was itself taken over.";
    /// The lock is in use as another kind of lock.
    LockKindConflict = "lock-kind-conflict", 409, false, "The lock is in use as another kind",
        "Use one name for one kind: exclusive and shared leases, or permits of one size.";
    /// The session is in use for something else.
    SessionConflict = "session-conflict", 409, false, "The session does not fit the request",
        "Use a session of the same owner, and its heartbeat to renew its leases.";
    /// The quarantine of a lane is not the one that the request names.
    QuarantineConflict = "quarantine-conflict", 409, false, "The lane has another quarantine, or none",
        "Read GET /v1/lanes again before you decide.";
    /// Two leases present one token: the issuer has repeated itself.
    TokenCollision = "token-collision", 409, false, "Two leases present the same token",
        "Stop. An operator must find out why a token was issued twice.";
    /// The lease has ended.
    LeaseLost = "lease-lost", 410, false, "The lease has ended",
        "Stop the work that the lease protected; acquire again with a new lease_id.";
    /// The session has ended.
    SessionEnded = "session-ended", 410, false, "The session has ended",
        "Stop the work that its leases protected; create a new session.";
    /// The token is lower than the highest that the guard has seen.
    StaleToken = "stale-token", 412, false, "The token is stale: a newer holder has been here",
        "Stop the work: the lock has passed on. Acquire again and read before you write.";
    /// `If-Match` or `If-None-Match` did not hold.
    PreconditionFailed = "precondition-failed", 412, false, "The object does not meet the condition",
        "Read the object again before you decide.";
    /// The body is larger than the limit.
    PayloadTooLarge = "payload-too-large", 413, false, "The body is too large",
        "Send less, or ask the operator to raise the limit that the detail names.";
    /// The body's content type is not understood.
    UnsupportedMediaType = "unsupported-media-type", 415, false, "The content type is not understood",
        "Send content-type: application/json.";
    /// The request is for a host that is not this server.
    MisdirectedRequest = "misdirected-request", 421, false, "The request is for another host",
        "Send a Host that is an address, localhost, or a --host-name of the server.";
    /// The `Idempotency-Key` named another operation before.
    OpIdReused = "op-id-reused", 422, false, "The Idempotency-Key belongs to another operation",
        "Use a fresh Idempotency-Key for every operation, and retry it unchanged.";
    /// Another lease holds the lock.
    LockHeld = "lock-held", 423, true, "Another lease holds the lock",
        "Try again after Retry-After, or wait in the queue with wait_ms.";
    /// The operation needs a token.
    TokenRequired = "token-required", 428, false, "A fencing token is required",
        "Acquire the lock that the detail names and send its fencing_token as the Fencing-Token header.";
    /// A limit of the server or of the caller is reached.
    LimitReached = "limit-reached", 429, true, "A limit is reached",
        "Wait until some of what the detail counts has ended, at least Retry-After.";
    /// A defect of this server.
    Internal = "internal", 500, false, "The server made a mistake",
        "Report the request id. The outcome is unknown.";
    /// The store cannot do this.
    NotOffered = "not-offered-by-store", 501, false, "The configured store does not offer this",
        "Use a store that offers it.";
    /// The datastore behind the guard cannot be reached; nothing was sent.
    UpstreamUnavailable = "upstream-unavailable", 502, true, "The datastore cannot be reached",
        "Retry; nothing was changed.";
    /// The store cannot be reached, or refuses to work.
    StoreUnavailable = "store-unavailable", 503, true, "The store is not available",
        "Try again after Retry-After; nothing was changed.";
    /// Lower writes are still in flight.
    Draining = "draining", 503, true, "Earlier writes are still in flight",
        "Try again after Retry-After.";
    /// An earlier write may still land.
    Quarantined = "quarantined", 503, true, "An earlier write may still be applied",
        "Try again after Retry-After: an earlier write may still be applied.";
    /// Another guard forwards for this lane, or none does at the moment.
    NotLeader = "not-leader", 503, true, "This guard is a standby",
        "Send the request to the guard that leads, or try again after Retry-After.";
    /// A guard that has to be sealed first was not.
    GuardUnsealed = "guard-unsealed", 503, true, "A guard could not be sealed",
        "Try again after Retry-After, with a new lease_id; an operator must check the guards in the detail.";
    /// The server is going down.
    ShuttingDown = "shutting-down", 503, true, "The server is shutting down",
        "Use another server, or this one after Retry-After.";
    /// The outcome is unknown.
    OutcomeUnknown = "outcome-unknown", 504, true, "The outcome is unknown",
        "Retry with the same lease_id: it is done at most once. Without an id, read the state first.";
}

impl Code {
    /// The problem type: `urn:fencepost:<code>`.
    pub fn urn(self) -> String {
        format!("urn:fencepost:{}", self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A problem body: `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:fencepost:<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of error in a short sentence.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// This error, with the values that matter.
    pub detail: String,
    /// The stable word to branch on.
    pub code: Code,
    /// Next step for the caller.
    pub hint: String,
    /// `true` if the same request may be retried.
    pub retryable: bool,
    /// Members that only some codes have: `holder`, `reason`, `mark`, …
    #[serde(flatten)]
    pub extensions: Map<String, Value>,
}

impl Problem {
    /// A problem of `code`; `detail` says what happened with which values.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: code.urn(),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            hint: code.hint().to_owned(),
            retryable: code.retryable(),
            extensions: Map::new(),
        }
    }

    /// With another hint than the code's own.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// With another verdict on repeating than the code's own.
    #[must_use]
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }

    /// With a further member. A value that cannot be written as JSON becomes `null`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        self.extensions.insert(name.to_owned(), value);
        self
    }

    /// A further member, read as `T`; `None` where it is missing or of another shape.
    pub fn extension<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Option<T> {
        T::deserialize(self.extensions.get(name)?).ok()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.detail, self.code, self.hint)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_has_the_documented_members() {
        let problem = Problem::new(Code::StaleToken, "token 33 is below mark 34")
            .with("presented", 33)
            .with("mark", 34);
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], "urn:fencepost:stale-token");
        assert_eq!(json["status"], 412);
        assert_eq!(json["retryable"], false);
        assert_eq!(json["mark"], 34);
        let back: Problem = serde_json::from_value(json).unwrap();
        assert_eq!(back, problem);
        assert_eq!(back.extension::<u64>("presented"), Some(33));
    }

    #[test]
    fn a_code_of_the_future_can_be_read() {
        let code: Code = serde_json::from_str("\"brand-new\"").unwrap();
        assert_eq!(code, Code::Unknown);
    }

    #[test]
    fn codes_are_distinct_and_say_what_to_do() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(code.hint().ends_with('.'), "{code}");
        }
    }
}

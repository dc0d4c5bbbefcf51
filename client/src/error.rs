//! The error type of the SDK. Its kind says what the caller should do.

mod hint;

use std::fmt;
use std::time::Duration;

use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{Code, Invalid, LockName, Problem, Token, duration};
use serde::Deserialize;

use self::hint::described;

/// Error of every call. [`kind`](Error::kind) says what to do next; `Display` says what happened.
#[derive(Clone)]
pub struct Error(Box<ErrorParts>);

#[derive(Clone, Debug)]
struct ErrorParts {
    kind: ErrorKind,
    message: String,
    problem: Option<Problem>,
    retry_after: Option<Duration>,
    outcome: Option<WriteOutcome>,
}

/// Class of an [`Error`], by what the caller should do.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another lease holds the lock: retry later, or wait in the queue.
    Contended {
        /// The holder, if the server named it.
        holder: Option<HolderInfo>,
        /// Time after which a retry is worthwhile.
        retry_after: Option<Duration>,
    },
    /// Another lease holds the lock and may not be taken over: wait in the queue or stop, depending
    /// on `why`.
    TakeoverRefused {
        /// The reason, if the server gave one that this client knows.
        why: Option<NoTakeover>,
        /// The holder, if the server named it.
        holder: Option<HolderInfo>,
    },
    /// The lease can no longer be trusted: stop the work that it protected.
    LeaseLost {
        /// The reason of the loss.
        reason: LostReason,
    },
    /// The guard has seen a higher token, so a newer holder has reached the data: stop, and never
    /// retry.
    ///
    /// If the lease is live all the same, the lock server may have lost its memory and issue tokens
    /// below the marks; [`Lease::reacquire_above`](crate::Lease::reacquire_above) checks that.
    Stale {
        /// The highest token that the guard has seen.
        mark: Option<Token>,
    },
    /// `If-Match` or `If-None-Match` did not hold: read the object again before deciding.
    Precondition,
    /// The server or its store is unreachable and nothing was done: retry later.
    Unavailable,
    /// The request may or may not have been applied: retry it under the same lease, or read first.
    OutcomeUnknown,
    /// The request breaks a rule, or uses a lock as a different kind than other clients do: correct
    /// it.
    Invalid,
    /// A defect in the client or the server: report it.
    Internal,
}

/// Reason why a lock may not be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NoTakeover {
    /// Another owner holds it: acquire without a takeover and wait in the queue.
    OtherOwner,
    /// The holder gave no incarnation: name its lease
    /// ([`takeover_of`](crate::LockRequest::takeover_of)), or wait.
    NoIncarnation,
    /// A later incarnation of this owner holds it: this process is the old one and must stop.
    WasTakenOver,
}

/// Reason why a lease can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// 0.8 of its time to live passed on this machine without a successful renewal.
    Deadline,
    /// The lock server replied that the lease has ended.
    Ended(EndReason),
    /// The work did not report progress within the limit.
    NoProgress {
        /// The limit.
        within: Duration,
    },
    /// The lease was held for the longest allowed time.
    HeldTooLong {
        /// The limit.
        max: Duration,
    },
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("0.8 of its time to live passed without a renewal"),
            Self::Ended(EndReason::Superseded) => f.write_str(
                "the lock server has ended it: superseded by a later incarnation of its owner, or by \
                 the next holder",
            ),
            Self::Ended(reason) => write!(f, "the lock server has ended it: {}", reason.as_str()),
            Self::NoProgress { within } => {
                write!(f, "no progress was reported for {}", duration::show(*within))
            }
            Self::HeldTooLong { max } => {
                write!(f, "it was held for {}, the longest allowed", duration::show(*max))
            }
        }
    }
}

impl Error {
    /// An error of a program's own settings, of kind [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Creates an error; `message` says what happened, with the values.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(ErrorParts {
            kind,
            message,
            problem: None,
            retry_after: None,
            outcome: None,
        }))
    }

    /// Creates the error of a lease on `lock` that can no longer be trusted.
    pub(crate) fn lease_lost(lock: &impl fmt::Display, reason: LostReason) -> Self {
        Self::new(ErrorKind::LeaseLost { reason }, format!("the lease on {lock} is lost: {reason}"))
    }

    /// Converts the problem body of a server's error reply.
    pub(crate) fn from_problem(problem: Problem, retry_after: Option<Duration>) -> Self {
        let kind = kind_of(&problem, retry_after);
        let message = described(&problem);
        Self(Box::new(ErrorParts {
            kind,
            message,
            problem: Some(problem),
            retry_after,
            outcome: None,
        }))
    }

    /// Overrides the outcome of the operation that the server's last reply states.
    pub(crate) fn with_outcome(mut self, outcome: WriteOutcome) -> Self {
        self.0.outcome = Some(outcome);
        self
    }

    /// Prefixes the message with `context`.
    pub(crate) fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The class of the error, which says what to do.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The problem body of the server's reply, if it sent one.
    pub fn problem(&self) -> Option<&Problem> {
        self.0.problem.as_ref()
    }

    /// The outcome of an operation at the guard, if the error says one; `Some(Unknown)` if a
    /// request may have been applied. A write that is refused as stale, for example, may be the
    /// retry of one that was applied before its holder became stale.
    pub fn outcome(&self) -> Option<WriteOutcome> {
        let stated = || self.problem().and_then(|problem| problem.extension("outcome"));
        let is_unknown = *self.kind() == ErrorKind::OutcomeUnknown;
        self.0.outcome.or_else(stated).or_else(|| is_unknown.then_some(WriteOutcome::Unknown))
    }

    /// The token that the next token of the lock must exceed to be admitted, if the guard refused a
    /// token as stale or as a collision.
    pub fn min_token(&self) -> Option<Token> {
        let problem = self.problem()?;
        match problem.code {
            Code::StaleToken | Code::TokenCollision => {
                problem.extension("min_token").or_else(|| problem.extension("mark"))
            }
            _ => None,
        }
    }

    /// The lock that the server refused, if it named one: of several that were requested together,
    /// the one that prevented the grant.
    pub fn lock(&self) -> Option<LockName> {
        self.problem().and_then(|problem| problem.extension("lock"))
    }

    /// Time after which a retry is worthwhile, if the server said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

/// Maps a problem to its kind; no other code does.
fn kind_of(problem: &Problem, retry_after: Option<Duration>) -> ErrorKind {
    match problem.code {
        Code::LockHeld => ErrorKind::Contended { holder: problem.extension("holder"), retry_after },
        Code::LeaseLost => ErrorKind::LeaseLost { reason: LostReason::Ended(end_reason(problem)) },
        Code::TakeoverRefused => ErrorKind::TakeoverRefused {
            why: problem.extension("why"),
            holder: problem.extension("holder"),
        },
        // Every lease of the session has ended.
        Code::SessionEnded | Code::SessionUnknown => {
            ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::SessionEnded) }
        }
        // A collision calls for the same reaction as a stale token: stop, never retry.
        Code::StaleToken | Code::TokenCollision => {
            ErrorKind::Stale { mark: problem.extension("mark") }
        }
        Code::PreconditionFailed => ErrorKind::Precondition,
        Code::RequestTimeout
        | Code::LimitReached
        | Code::UpstreamUnavailable
        | Code::StoreUnavailable
        | Code::Draining
        | Code::Quarantined
        | Code::NotLeader
        | Code::GuardUnsealed
        | Code::ShuttingDown => ErrorKind::Unavailable,
        Code::OutcomeUnknown => ErrorKind::OutcomeUnknown,
        Code::Internal => ErrorKind::Internal,
        // Two programs disagree about a lock: no retry helps, one of them must change.
        Code::LockKindConflict => ErrorKind::Invalid,
        Code::Unknown => by_status(problem.status),
        _ => ErrorKind::Invalid,
    }
}

/// End of the lease by the server's reply. A reason of a newer server is unknown to this client
/// and counts as superseded: the lease has ended in any case.
pub(crate) fn end_reason(problem: &Problem) -> EndReason {
    problem.extension("reason").unwrap_or(EndReason::Superseded)
}

/// Kind of a reply whose code is unknown: from a newer server, or from a proxy in between.
fn by_status(status: u16) -> ErrorKind {
    match status {
        423 => ErrorKind::Contended { holder: None, retry_after: None },
        410 => ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::Superseded) },
        408 | 429 | 502 | 503 => ErrorKind::Unavailable,
        504 => ErrorKind::OutcomeUnknown,
        400..=499 => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::new(ErrorKind::Invalid, invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(problem: Problem) -> ErrorKind {
        Error::from_problem(problem, None).kind().clone()
    }

    #[test]
    fn codes_say_what_to_do() {
        let gone = Problem::new(Code::LeaseLost, "x").with("reason", EndReason::Expired);
        assert_eq!(
            kind(gone),
            ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::Expired) }
        );
        let stale = Problem::new(Code::StaleToken, "x").with("mark", 34);
        assert_eq!(kind(stale), ErrorKind::Stale { mark: Token::new(34).ok() });
        assert_eq!(kind(Problem::new(Code::WrongLock, "x")), ErrorKind::Invalid);
        assert_eq!(kind(Problem::new(Code::LockKindConflict, "x")), ErrorKind::Invalid);
        let later = Problem::new(Code::TakeoverRefused, "x").with("why", "was-taken-over");
        let refused = |why| ErrorKind::TakeoverRefused { why, holder: None };
        assert_eq!(kind(later), refused(Some(NoTakeover::WasTakenOver)));
        let new_word = Problem::new(Code::TakeoverRefused, "x").with("why", "full-moon");
        assert_eq!(kind(new_word), refused(None));
        let ended = Problem::new(Code::SessionEnded, "x").with("reason", "blocked");
        assert_eq!(
            kind(ended),
            ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::SessionEnded) }
        );
        assert_eq!(kind(Problem::new(Code::OutcomeUnknown, "x")), ErrorKind::OutcomeUnknown);
    }

    /// A code that may be retried never maps to `Internal` or `Invalid`, and one that may not never
    /// maps to `Unavailable`.
    #[test]
    fn kinds_agree_with_the_codes_on_retries() {
        for &code in Code::ALL {
            let retryable = matches!(
                kind(Problem::new(code, "x")),
                ErrorKind::Contended { .. } | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
            );
            assert_eq!(retryable, code.retryable(), "{code}");
        }
    }

    #[test]
    fn an_error_stays_small() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}

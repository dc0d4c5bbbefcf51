//! One error type; its kind says what to do.

use std::fmt;
use std::time::Duration;

use fence_protocol::wire::fence::Outcome;
use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::{Code, Invalid, LockName, Problem, Token, duration};
use serde::Deserialize;

/// What went wrong. [`kind`](Error::kind) says what to do next, `Display` what happened.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    problem: Option<Problem>,
    retry_after: Option<Duration>,
    outcome: Option<Outcome>,
}

/// What to do about an [`Error`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another lease holds the lock: try again later, or wait in the queue.
    Contended {
        /// Who holds it, where the server said so.
        holder: Option<HolderInfo>,
        /// When it is worth trying again.
        retry_after: Option<Duration>,
    },
    /// Another lease holds the lock, and it is not one that may be taken over: wait your turn, or
    /// stop, as `why` says.
    TakeoverRefused {
        /// Why not, where the server said so in a word that is known here.
        why: Option<NoTakeover>,
        /// Who holds the lock, where the server said so.
        holder: Option<HolderInfo>,
    },
    /// The lease can no longer be trusted: stop the work that it protected.
    LeaseLost {
        /// How that is known.
        reason: LostReason,
    },
    /// A newer holder has been at the data: stop, and never repeat this.
    ///
    /// Where the lease is live all the same, the lock server may have lost its memory and issue
    /// tokens below the marks; [`Lease::reacquire_above`](crate::Lease::reacquire_above) finds out.
    Stale {
        /// The highest token that the guard has seen.
        mark: Option<Token>,
    },
    /// `If-Match` or `If-None-Match` did not hold: read again and decide anew.
    Precondition,
    /// The server or its store cannot be reached, and nothing was done: try again later.
    Unavailable,
    /// Nobody knows whether it was done: repeat it under the same lease, or read first.
    OutcomeUnknown,
    /// The request breaks a rule, or uses a lock as another kind than others do: correct it.
    Invalid,
    /// A defect, here or in the server: report it.
    Internal,
}

/// Why a lock may not be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NoTakeover {
    /// Another owner holds it: acquire without a takeover and wait your turn.
    OtherOwner,
    /// Its holder gave no incarnation: name its lease
    /// ([`takeover_of`](crate::LockRequest::takeover_of)), or wait.
    NoIncarnation,
    /// A later incarnation of this owner holds it: this process is the old one, and must stop.
    WasTakenOver,
}

/// How it is known that a lease can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// 0.8 of its time to live passed here without a renewal that succeeded.
    Deadline,
    /// The lock server said that it has ended.
    Ended(EndReason),
    /// The work did not report progress within the limit that it was given.
    NoProgress {
        /// The limit.
        within: Duration,
    },
    /// The lease was held for as long as was allowed.
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
    /// An error of `kind`; `message` says what happened, with the values.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Inner { kind, message, problem: None, retry_after: None, outcome: None }))
    }

    /// The lease on `lock` cannot be trusted any more.
    pub(crate) fn lease_lost(lock: &impl fmt::Display, reason: LostReason) -> Self {
        Self::new(ErrorKind::LeaseLost { reason }, format!("the lease on {lock} is lost: {reason}"))
    }

    /// What the server said.
    pub(crate) fn from_problem(problem: Problem, retry_after: Option<Duration>) -> Self {
        let kind = kind_of(&problem, retry_after);
        let message = problem.to_string();
        Self(Box::new(Inner { kind, message, problem: Some(problem), retry_after, outcome: None }))
    }

    /// With another account of what became of the operation than the server's last word.
    pub(crate) fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = Some(outcome);
        self
    }

    /// With `context` before what happened.
    pub(crate) fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// What the server said, where it said something.
    pub fn problem(&self) -> Option<&Problem> {
        self.0.problem.as_ref()
    }

    /// What became of an operation at the guard, where that is known to be known or unknown: a stale
    /// write, for one, may be the repeat of one that was applied before its holder became stale.
    pub fn outcome(&self) -> Option<Outcome> {
        let said = || self.problem().and_then(|problem| problem.extension("outcome"));
        let is_unknown = *self.kind() == ErrorKind::OutcomeUnknown;
        self.0.outcome.or_else(said).or_else(|| is_unknown.then_some(Outcome::Unknown))
    }

    /// What the next token of the lock has to exceed for the guard to take it, where the guard refused
    /// a token as stale or as a collision.
    pub fn min_token(&self) -> Option<Token> {
        let problem = self.problem()?;
        match problem.code {
            Code::StaleToken | Code::TokenCollision => {
                problem.extension("min_token").or_else(|| problem.extension("mark"))
            }
            _ => None,
        }
    }

    /// The lock that the server's refusal is about, where it said so: of several that were asked for
    /// together, the one that stood in the way.
    pub fn lock(&self) -> Option<LockName> {
        self.problem().and_then(|problem| problem.extension("lock"))
    }

    /// When it is worth trying again, where the server said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

/// The one place that maps codes to kinds.
fn kind_of(problem: &Problem, retry_after: Option<Duration>) -> ErrorKind {
    match problem.code {
        Code::LockHeld => ErrorKind::Contended { holder: problem.extension("holder"), retry_after },
        Code::LeaseLost => ErrorKind::LeaseLost { reason: LostReason::Ended(end_reason(problem)) },
        Code::TakeoverRefused => ErrorKind::TakeoverRefused {
            why: problem.extension("why"),
            holder: problem.extension("holder"),
        },
        // Every lease of it has ended.
        Code::SessionEnded | Code::SessionUnknown => {
            ErrorKind::LeaseLost { reason: LostReason::Ended(EndReason::SessionEnded) }
        }
        // The hint of a collision is the one of a stale token: stop, and never repeat it.
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
        | Code::GuardUnsealed
        | Code::ShuttingDown => ErrorKind::Unavailable,
        Code::OutcomeUnknown => ErrorKind::OutcomeUnknown,
        Code::Internal => ErrorKind::Internal,
        // Two programs disagree about a lock: no repeat helps, and one of them has to change.
        Code::LockKindConflict => ErrorKind::Invalid,
        Code::Unknown => by_status(problem.status),
        _ => ErrorKind::Invalid,
    }
}

/// How the server says that the lease ended. A word of the future is not known here; that the
/// lease is gone is certain all the same.
pub(crate) fn end_reason(problem: &Problem) -> EndReason {
    problem.extension("reason").unwrap_or(EndReason::Superseded)
}

/// A code of the future, or a reply of something between here and the server.
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

    /// What may be repeated is never called a defect or a mistake of the caller, and what may not
    /// be repeated is never called unavailable.
    #[test]
    fn kinds_agree_with_the_codes_on_repeating() {
        for &code in Code::ALL {
            let repeatable = matches!(
                kind(Problem::new(code, "x")),
                ErrorKind::Contended { .. } | ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
            );
            assert_eq!(repeatable, code.retryable(), "{code}");
        }
    }

    #[test]
    fn an_error_stays_small() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}

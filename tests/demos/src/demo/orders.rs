//! Protocol between the director and its workers: a JSON document a line, orders on the
//! actor's stdin and reports on its stdout.

use fence_protocol::Problem;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Order to a worker. It does one thing at a time, on order, so that
/// the director can stop it exactly between two steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum Order {
    /// Take the lock; renew the lease in the background, or leave it alone.
    Acquire { lock: String, ttl_ms: u64, wait_ms: u64, renewed: bool },
    /// Read the document, with the token or without one.
    Read { key: String, fenced: bool },
    /// Compute the next version of the document that was read.
    Add { amount: i64, by: String },
    /// Write what was computed, without checking the clock.
    Write { key: String, fenced: bool },
    /// Write over a slow connection: send only the first half of the body.
    WriteHalf { key: String, fenced: bool },
    /// The second half of it.
    WriteRest,
    /// Check whether the SDK still trusts the lease.
    Check,
    /// Release the lock.
    Release,
    /// Many workers in this process count the number down, each once; under the lock, or without.
    CountDown { tasks: usize, key: String, lock: Option<String> },
}

/// Report of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "kebab-case")]
pub(super) enum Report {
    Acquired { token: u64, lease_id: String, ttl_ms: u64, waited_ms: u64 },
    Answered(Answer),
    Added { document: Value },
    Half { sent_bytes: usize, body_bytes: usize },
    Checked { lost: Option<String> },
    Released { lost: Option<String> },
    Turn(Turn),
    Failed { message: String },
}

/// Reply of a store: over HTTP with a status, over other protocols without one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) status: Option<u16>,
    pub(super) document: Option<Value>,
    pub(super) problem: Option<Problem>,
    pub(super) error: Option<ErrorReply>,
    /// Last statement that a PostgreSQL completed.
    #[serde(default)]
    pub(super) done: Option<String>,
}

/// An error reply of Redis, `-CODE text`, or of PostgreSQL, with its SQLSTATE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ErrorReply {
    pub(super) code: String,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn is_success(&self) -> bool {
        self.error.is_none() && self.status.is_none_or(|status| (200..300).contains(&status))
    }

    /// The word for programs in a refusal.
    pub(super) fn code(&self) -> Option<String> {
        let problem = self.problem.as_ref().map(|problem| problem.code.to_string());
        problem.or_else(|| self.error.as_ref().map(|error| error.code.clone()))
    }

    /// The mark that a refusal names.
    pub(super) fn met_mark(&self) -> Option<u64> {
        let problem = self.problem.as_ref().and_then(|problem| problem.extension("mark"));
        problem.or_else(|| self.error.as_ref().and_then(ErrorReply::mark))
    }
}

impl ErrorReply {
    /// From "token 33 is below mark 34 of lock …".
    fn mark(&self) -> Option<u64> {
        let (_, after) = self.text.split_once(" mark ")?;
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        after[..digits].parse().ok()
    }
}

/// One decrement of one worker in a stampede.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) token: Option<u64>,
    pub(super) lease_id: Option<String>,
    pub(super) read: i64,
    pub(super) status: u16,
}

/// A report with the time at which its step began and ended, on the machine's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) from_ms: u64,
    pub(super) at_ms: u64,
    #[serde(flatten)]
    pub(super) report: Report,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_read_from_the_refusal() {
        let error = |text: &str| ErrorReply { code: "FENCED".to_owned(), text: text.to_owned() };
        assert_eq!(error("token 33 is below mark 34 of lock orders/42; stop").mark(), Some(34));
        assert_eq!(error("token 33 is below mark 34").mark(), Some(34));
        assert_eq!(error("it is stale").mark(), None);
        assert_eq!(error("below mark x").mark(), None);
    }

    #[test]
    fn an_error_reply_is_no_success() {
        let error = ErrorReply { code: "FENCED".to_owned(), text: String::new() };
        assert!(Answer::default().is_success());
        assert!(!Answer { error: Some(error), ..Answer::default() }.is_success());
        assert!(!Answer { status: Some(412), ..Answer::default() }.is_success());
        assert!(Answer { status: Some(204), ..Answer::default() }.is_success());
    }
}

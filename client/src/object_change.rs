//! Changes of objects, retried under one idempotency key until their outcome is known.

use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::{Code, IDEMPOTENCY_KEY, Invalid};
use reqwest::RequestBuilder;

use crate::transport::{Effect, Endpoint, Failure, REPLAYED, Reply};
use crate::{Error, ErrorKind, ids, timing};

/// Longest object that is read into memory, in bytes.
pub(crate) const OBJECT_BYTES_MAX: usize = 256 << 20;

/// Most times that one change is sent.
const ATTEMPTS: u32 = 3;
/// Longest idempotency key that a guard accepts, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Idempotency key of a change: the guard applies at most one change under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpId(String);

impl OpId {
    pub(crate) fn random() -> Self {
        Self(ids::lease_id().to_string())
    }

    pub(crate) fn new(name: &str) -> Result<Self, Invalid> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
            let rule = "must have 1 to 128 bytes of A-Z a-z 0-9 . _ : -";
            return Err(Invalid::new("op-id", name, rule));
        }
        Ok(Self(name.to_owned()))
    }

    /// Formats the header value: a string of RFC 9651.
    fn header(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// Reaction to an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteStep {
    /// Send the same change again, under the same key.
    Retry,
    /// Return the error.
    Fail,
}

/// Sends a change, and retries it under `op_id` if no reply arrives. `request` builds each attempt
/// and checks the lease: once the lease is lost, nothing more is sent.
pub(crate) async fn send(
    endpoint: &Endpoint,
    what: &str,
    op_id: &OpId,
    request: impl Fn() -> Result<RequestBuilder, Error>,
) -> Result<Reply, Error> {
    let mut unknown_cause: Option<String> = None;
    for attempt in 1.. {
        let request = match request() {
            Ok(request) => request.header(IDEMPOTENCY_KEY, op_id.header()),
            Err(error) => {
                return Err(match unknown_cause {
                    Some(why) => unknown(what, &why, &error),
                    None => error,
                });
            }
        };
        let failure = match endpoint.send(request, OBJECT_BYTES_MAX).await {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        let is_last = attempt == ATTEMPTS;
        if is_last || next_step(&failure, unknown_cause.is_some()) == WriteStep::Fail {
            return Err(final_error(what, failure, unknown_cause));
        }
        tracing::debug!(what, attempt, "retrying under the same key: {}", failure.reason());
        unknown_cause.get_or_insert_with(|| failure.reason());
        tokio::time::sleep(timing::pause(attempt, ids::random())).await;
    }
    unreachable!("the loop has no end but its returns")
}

/// An attempt with an unknown outcome is retried. After one, so is an attempt whose failure does
/// not settle that outcome, such as an unreachable guard.
fn next_step(failure: &Failure, is_unknown_before: bool) -> WriteStep {
    if is_outcome_unknown(failure) || (is_unknown_before && is_inconclusive(failure)) {
        WriteStep::Retry
    } else {
        WriteStep::Fail
    }
}

fn is_outcome_unknown(failure: &Failure) -> bool {
    match failure {
        Failure::NoReply(_) => true,
        Failure::Refused(problem, _) => {
            problem.code == Code::OutcomeUnknown
                || (problem.code == Code::Unknown && problem.status == 504)
        }
        Failure::NotSent(_) | Failure::Unusable(_) => false,
    }
}

/// Returns `true` if the failure concerns this attempt alone, and says nothing about earlier ones.
fn is_inconclusive(failure: &Failure) -> bool {
    match failure {
        Failure::NotSent(_) => true,
        Failure::Refused(problem, _) => {
            problem.code.retryable() || matches!(problem.status, 408 | 429 | 502..=504)
        }
        Failure::NoReply(_) | Failure::Unusable(_) => false,
    }
}

/// Error for the caller. An unknown outcome of an earlier attempt stays unknown, unless the guard
/// recognised the retry and replied with the outcome of the first.
fn final_error(what: &str, failure: Failure, unknown_cause: Option<String>) -> Error {
    let is_answer = match &failure {
        Failure::Refused(problem, _) => problem.extension(REPLAYED) == Some(true),
        _ => false,
    };
    let is_silence = is_outcome_unknown(&failure) || is_inconclusive(&failure);
    let error = failure.into_error(what, Effect::Changes);
    match unknown_cause {
        Some(why) if is_silence => unknown(what, &why, &error),
        Some(_) if !is_answer => error.with_outcome(WriteOutcome::Unknown),
        _ => error,
    }
}

fn unknown(what: &str, why: &str, last: &Error) -> Error {
    let message =
        format!("{what}: no reply, so the outcome is unknown: {why}; the retry failed: {last}");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::Problem;

    fn refused(code: Code) -> Failure {
        Failure::Refused(Box::new(Problem::new(code, "x")), None)
    }

    fn replayed(code: Code, outcome: WriteOutcome) -> Failure {
        let problem = Problem::new(code, "x").with("outcome", outcome).with(REPLAYED, true);
        Failure::Refused(Box::new(problem), None)
    }

    fn silent() -> Failure {
        Failure::NoReply("cut".to_owned())
    }

    fn unsent() -> Failure {
        Failure::NotSent("refused".to_owned())
    }

    #[test]
    fn only_a_change_that_may_have_been_applied_is_retried() {
        for failure in [silent(), refused(Code::OutcomeUnknown)] {
            assert_eq!(next_step(&failure, false), WriteStep::Retry, "{failure:?}");
            assert_eq!(next_step(&failure, true), WriteStep::Retry, "{failure:?}");
        }
        for failure in [unsent(), refused(Code::StoreUnavailable), refused(Code::ShuttingDown)] {
            assert_eq!(next_step(&failure, false), WriteStep::Fail, "{failure:?}");
            assert_eq!(next_step(&failure, true), WriteStep::Retry, "{failure:?}");
        }
        for code in
            [Code::StaleToken, Code::TokenCollision, Code::PreconditionFailed, Code::Internal]
        {
            assert_eq!(next_step(&refused(code), false), WriteStep::Fail, "{code}");
            assert_eq!(next_step(&refused(code), true), WriteStep::Fail, "{code}");
        }
    }

    /// A change that may have been applied is never reported as not applied because a retry failed.
    #[test]
    fn an_unknown_outcome_stays_unknown() {
        let unknown_cause = || Some("cut".to_owned());
        for failure in [silent(), unsent(), refused(Code::StoreUnavailable)] {
            assert_eq!(
                *final_error("put a", failure, unknown_cause()).kind(),
                ErrorKind::OutcomeUnknown
            );
        }
        let stale = final_error("put a", refused(Code::StaleToken), unknown_cause());
        assert_eq!(
            (stale.kind(), stale.outcome()),
            (&ErrorKind::Stale { mark: None }, Some(WriteOutcome::Unknown))
        );
        let first = final_error(
            "put a",
            replayed(Code::StaleToken, WriteOutcome::Applied),
            unknown_cause(),
        );
        assert_eq!(first.outcome(), Some(WriteOutcome::Applied));
        let condition = final_error(
            "put a",
            replayed(Code::PreconditionFailed, WriteOutcome::NotApplied),
            unknown_cause(),
        );
        assert_eq!(condition.outcome(), Some(WriteOutcome::NotApplied));
        assert_eq!(*final_error("put a", unsent(), None).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn keys_are_checked_where_they_are_given() {
        assert_eq!(OpId::new("order-42.paid").unwrap().header(), "\"order-42.paid\"");
        let random = OpId::random();
        assert_eq!(OpId::new(&random.0), Ok(random.clone()));
        assert_ne!(OpId::random(), random);
        for bad in ["", "a b", "\"", "ü", &"x".repeat(129)] {
            assert!(OpId::new(bad).is_err(), "{bad}");
        }
    }
}

//! A change of an object, repeated under one name until its outcome is known.

use fence_protocol::wire::fence::Outcome;
use fence_protocol::{Code, IDEMPOTENCY_KEY, Invalid};
use reqwest::RequestBuilder;

use super::OBJECT_BYTES_MAX;
use crate::transport::{Effect, Endpoint, Failure, REPLAYED, Reply};
use crate::{Error, ErrorKind, ids, timing};

/// How often one change is sent at most.
const ATTEMPTS: u32 = 3;
/// The longest name that a guard takes, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The name of a change, as the value of `Idempotency-Key`: whatever the guard did under it once, it
/// does not do again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpId(String);

impl OpId {
    pub(super) fn random() -> Self {
        Self(ids::lease_id().to_string())
    }

    pub(super) fn new(name: &str) -> Result<Self, Invalid> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
            let rule = "must have 1 to 128 bytes of A-Z a-z 0-9 . _ : -";
            return Err(Invalid::new("op-id", name, rule));
        }
        Ok(Self(name.to_owned()))
    }

    /// A string of RFC 9651.
    fn header(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

/// What to do after an attempt that brought no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteStep {
    /// The same again, under the same name.
    Retry,
    /// Tell the caller.
    Fail,
}

/// Sends what `request` makes, and repeats it under `op_id` where no reply came. `request` checks
/// the lease each time: a lease that is lost meanwhile sends nothing more.
pub(super) async fn send(
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
        tracing::debug!(what, attempt, "repeating under the same name: {}", failure.reason());
        unknown_cause.get_or_insert_with(|| failure.reason());
        tokio::time::sleep(timing::pause(attempt, ids::random())).await;
    }
    unreachable!("the loop has no end but its returns")
}

/// An attempt whose outcome is not known is repeated. Once there is such a one, so is what says
/// nothing about it: that the guard cannot be reached now.
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

/// Whether it is about this attempt alone, and not about what was sent before.
fn is_inconclusive(failure: &Failure) -> bool {
    match failure {
        Failure::NotSent(_) => true,
        Failure::Refused(problem, _) => {
            problem.code.retryable() || matches!(problem.status, 408 | 429 | 502..=504)
        }
        Failure::NoReply(_) | Failure::Unusable(_) => false,
    }
}

/// The error for the caller. What an earlier attempt left open stays open, unless the guard
/// recognised the repeat and said what had become of the first.
fn final_error(what: &str, failure: Failure, unknown_cause: Option<String>) -> Error {
    let is_answer = match &failure {
        Failure::Refused(problem, _) => problem.extension(REPLAYED) == Some(true),
        _ => false,
    };
    let is_silence = is_outcome_unknown(&failure) || is_inconclusive(&failure);
    let error = failure.into_error(what, Effect::Changes);
    match unknown_cause {
        Some(why) if is_silence => unknown(what, &why, &error),
        Some(_) if !is_answer => error.with_outcome(Outcome::Unknown),
        _ => error,
    }
}

fn unknown(what: &str, why: &str, last: &Error) -> Error {
    let message =
        format!("{what}: no reply, so whether it was done is not known: {why}; after that: {last}");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::Problem;

    fn refused(code: Code) -> Failure {
        Failure::Refused(Box::new(Problem::new(code, "x")), None)
    }

    fn replayed(code: Code, outcome: Outcome) -> Failure {
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
    fn only_what_may_have_been_done_is_repeated() {
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

    /// What was sent once and not answered is never called undone by what a later attempt met.
    #[test]
    fn doubt_is_never_talked_away() {
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
            (&ErrorKind::Stale { mark: None }, Some(Outcome::Unknown))
        );
        let first =
            final_error("put a", replayed(Code::StaleToken, Outcome::Applied), unknown_cause());
        assert_eq!(first.outcome(), Some(Outcome::Applied));
        let condition = final_error(
            "put a",
            replayed(Code::PreconditionFailed, Outcome::NotApplied),
            unknown_cause(),
        );
        assert_eq!(condition.outcome(), Some(Outcome::NotApplied));
        assert_eq!(*final_error("put a", unsent(), None).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn names_are_checked_where_they_are_given() {
        assert_eq!(OpId::new("order-42.paid").unwrap().header(), "\"order-42.paid\"");
        let random = OpId::random();
        assert_eq!(OpId::new(&random.0), Ok(random.clone()));
        assert_ne!(OpId::random(), random);
        for bad in ["", "a b", "\"", "ü", &"x".repeat(129)] {
            assert!(OpId::new(bad).is_err(), "{bad}");
        }
    }
}

//! A change that is sent until its outcome is known: an attempt that may have taken effect is never
//! reported as undone because a retry failed.

use std::time::Duration;

use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome;

use crate::transport::{Effect, Failure, REPLAYED};
use crate::{Error, ErrorKind, clock, ids, timing};

/// Attempts of one change so far.
#[derive(Debug, Default)]
pub(crate) struct SentChange {
    /// Failure of the first attempt that may have taken effect.
    unknown_cause: Option<String>,
    /// A server received an attempt, whatever its reply.
    arrived: bool,
}

impl SentChange {
    /// Returns `true` if an attempt may have taken effect.
    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown_cause.is_some()
    }

    /// Records an attempt that failed.
    pub(crate) fn record(&mut self, failure: &Failure) {
        self.arrived |= !matches!(failure, Failure::NotSent(_));
        if is_outcome_unknown(failure) {
            self.unknown_cause.get_or_insert_with(|| failure.reason());
        }
    }

    /// Error for the caller if the last attempt failed; `what` names the call. An unknown outcome
    /// of an earlier attempt stays unknown, unless the server recognised the retry and replied
    /// with the outcome of the first.
    pub(crate) fn error(self, what: &str, last: Failure) -> Error {
        let is_answer =
            last.problem().and_then(|problem| problem.extension(REPLAYED)) == Some(true);
        let is_passing = is_passing(&last);
        let error = last.into_error(what, Effect::Changes);
        match self.unknown_cause {
            Some(why) if is_passing => unknown(what, &why, &error),
            Some(_) if !is_answer => error.with_outcome(WriteOutcome::Unknown),
            _ => error,
        }
    }

    /// Error for the caller if the client itself refuses the next attempt by `error`.
    pub(crate) fn refused_here(self, what: &str, error: Error) -> Error {
        match self.unknown_cause {
            Some(why) => unknown(what, &why, &error),
            None => error,
        }
    }
}

/// Sends a change by `send`, and retries it for `patience` while the failures say nothing about its
/// outcome. `None` if a server received an earlier attempt of this call and the refusal of a later
/// one `shows_done`. Cancel-safe as `send` is.
pub(crate) async fn until_settled<T, F: Future<Output = Result<T, Failure>>>(
    what: &str,
    patience: Duration,
    send: impl Fn() -> F,
    shows_done: impl Fn(&Failure) -> bool,
) -> Result<Option<T>, Error> {
    let patience_until = clock::now().plus(patience);
    let mut sent = SentChange::default();
    for attempt in 1.. {
        let failure = match send().await {
            Ok(reply) => return Ok(Some(reply)),
            Err(failure) => failure,
        };
        if sent.arrived && shows_done(&failure) {
            return Ok(None);
        }
        let pause = timing::pause(attempt, ids::random());
        if !is_passing(&failure) || clock::now().plus(pause) >= patience_until {
            return Err(sent.error(what, failure));
        }
        sent.record(&failure);
        tokio::time::sleep(pause).await;
    }
    unreachable!("the loop has no end but its returns")
}

/// Returns `true` if a retry can succeed.
pub(crate) fn is_passing(failure: &Failure) -> bool {
    is_outcome_unknown(failure) || is_inconclusive(failure)
}

/// Returns `true` if the attempt may have taken effect.
pub(crate) fn is_outcome_unknown(failure: &Failure) -> bool {
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

fn unknown(what: &str, why: &str, last: &Error) -> Error {
    let message =
        format!("{what}: no reply, so the outcome is unknown: {why}; the retry failed: {last}");
    Error::new(ErrorKind::OutcomeUnknown, message)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use fence_protocol::Problem;

    use super::*;

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

    /// Error of a change whose first attempt was lost.
    fn error_after_silence(last: Failure) -> Error {
        let mut sent = SentChange::default();
        sent.record(&silent());
        sent.error("put a", last)
    }

    /// A change that may have taken effect is never reported as undone because a retry failed.
    #[test]
    fn an_unknown_outcome_stays_unknown() {
        for failure in [silent(), unsent(), refused(Code::StoreUnavailable)] {
            assert_eq!(*error_after_silence(failure).kind(), ErrorKind::OutcomeUnknown);
        }
        let stale = error_after_silence(refused(Code::StaleToken));
        assert_eq!(
            (stale.kind(), stale.outcome()),
            (&ErrorKind::Stale { mark: None }, Some(WriteOutcome::Unknown))
        );
        let first = error_after_silence(replayed(Code::StaleToken, WriteOutcome::Applied));
        assert_eq!(first.outcome(), Some(WriteOutcome::Applied));
        let other = replayed(Code::PreconditionFailed, WriteOutcome::NotApplied);
        assert_eq!(error_after_silence(other).outcome(), Some(WriteOutcome::NotApplied));
        let unsent = SentChange::default().error("put a", unsent());
        assert_eq!(*unsent.kind(), ErrorKind::Unavailable);
    }

    /// Result of a release whose attempts fail so, and then are not sent.
    async fn released(failures: Vec<Failure>) -> Result<Option<()>, Error> {
        let failures = RefCell::new(failures);
        let send = || {
            let mut failures = failures.borrow_mut();
            let next = if failures.is_empty() { unsent() } else { failures.remove(0) };
            std::future::ready(Err(next))
        };
        let shows_done = |failure: &Failure| failure.reason() == refused(Code::LeaseLost).reason();
        until_settled("release a", Duration::from_secs(2), send, shows_done).await
    }

    #[tokio::test]
    async fn what_was_done_by_a_lost_attempt_is_a_success() {
        let done = || vec![refused(Code::LeaseLost)];
        for earlier in [vec![silent()], vec![silent(), unsent()]] {
            let outcome = released(earlier.into_iter().chain(done()).collect()).await;
            assert_eq!(outcome.unwrap(), None);
        }
        let error = released([unsent()].into_iter().chain(done()).collect()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::LeaseLost { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn attempts_that_are_refused_after_a_lost_one_leave_the_outcome_open() {
        let kind = async |failures| released(failures).await.unwrap_err().kind().clone();
        assert_eq!(kind(vec![]).await, ErrorKind::Unavailable);
        for lost in [silent(), refused(Code::OutcomeUnknown)] {
            assert_eq!(kind(vec![unsent(), lost]).await, ErrorKind::OutcomeUnknown);
        }
    }
}

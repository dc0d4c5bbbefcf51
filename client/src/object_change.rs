//! Changes of objects, retried under one idempotency key until their outcome is known.

use fence_protocol::{FENCING_GUARANTEE, IDEMPOTENCY_KEY, Invalid};
use reqwest::RequestBuilder;

use crate::sent_change::{SentChange, is_outcome_unknown, is_passing};
use crate::transport::{Endpoint, Failure, Reply};
use crate::{Error, ids, timing};

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

/// Refuses a success that is not of a guard, such as that of any web server at a wrong address.
pub(crate) fn of_guard(reply: Reply) -> Result<Reply, Failure> {
    if reply.headers.contains_key(FENCING_GUARANTEE) {
        return Ok(reply);
    }
    Err(reply.foreign("it has no Fencing-Guarantee header"))
}

/// Sends a change, and retries it under `op_id` if no reply arrives. `request` builds each attempt
/// and checks the lease: once the lease is lost, nothing more is sent.
pub(crate) async fn send(
    endpoint: &Endpoint,
    what: &str,
    op_id: &OpId,
    request: impl Fn() -> Result<RequestBuilder, Error>,
) -> Result<Reply, Error> {
    let mut sent = SentChange::default();
    for attempt in 1.. {
        let request = match request() {
            Ok(request) => request.header(IDEMPOTENCY_KEY, op_id.header()),
            Err(error) => return Err(sent.refused_here(what, error)),
        };
        let replied = endpoint.send(request, OBJECT_BYTES_MAX).await;
        let failure = match replied.and_then(of_guard) {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        let is_last = attempt == ATTEMPTS;
        if is_last || next_step(&failure, sent.is_unknown()) == WriteStep::Fail {
            return Err(sent.error(what, failure));
        }
        tracing::debug!(what, attempt, "retrying under the same key: {}", failure.reason());
        sent.record(&failure);
        tokio::time::sleep(timing::pause(attempt, ids::random())).await;
    }
    unreachable!("the loop has no end but its returns")
}

/// An attempt with an unknown outcome is retried. After one, so is an attempt whose failure does
/// not settle that outcome, such as an unreachable guard.
fn next_step(failure: &Failure, is_unknown_before: bool) -> WriteStep {
    if is_outcome_unknown(failure) || (is_unknown_before && is_passing(failure)) {
        WriteStep::Retry
    } else {
        WriteStep::Fail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::{Code, Problem};

    fn refused(code: Code) -> Failure {
        Failure::Refused(Box::new(Problem::new(code, "x")), None)
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

//! The only mapping of outcomes to statuses and problem bodies.

use axum::response::{IntoResponse, Response};
use fence_protocol::wire::fence::WriteOutcome as WireOutcome;
use fence_protocol::{Code, FENCING_MARK, IDEMPOTENCY_REPLAYED, Owner, Token};
use http::HeaderValue;
use http::header::ETAG;
use service_kit::problem::Reject;

use crate::etag::ETag;
use crate::stores::contract::{FenceOutcome, First, StoreError};
use crate::verdict::{Fence, Mark};

/// A request, for refusals and log lines.
#[derive(Clone, Debug)]
pub struct RequestSummary {
    /// Presented fence.
    pub fence: Option<Fence>,
    /// `put`, `get`, `delete`, `seal`, `forward`, `redis`.
    pub kind: &'static str,
    /// Method and key.
    pub text: String,
    /// Owner that the caller named.
    pub owner: Option<Owner>,
}

/// An operation that was not applied, or whose outcome is unknown; ready to be sent.
#[derive(Debug)]
pub struct Failure {
    reject: Box<Reject>,
    mark: Option<Token>,
    etag: Option<ETag>,
    repeated: bool,
}

impl Failure {
    fn new(reject: Reject, mark: Option<Token>) -> Self {
        Self { reject: Box::new(reject), mark, etag: None, repeated: false }
    }

    /// The problem.
    pub fn reject(&self) -> &Reject {
        &self.reject
    }
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Self::new(reject, None)
    }
}

impl From<fence_protocol::Invalid> for Failure {
    fn from(invalid: fence_protocol::Invalid) -> Self {
        Reject::from(invalid).into()
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.reject.into_response();
        if let Some(mark) = self.mark {
            response.headers_mut().insert(FENCING_MARK, HeaderValue::from(mark.get()));
        }
        if let Some(Ok(etag)) = self.etag.map(|etag| HeaderValue::try_from(etag.to_string())) {
            response.headers_mut().insert(ETAG, etag);
        }
        if self.repeated {
            response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        }
        response
    }
}

/// Renders every outcome but success.
pub fn failure(summary: &RequestSummary, outcome: Result<FenceOutcome, StoreError>) -> Failure {
    match outcome {
        Ok(FenceOutcome::Stale { mark }) => refused(summary, mark, Code::StaleToken),
        Ok(FenceOutcome::Collision { mark }) => refused(summary, mark, Code::TokenCollision),
        Ok(FenceOutcome::StaleRepeat { mark, first }) => stale_repeat(summary, mark, &first),
        Ok(FenceOutcome::PreconditionFailed { etag, mark }) => {
            condition_failed(summary, etag, mark)
        }
        Ok(FenceOutcome::Repeated { first: First::PreconditionFailed { etag }, mark }) => {
            Failure { repeated: true, ..condition_failed(summary, etag, mark) }
        }
        Ok(FenceOutcome::NameTaken { mark }) => {
            let detail = format!("{}: its Idempotency-Key named another operation", summary.text);
            let reject =
                Reject::new(Code::OpIdReused, detail).with("outcome", WireOutcome::NotApplied);
            Failure::new(reject, mark)
        }
        // Callers pass only failures.
        Ok(FenceOutcome::Applied { mark, .. } | FenceOutcome::Repeated { mark, .. }) => {
            let reject = Reject::new(Code::Internal, "a success was reported as a failure");
            Failure::new(reject, mark)
        }
        Err(error) => from_error(summary, &error).into(),
    }
}

fn refused(summary: &RequestSummary, mark: Mark, code: Code) -> Failure {
    let presented = summary.fence.as_ref().map(|fence| fence.presented.token);
    let shown = presented.map(|token| token.to_string()).unwrap_or_default();
    let detail = match code {
        Code::TokenCollision => format!(
            "{}: token {shown} was presented by two leases; lease {} owns the mark",
            summary.text, mark.lease
        ),
        _ => format!("{}: token {shown} is below the mark {}", summary.text, mark.token),
    };
    let mut reject = Reject::new(code, detail)
        .with("presented", presented)
        .with("mark", mark.token)
        // The next grant has to exceed the mark: an acquire with this `min_token` does.
        .with("min_token", mark.token)
        .with("outcome", WireOutcome::NotApplied);
    if let Some(fence) = &summary.fence {
        reject = reject.with("lock", &fence.lock);
    }
    Failure::new(reject, Some(mark.token))
}

fn condition_failed(summary: &RequestSummary, etag: Option<ETag>, mark: Option<Token>) -> Failure {
    let current = match &etag {
        Some(etag) => format!("the object's tag is {etag}"),
        None => "there is no such object".to_owned(),
    };
    let detail = format!("{}: the condition does not hold, {current}", summary.text);
    let reject = Reject::new(Code::PreconditionFailed, detail)
        .with("outcome", WireOutcome::NotApplied)
        .with("etag", etag.as_ref().map(ToString::to_string));
    Failure { etag, ..Failure::new(reject, mark) }
}

/// Renders the refusal of a stale holder's retry whose first attempt was applied.
fn stale_repeat(summary: &RequestSummary, mark: Mark, first: &First) -> Failure {
    let refused = refused(summary, mark, Code::StaleToken);
    if !first.applied() {
        return Failure { repeated: true, ..refused };
    }
    let etag = match first {
        First::Stored { etag, .. } => Some(etag.to_string()),
        First::Deleted { .. } | First::PreconditionFailed { .. } => None,
    };
    let mark = refused.mark;
    let reject = (*refused.reject).with("outcome", WireOutcome::Applied).with("etag", etag).hint(
        "Stop the work: another client holds the lock. This operation was applied before that; do \
         not apply it again.",
    );
    Failure { repeated: true, ..Failure::new(reject, mark) }
}

fn from_error(summary: &RequestSummary, error: &StoreError) -> Reject {
    let detail = format!("{}: {error}", summary.text);
    let not_applied =
        |code| Reject::new(code, detail.clone()).with("outcome", WireOutcome::NotApplied);
    match error {
        StoreError::Unavailable(_) => not_applied(Code::StoreUnavailable).retry_after(1),
        StoreError::LimitReached(_) => not_applied(Code::LimitReached).retry_after(1),
        StoreError::Draining { retry_ms, .. } => {
            not_applied(Code::Draining).retry_after(retry_ms.div_ceil(1000).max(1))
        }
        StoreError::NotLeader { leader } => {
            not_applied(Code::NotLeader).with("leader", leader).retry_after(1)
        }
        StoreError::Quarantined { retry_ms, .. } => {
            not_applied(Code::Quarantined).retry_after(retry_ms.div_ceil(1000).max(1))
        }
        StoreError::Unknown(_) => {
            let named = match summary.kind {
                "put" | "delete" => NAMED_HINT,
                _ => "",
            };
            Reject::new(Code::OutcomeUnknown, detail)
                .with("outcome", WireOutcome::Unknown)
                .hint(format!("{UNKNOWN_HINT}{named}"))
        }
    }
}

/// Advice after an unknown outcome.
pub const UNKNOWN_HINT: &str = "Read the object with the same token to see what is there. The same \
    write may be retried with the same token while the lease is held; it is refused once the lock \
    has a later holder.";

/// Further advice if operations can have names.
const NAMED_HINT: &str = " A retry with the same Idempotency-Key returns the first outcome, and is \
    applied at most once.";

//! Headers that replies share.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fence_protocol::IDEMPOTENCY_REPLAYED;
use fence_protocol::wire::fence::Guarantee;
use http::HeaderValue;

use crate::doors::http::headers::{complete, fenced};
use crate::doors::http::unread::Unread;
use crate::guard::Applied;

/// Adds `Fencing-Mark`, and marks the reply to an idempotent retry.
pub(super) fn repeatable(applied: &Applied, response: impl IntoResponse) -> Response {
    let mut response = fenced(applied.mark, response);
    if applied.repeated.is_some() {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Completes every reply, refusals too.
pub(super) async fn guarantee(
    State(guarantee): State<Guarantee>,
    request: Request,
    next: Next,
) -> Response {
    let (request, body) = Unread::watch(request);
    complete(next.run(request).await, guarantee, &body)
}

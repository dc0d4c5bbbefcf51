//! Headers that replies share.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, IDEMPOTENCY_REPLAYED, Token};
use http::HeaderValue;
use http::header::CONNECTION;

use crate::doors::http::unread::Unread;
use crate::guard::Applied;

/// Adds `Fencing-Mark` if the operation was fenced.
pub(super) fn fenced(mark: Option<Token>, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    if let Some(mark) = mark {
        response.headers_mut().insert(FENCING_MARK, HeaderValue::from(mark.get()));
    }
    response
}

/// Adds `Fencing-Mark`, and marks the reply to an idempotent retry.
pub(super) fn repeatable(applied: &Applied, response: impl IntoResponse) -> Response {
    let mut response = fenced(applied.mark, response);
    if applied.repeated.is_some() {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Adds `Fencing-Guarantee` to every reply, refusals too, and closes the connection if a refusal
/// left the request's body unread.
pub(super) async fn guarantee(
    State(guarantee): State<Guarantee>,
    request: Request,
    next: Next,
) -> Response {
    let (request, body) = Unread::watch(request);
    let mut response = next.run(request).await;
    let value = HeaderValue::from_static(guarantee.as_str());
    response.headers_mut().insert(FENCING_GUARANTEE, value);
    if body.is_left() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

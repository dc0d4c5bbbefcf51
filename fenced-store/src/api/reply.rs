//! What replies carry beside their own content.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, Token};
use http::HeaderValue;

/// Adds `Fencing-Mark`, where the operation was fenced.
pub(super) fn fenced(mark: Option<Token>, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    if let Some(mark) = mark {
        response.headers_mut().insert(FENCING_MARK, HeaderValue::from(mark.get()));
    }
    response
}

/// Adds `Fencing-Guarantee` to every reply, refusals too.
pub(crate) async fn guarantee(
    State(guarantee): State<Guarantee>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let value = HeaderValue::from_static(guarantee.as_str());
    response.headers_mut().insert(FENCING_GUARANTEE, value);
    response
}

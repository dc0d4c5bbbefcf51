//! What every successful reply carries.

use axum::response::{IntoResponse, Response};
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, Token};
use http::HeaderValue;

use crate::service::Guard;

/// Adds `Fencing-Mark` (where the operation was fenced) and `Fencing-Guarantee`.
pub(super) fn fenced(
    guard: &Guard,
    mark: Option<Token>,
    response: impl IntoResponse,
) -> Response {
    let mut response = response.into_response();
    let headers = response.headers_mut();
    if let Some(mark) = mark {
        headers.insert(FENCING_MARK, HeaderValue::from(mark.get()));
    }
    headers.insert(FENCING_GUARANTEE, HeaderValue::from_static(guard.guarantee().as_str()));
    response
}

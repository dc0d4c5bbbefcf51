//! Headers that the doors for HTTP read and write alike.

use axum::response::{IntoResponse, Response};
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{FENCING_GUARANTEE, FENCING_MARK, Invalid, Owner, Token};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::unread::Unread;
use crate::etag::Condition;

/// Header with the caller's name, for the list of refusals; optional.
const FENCE_OWNER: &str = "fence-owner";

/// Parses the `Fence-Owner` header.
pub(crate) fn owner(headers: &HeaderMap) -> Result<Option<Owner>, Invalid> {
    let Some(value) = headers.get(FENCE_OWNER) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Invalid::new("Fence-Owner", "…", "is not UTF-8"))?;
    Owner::new(text).map(Some)
}

/// Parses `If-Match` and `If-None-Match`.
pub(crate) fn condition(headers: &HeaderMap) -> Result<Condition, Invalid> {
    let if_match = list(headers, &http::header::IF_MATCH)?;
    let if_none_match = list(headers, &http::header::IF_NONE_MATCH)?;
    Condition::parse(if_match.as_deref(), if_none_match.as_deref())
}

/// Parses a header that may be given in several lines, as one list.
fn list(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, Invalid> {
    let lines: Result<Vec<&str>, _> =
        headers.get_all(name).iter().map(HeaderValue::to_str).collect();
    let lines = lines.map_err(|_| Invalid::new("condition", name.as_str(), "is not ASCII text"))?;
    Ok((!lines.is_empty()).then(|| lines.join(", ")))
}

/// Adds `Fencing-Mark` if the operation was fenced.
pub(crate) fn fenced(mark: Option<Token>, response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    if let Some(mark) = mark {
        response.headers_mut().insert(FENCING_MARK, HeaderValue::from(mark.get()));
    }
    response
}

/// Adds `Fencing-Guarantee`, and closes the connection if the request's body was not read to its
/// end: another request could not follow it.
pub(crate) fn complete(mut response: Response, guarantee: Guarantee, body: &Unread) -> Response {
    let headers = response.headers_mut();
    headers.insert(FENCING_GUARANTEE, HeaderValue::from_static(guarantee.as_str()));
    if body.is_left() {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

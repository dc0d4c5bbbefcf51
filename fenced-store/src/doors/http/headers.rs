//! Headers that the doors for HTTP read alike.

use fence_protocol::{Invalid, Owner};
use http::{HeaderMap, HeaderName};

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
        headers.get_all(name).iter().map(http::HeaderValue::to_str).collect();
    let lines = lines.map_err(|_| Invalid::new("condition", name.as_str(), "is not ASCII text"))?;
    Ok((!lines.is_empty()).then(|| lines.join(", ")))
}

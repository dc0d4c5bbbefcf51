//! Parts of a request for extractors and logs: its id, and the limits of its body.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use crate::ids;

/// The header that names a request in replies, problem bodies and logs.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over, in bytes.
const MAX_BYTES: usize = 64;

/// Bytes of a body unless a router says otherwise.
pub(crate) const BODY_BYTES: usize = 64 * 1024;

/// The extension of every request that goes through [`crate::http::finish`].
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) id: Id,
    pub(crate) limits: BodyLimits,
}

/// Limits of a request's body, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) max_body_bytes: usize,
    pub(crate) max_json_bytes: usize,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { max_body_bytes: BODY_BYTES, max_json_bytes: BODY_BYTES }
    }
}

/// The id of the request that is being handled, for logs and for what is passed on.
///
/// Empty where the router did not go through [`crate::http::finish`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(pub HeaderValue);

impl RequestId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// The id of the request that carries these extensions; `None` outside of
    /// [`crate::http::finish`].
    pub fn find(extensions: &Extensions) -> Option<Self> {
        extensions.get::<RequestContext>().map(|context| Self(context.id.header()))
    }
}

/// The id of a request, as text only where it is needed.
#[derive(Clone, Debug)]
pub(crate) enum Id {
    /// It came in.
    Given(HeaderValue),
    /// It was made here.
    Made([u8; ids::REQUEST_ID_BYTES]),
}

impl Id {
    /// The id that came in when it is a sane one, else a new one.
    pub(crate) fn take_or_make(headers: &HeaderMap) -> Self {
        match headers.get(X_REQUEST_ID) {
            Some(id) if is_sane(id.as_bytes()) => Self::Given(id.clone()),
            _ => Self::Made(ids::request_id_bytes()),
        }
    }

    /// The id as text.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Given(id) => id.to_str().unwrap_or_default(),
            Self::Made(id) => std::str::from_utf8(id).unwrap_or_default(),
        }
    }

    /// The id as the value of a header.
    pub(crate) fn header(&self) -> HeaderValue {
        match self {
            Self::Given(id) => id.clone(),
            Self::Made(id) => {
                HeaderValue::from_bytes(id).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
            }
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::find(&parts.extensions).unwrap_or(Self(HeaderValue::from_static(""))))
    }
}

/// An id goes into headers, JSON and logs as it is, so nothing that could be misread there.
fn is_sane(id: &[u8]) -> bool {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !id.is_empty() && id.len() <= MAX_BYTES && id.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sane_ids_are_taken_over() {
        assert!(is_sane(b"req-1_a.B"));
        assert!(is_sane(&[b'a'; 64]));
        for bad in [&b""[..], &[b'a'; 65], b"a b", b"a\"b", b"a\tb", "ä".as_bytes(), b"a/b"] {
            assert!(!is_sane(bad), "{bad:?}");
        }
    }
}

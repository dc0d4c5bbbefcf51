//! Errors of handlers as problem bodies, and extractors whose refusals are such errors.

mod body;
mod extract;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use fence_protocol::{Code, Invalid, Problem};
use serde::Serialize;

pub use body::{ApiBytes, BodyTooSlow, Pieces, body_error, next_bytes, too_large};
pub use extract::{ApiJson, ApiPath, ApiQuery};

/// The error of a handler: a problem, and how long to wait before trying again.
///
/// It becomes `application/problem+json` with the status of the problem's code;
/// [`crate::http::finish`] adds the request id to the body.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    problem: Box<Problem>,
    /// Of few, and on the heap: every handler's result has room for this type.
    headers: Option<Box<Headers>>,
}

/// Headers of a reply beside its body's.
#[derive(Clone, Debug, Default, PartialEq)]
struct Headers {
    retry_after_secs: Option<u64>,
    allow: Option<String>,
}

/// Result of a handler.
pub type Result<T> = std::result::Result<T, Reject>;

/// The rendered problem, left in the reply's extensions so that the request id can be added.
#[derive(Clone, Debug)]
pub(crate) struct Rendered(pub(crate) Bytes);

/// Returns the problem that a reply carries, before [`crate::http::finish`] adds the request id.
pub fn problem_of(response: &Response) -> Option<Problem> {
    let text = response.extensions().get::<Rendered>()?;
    serde_json::from_slice(&text.0).ok()
}

impl Reject {
    /// A refusal of `code`; `detail` says what happened with which values.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem::new(code, detail).into()
    }

    /// With a `Retry-After` header.
    #[must_use]
    pub fn retry_after(mut self, secs: u64) -> Self {
        self.headers.get_or_insert_default().retry_after_secs = Some(secs);
        self
    }

    /// With an `Allow` header, which every 405 has: methods that the path knows.
    #[must_use]
    pub fn allow(mut self, methods: impl Into<String>) -> Self {
        self.headers.get_or_insert_default().allow = Some(methods.into());
        self
    }

    /// With a further member in the body.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        *self.problem = self.problem.with(name, value);
        self
    }

    /// With another hint than the code's own.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = hint.into();
        self
    }

    /// Kind of the error.
    pub fn code(&self) -> Code {
        self.problem.code
    }

    /// Body of the reply.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The `Retry-After` header, in seconds.
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.headers.as_ref()?.retry_after_secs
    }
}

impl From<Problem> for Reject {
    fn from(problem: Problem) -> Self {
        Self { problem: Box::new(problem), headers: None }
    }
}

impl From<Invalid> for Reject {
    fn from(invalid: Invalid) -> Self {
        Self::new(Code::InvalidRequest, invalid.to_string())
    }
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Reject {}

impl IntoResponse for Reject {
    fn into_response(self) -> Response {
        // A problem is made of strings, numbers and JSON values: it can always be written.
        let text = Bytes::from(serde_json::to_vec(&self.problem).unwrap_or_default());
        let mut response = Response::new(Body::from(text.clone()));
        *response.status_mut() =
            StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let Headers { retry_after_secs, allow } =
            self.headers.map_or_else(Headers::default, |own| *own);
        if let Some(secs) = retry_after_secs {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        if let Some(methods) = allow.and_then(|methods| HeaderValue::try_from(methods).ok()) {
            headers.insert(header::ALLOW, methods);
        }
        response.extensions_mut().insert(Rendered(text));
        response
    }
}

/// Text from outside, fit for an error message: shortened, and nothing unprintable in it.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 120;
    let mut out: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

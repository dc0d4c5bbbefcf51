//! Extractors whose refusals are problems, and JSON replies.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use fence_protocol::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::{Reject, body, shown};

/// A JSON body, of a request or of a reply.
///
/// An empty body is read as `{}`. Without a content type, or with one that clients send by
/// themselves (`curl -d`: `application/x-www-form-urlencoded`; the `fetch` of Node: `text/plain`),
/// the body is read as JSON too; another content type is 415. What is no JSON, has unknown fields
/// or wrong values is 400 with the place, and what is larger than
/// [`crate::http::HttpOptions::max_json_bytes`] is 413. Nesting is bounded by serde_json, which
/// refuses more than 128 levels.
#[derive(Clone, Copy, Debug)]
pub struct ApiJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for ApiJson<T> {
    type Rejection = Reject;

    async fn from_request(request: Request, _: &S) -> Result<Self, Reject> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        let text = body::read(body, body::limits(&parts.extensions).max_json_bytes).await?;
        match text.trim_ascii_start().first() {
            None => parse(b"{}"),
            // serde would read the members in the order of their declaration.
            Some(b'[') => {
                let detail = "the body is a JSON array, and this request takes an object";
                Err(Reject::new(Code::InvalidRequest, detail))
            }
            Some(_) => parse(&text),
        }
        .map(Self)
    }
}

/// Room for a usual reply: a lease with its credential.
const REPLY_BYTES: usize = 1024;

impl<T: Serialize> IntoResponse for ApiJson<T> {
    fn into_response(self) -> Response {
        let mut text = Vec::with_capacity(REPLY_BYTES);
        if let Err(error) = serde_json::to_writer(&mut text, &self.0) {
            let detail = format!("the reply cannot be written as JSON: {error}");
            return Reject::new(Code::Internal, detail).into_response();
        }
        let mut response = Response::new(Body::from(text));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

/// The query, read as `T`; what cannot be read so is 400.
#[derive(Clone, Copy, Debug)]
pub struct ApiQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reject> {
        let query: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|error| {
            let query = shown(parts.uri.query().unwrap_or_default());
            Reject::new(
                Code::InvalidRequest,
                format!("the query \"{query}\" is not valid: {}", in_words(&error.body_text())),
            )
        })
    }
}

/// The captures of the path, percent-decoded and read as `T`; what cannot be read so is 400.
#[derive(Clone, Copy, Debug)]
pub struct ApiPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for ApiPath<T> {
    type Rejection = Reject;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reject> {
        let path: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        path.map(|Path(value)| Self(value)).map_err(|error| {
            let path = shown(parts.uri.path());
            Reject::new(
                Code::InvalidRequest,
                format!("the path \"{path}\" is not valid: {}", in_words(&error.body_text())),
            )
        })
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Reject> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim();
    let is = |name: &str| essence.eq_ignore_ascii_case(name);
    let is_json_suffix = || {
        let essence = essence.to_ascii_lowercase();
        essence.starts_with("application/") && essence.ends_with("+json")
    };
    // Pages of another origin are refused before this, whatever they send.
    let is_default = is("application/x-www-form-urlencoded") || is("text/plain");
    if is("application/json") || is_default || is_json_suffix() {
        return Ok(());
    }
    let detail = format!("the content type \"{}\" is not understood here", shown(&text));
    Err(Reject::new(Code::UnsupportedMediaType, detail))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Reject> {
    serde_json::from_slice(text).map_err(|error| {
        let what = match error.classify() {
            Category::Data => "the body is not what this request takes",
            Category::Syntax | Category::Eof | Category::Io => "the body is not JSON",
        };
        Reject::new(Code::InvalidRequest, format!("{what}: {}", shown_error(&error)))
            .with("line", error.line())
            .with("column", error.column())
    })
}

/// serde's and axum's messages name types of Rust.
fn in_words(text: &str) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("Failed to deserialize query string: ", ""),
        ("invalid digit found in string", "it is no whole number from 0"),
        ("expected u64", "expected a whole number from 0"),
        ("expected u32", "expected a whole number from 0"),
        ("expected usize", "expected a whole number from 0"),
    ];
    WORDS.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// serde's message repeats the refused value, which may be as long as the body.
fn shown_error(error: &serde_json::Error) -> String {
    const SHOWN_CHARS: usize = 400;
    let text = in_words(&error.to_string());
    let mut out: String = text
        .chars()
        .take(SHOWN_CHARS)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        out.push_str(&format!("… at line {} column {}", error.line(), error.column()));
    }
    out
}

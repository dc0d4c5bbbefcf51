//! A reply of the upstream, whatever version of HTTP it came by.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tower::BoxError;

use super::exchange::Exchange;
use super::{Client, Connection, Lost};

/// Checks the head of a reply, and leaves one length in it at most. The HTTP library does not check
/// the length in a reply to HEAD, and hands over a 101, which no request asks for.
///
/// # Errors
/// [`Lost::Unknown`] if it is no reply.
pub(super) fn checked<B>(mut response: Response<B>) -> Result<Response<B>, Lost> {
    if response.status().is_informational() {
        return Err(Lost::Unknown(format!("it replied {}", response.status())));
    }
    let headers = response.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) {
        // It overrides the length (RFC 9112 section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    if let Some(length) = stated_length(headers)? {
        let mut stated = headers.get_all(CONTENT_LENGTH).iter();
        let is_listed = stated.next().is_some_and(|value| value.as_bytes().contains(&b','));
        if is_listed || stated.next().is_some() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    Ok(response)
}

/// Returns the length that a head states, in bytes; one that is repeated is one (RFC 9110 section
/// 8.6).
///
/// # Errors
/// [`Lost::Unknown`] if there are two, or one is no number.
fn stated_length(headers: &HeaderMap) -> Result<Option<u64>, Lost> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        for text in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let stated = text.parse::<u64>().ok().filter(|_| is_number);
            if stated.is_none() || length.or(stated) != stated {
                return Err(Lost::Unknown("its reply has an invalid Content-Length".to_owned()));
            }
            length = stated;
        }
    }
    Ok(length)
}

/// Body of a reply, with the connection or stream that it comes from. Dropping it before its end
/// closes the one or resets the other.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// HTTP/1.
    Connection(Box<Connection>, Incoming),
    /// HTTP/2.
    Stream(Box<Exchange>),
}

impl ReplyBody {
    /// Returns `true` if the reply may belong to no request: a server sends one before it closes a
    /// connection at rest.
    pub(crate) fn may_be_unasked(&self) -> bool {
        matches!(self, Self::Connection(connection, _) if connection.is_reused())
    }

    /// Polls the next frame.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Connection(connection, body) => {
                connection.poll_frame(body, cx).map(|frame| frame.map(|frame| Ok(frame?)))
            }
            Self::Stream(exchange) => {
                exchange.poll_frame(cx).map(|frame| frame.map(|frame| Ok(frame?)))
            }
        }
    }

    /// Returns `true` if there is no further byte.
    pub(crate) fn is_end_stream(&self) -> bool {
        match self {
            Self::Connection(_, body) => body.is_end_stream(),
            Self::Stream(exchange) => exchange.is_end_stream(),
        }
    }

    /// Bytes that are left.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Connection(_, body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }

    /// Keeps the connection, after the last byte.
    pub(crate) fn release(self, client: &Client, cx: &mut Context<'_>) {
        if let Self::Connection(connection, _) = self {
            client.release(connection, cx);
        }
    }
}

//! A reply of the upstream, whatever version of HTTP it came by.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tower::BoxError;

use super::exchange::Exchange;
use super::{Client, Connection};

/// Body of a reply, with the connection or stream that it comes from. Dropping it before its end
/// closes the one or resets the other.
#[derive(Debug)]
pub(in super::super) enum ReplyBody {
    /// HTTP/1.
    Connection(Box<Connection>, Incoming),
    /// HTTP/2.
    Stream(Box<Exchange>),
}

impl ReplyBody {
    /// Returns `true` if the reply may belong to no request: a server sends one before it closes a
    /// connection at rest.
    pub(in super::super) fn may_be_unasked(&self) -> bool {
        matches!(self, Self::Connection(connection, _) if connection.is_reused())
    }

    /// Polls the next frame.
    pub(in super::super) fn poll_frame(
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
    pub(in super::super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Connection(_, body) => body.is_end_stream(),
            Self::Stream(exchange) => exchange.is_end_stream(),
        }
    }

    /// Bytes that are left.
    pub(in super::super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Connection(_, body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }

    /// Keeps the connection, after the last byte.
    pub(in super::super) fn release(self, client: &Client, cx: &mut Context<'_>) {
        if let Self::Connection(connection, _) = self {
            client.release(connection, cx);
        }
    }
}

//! Bodies of requests and replies: streamed, or received whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use service_kit::problem::Pieces;
use tokio::time::Sleep;

use super::client::{Client, ReplyBody};
use crate::doors::http::body_budget::{BodyBudget, Memory};
use crate::doors::http::download;
use crate::doors::http::unread::Unread;

/// Bytes of a reply that need no memory of the budget: the buffer of their connection has as many.
const FREE_BYTES: usize = 4096;

/// Body of a request whose first part was received before its lane was entered. Trailers are
/// dropped.
pub(super) struct StreamedRequest {
    first: Option<Bytes>,
    rest: Body,
    /// Bytes that are missing of the length that the client stated.
    left: u64,
    unread: Unread,
}

impl StreamedRequest {
    pub(super) fn new(first: Bytes, rest: Body, length: u64, unread: Unread) -> Self {
        Self { first: Some(first), rest, left: length, unread }
    }

    fn passes(&mut self, data: Bytes) -> Frame<Bytes> {
        let sent = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.left = self.left.saturating_sub(sent);
        // It is not polled again after its last byte.
        if self.left == 0 {
            self.unread.read();
        }
        Frame::data(data)
    }
}

impl http_body::Body for StreamedRequest {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(self.passes(first))));
        }
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
                None => {
                    self.unread.read();
                    None
                }
                Some(Err(error)) => Some(Err(error)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Some(Ok(self.passes(data))),
                    Err(_trailers) => continue,
                },
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Body of a reply that is passed on as it comes. It ends if the upstream pauses for too long.
/// Trailers are dropped.
pub(super) struct StreamedReply {
    /// `None` at the end.
    source: Option<ReplyBody>,
    /// Error of the source, for the next poll.
    broke_off: Option<std::io::Error>,
    client: Client,
    pause: Option<Pin<Box<Sleep>>>,
}

impl StreamedReply {
    pub(super) fn new(body: ReplyBody, client: Client) -> Self {
        Self { source: Some(body), broke_off: None, client, pause: None }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Error> {
        let pause_max = self.client.upstream.timeout;
        let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause_max)));
        ready!(pause.as_mut().poll(cx));
        Poll::Ready(std::io::ErrorKind::TimedOut.into())
    }
}

impl http_body::Body for StreamedReply {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = &mut *self;
        if let Some(error) = this.broke_off.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if this.source.is_some() && !this.client.term().holds() {
            this.source = None;
            return Poll::Ready(Some(Err(std::io::Error::other("this guard's term has ended"))));
        }
        loop {
            let Some(body) = &mut this.source else { return Poll::Ready(None) };
            let Poll::Ready(frame) = body.poll_frame(cx) else {
                return this.poll_pause(cx).map(|late| Some(Err(late)));
            };
            this.pause = None;
            match frame {
                None => {
                    if let Some(body) = this.source.take() {
                        body.release(&this.client, cx);
                    }
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    this.source = None;
                    // At an error the server drops what it has not sent, the head included; it
                    // sends that while it waits.
                    this.broke_off = Some(std::io::Error::other(error));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        // It is not polled again after its last byte.
                        if body.is_end_stream()
                            && let Some(body) = this.source.take()
                        {
                            body.release(&this.client, cx);
                        }
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    Err(_trailers) => continue,
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broke_off.is_none() && self.source.as_ref().is_none_or(ReplyBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.source.as_ref().map_or_else(|| SizeHint::with_exact(0), ReplyBody::size_hint)
    }
}

/// Limits of the replies to writes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ReplyLimits {
    /// Maximum size of one body, in bytes.
    pub(super) bytes_max: usize,
    /// Memory for all of them, and for other bodies being sent.
    pub(super) budget: BodyBudget,
}

/// Body of a reply to a write, which is being received. The outcome of the write is certain once it
/// ends, so all of it is awaited; what has no room is dropped, and the client's transfer breaks off
/// there.
pub(super) struct ReceivedReply {
    limits: ReplyLimits,
    pieces: Pieces,
    memory: Option<Memory>,
    is_cut: bool,
}

impl ReceivedReply {
    pub(super) fn new(limits: &ReplyLimits) -> Self {
        Self { limits: limits.clone(), pieces: Pieces::default(), memory: None, is_cut: false }
    }

    /// Adds the next bytes, if there is room.
    pub(super) fn push(&mut self, data: Bytes) {
        let bytes = self.pieces.len() + data.len();
        self.is_cut |= bytes > self.limits.bytes_max || !self.cover(bytes);
        if !self.is_cut {
            self.pieces.push(data);
        }
    }

    fn cover(&mut self, bytes: usize) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        self.memory.get_or_insert_with(|| self.limits.budget.small()).try_cover(bytes)
    }

    /// Returns `true` if a part had no room.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the body for the client.
    pub(super) fn finish(self) -> Body {
        let Self { pieces, memory, is_cut, .. } = self;
        match memory {
            None if !is_cut => Body::from(pieces.finish()),
            memory => download::counted(pieces.finish(), memory, is_cut),
        }
    }
}

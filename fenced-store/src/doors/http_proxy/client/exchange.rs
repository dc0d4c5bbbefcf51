//! A request and its reply on a stream of HTTP/2.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderValue, Request, Response, Uri, Version, request};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Either};

use super::UpstreamBody;
use super::shared::Lease;

/// A request without a reply.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The upstream did not process it, by its own statement (RFC 9113 section 8.7), or nothing was
    /// sent. It is here again if its body was received whole.
    NotProcessed(h2::Error, Option<Box<Request<UpstreamBody>>>),
    /// It may have been processed.
    Unknown(h2::Error),
}

/// Stream of a request. Dropping it resets the stream, if it has not ended.
#[derive(Debug)]
pub(crate) struct Exchange {
    reply: RecvStream,
    rest: Option<Rest>,
    /// Dropped last.
    _lease: Lease,
}

/// Part of a request's body that has not been sent.
#[derive(Debug)]
struct Rest {
    stream: SendStream<Bytes>,
    body: Body,
    data: Bytes,
}

/// Sends a request and awaits the head of its reply.
///
/// # Cancel safety
/// Dropping the future resets the stream; the upstream may still act on the request.
pub(super) async fn send(
    mut lease: Lease,
    origin: &Uri,
    request: Request<UpstreamBody>,
) -> Result<(Response<()>, Exchange), Unanswered> {
    let (head, body) = request.into_parts();
    let whole = match &body {
        Either::Left(whole) => Some(Request::from_parts(head.clone(), Either::Left(whole.clone()))),
        Either::Right(_) => None,
    };
    let mut requests = match lease.requests().ready().await {
        Ok(requests) => requests,
        Err(error) => {
            return Err(Unanswered::NotProcessed(
                error,
                Some(Box::new(Request::from_parts(head, body))),
            ));
        }
    };
    let is_empty = body.is_end_stream();
    let length = body.size_hint().exact().filter(|_| !is_empty);
    let opened = requests.send_request(translated(head, origin, length), is_empty);
    let (mut reply, mut stream) = match opened {
        Ok(stream) => stream,
        Err(error) => return Err(Unanswered::NotProcessed(error, whole.map(Box::new))),
    };
    let mut rest = match body {
        Either::Left(_) if is_empty => None,
        Either::Left(whole) => {
            let data = whole.collect().await.unwrap_or_else(|never| match never {}).to_bytes();
            // If the stream has ended, the reply says why.
            let _ = stream.send_data(data, true);
            None
        }
        Either::Right(body) => Some(Rest { stream, body, data: Bytes::new() }),
    };
    let replied = poll_fn(|cx| {
        poll_rest(&mut rest, cx);
        Pin::new(&mut reply).poll(cx)
    })
    .await;
    match replied {
        Ok(response) => {
            lease.has_replied = true;
            let (head, reply) = response.into_parts();
            Ok((Response::from_parts(head, ()), Exchange { reply, rest, _lease: lease }))
        }
        Err(error) => {
            // Then the connection works; after a GOAWAY it takes no further request.
            lease.has_replied = error.is_remote() && error.is_reset();
            match is_not_processed(&error) {
                true => Err(Unanswered::NotProcessed(error, whole.map(Box::new))),
                false => Err(Unanswered::Unknown(error)),
            }
        }
    }
}

/// Returns `true` for what the upstream says of requests that it has not processed and will not.
/// The library fails a stream by a GOAWAY only if its number is above the last one processed.
fn is_not_processed(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (is_refused || error.is_go_away())
}

/// The head with the upstream's name as its authority, which replaces Host, and the body's length.
fn translated(mut head: request::Parts, origin: &Uri, length: Option<u64>) -> Request<()> {
    let mut uri = head.uri.into_parts();
    uri.scheme = origin.scheme().cloned();
    uri.authority = origin.authority().cloned();
    head.uri = Uri::from_parts(uri).unwrap_or_default();
    head.headers.remove(HOST);
    if let Some(length) = length {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    head.version = Version::HTTP_2;
    Request::from_parts(head, ())
}

impl Exchange {
    /// Polls the next frame of the reply's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        poll_rest(&mut self.rest, cx);
        let Some(data) = ready!(self.reply.poll_data(cx)) else { return Poll::Ready(None) };
        let data = data?;
        // It fails only if more is released than was received.
        let _ = self.reply.flow_control().release_capacity(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// Returns `true` if the reply has no further byte.
    pub(super) fn is_end_stream(&self) -> bool {
        self.reply.is_end_stream()
    }
}

/// Sends of the body what the client has sent, and the upstream takes.
fn poll_rest(rest: &mut Option<Rest>, cx: &mut Context<'_>) {
    if rest.as_mut().is_some_and(|rest| rest.poll(cx).is_ready()) {
        *rest = None;
    }
}

impl Rest {
    /// Ready once there is nothing left to send. A failure is that of the stream, whose reply says
    /// it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            while !self.data.is_empty() {
                self.stream.reserve_capacity(self.data.len());
                if self.stream.capacity() == 0 {
                    match ready!(self.stream.poll_capacity(cx)) {
                        Some(Ok(_)) => continue,
                        Some(Err(_)) | None => return Poll::Ready(()),
                    }
                }
                let piece = self.data.split_to(self.stream.capacity().min(self.data.len()));
                let is_last = self.data.is_empty() && self.body.is_end_stream();
                if self.stream.send_data(piece, is_last).is_err() || is_last {
                    return Poll::Ready(());
                }
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => self.data = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => {
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(());
                }
                None => {
                    let _ = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
            }
        }
    }
}

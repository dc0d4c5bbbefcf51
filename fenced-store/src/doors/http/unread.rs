//! Tracker of a request's unread body.
//!
//! A request that is refused by its head alone leaves its body in the connection, which then cannot
//! carry another request: the reply has to close it, or the client's next request is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Set while the body of one request is not read to its end. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Unread(Option<Arc<AtomicBool>>);

impl Unread {
    /// Tracks `body`, whose reader reports its end by [`read`](Self::read).
    pub(crate) fn new(body: &Body) -> Self {
        Self((!body.is_end_stream()).then(|| Arc::new(AtomicBool::new(true))))
    }

    /// Tracks the request's body, which reports its own end, if it has one.
    pub(crate) fn watch(request: Request) -> (Request, Self) {
        let unread = Self::new(request.body());
        if unread.0.is_none() {
            return (request, unread);
        }
        let watched = unread.clone();
        (request.map(|body| Body::new(Watched { body, unread: watched })), unread)
    }

    /// The body was read to its end.
    pub(crate) fn read(&self) {
        if let Some(is_left) = &self.0 {
            is_left.store(false, Ordering::Relaxed);
        }
    }

    /// Returns `true` if part of the body is unread.
    pub(crate) fn is_left(&self) -> bool {
        self.0.as_ref().is_some_and(|is_left| is_left.load(Ordering::Relaxed))
    }
}

struct Watched {
    body: Body,
    unread: Unread,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.unread.read();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use fence_protocol::wire::fence::Guarantee;
    use http::StatusCode;
    use http::header::CONNECTION;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::doors::http::headers::complete;

    fn closes(unread: &Unread) -> bool {
        let reply = complete(StatusCode::OK.into_response(), Guarantee::Atomic, unread);
        assert_eq!(reply.headers()["fencing-guarantee"], "atomic");
        reply.headers().get(CONNECTION).is_some_and(|value| value == "close")
    }

    #[tokio::test]
    async fn a_reply_closes_the_connection_unless_the_body_was_read() {
        let (request, unread) = Unread::watch(Request::new(Body::from("hi")));
        assert!(closes(&unread));
        request.into_body().collect().await.unwrap();
        assert!(!closes(&unread));
        let (_, nothing) = Unread::watch(Request::new(Body::empty()));
        assert!(!closes(&nothing));
        let unread = Unread::new(&Body::from("hi"));
        assert!(closes(&unread));
        unread.read();
        assert!(!closes(&unread));
    }
}

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
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Option<Arc<AtomicBool>>);

impl Unread {
    /// Watches the request's body, if it has one.
    pub(crate) fn watch(request: Request) -> (Request, Self) {
        if request.body().is_end_stream() {
            return (request, Self(None));
        }
        let is_read = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&is_read);
        let request = request.map(|body| Body::new(Watched { body, is_read: watched }));
        (request, Self(Some(is_read)))
    }

    /// Returns `true` if part of the body is unread.
    pub(crate) fn is_left(&self) -> bool {
        self.0.as_ref().is_some_and(|is_read| !is_read.load(Ordering::Relaxed))
    }
}

struct Watched {
    body: Body,
    is_read: Arc<AtomicBool>,
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
            self.is_read.store(true, Ordering::Relaxed);
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

//! Body of a request.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body, Frame, SizeHint};

/// Demand for a body whose client waits for a reply of 100 before it sends it.
#[derive(Clone, Debug)]
pub(super) struct Demand(Option<Arc<AtomicBool>>);

impl Demand {
    /// `waits` is true if the client waits.
    pub(super) fn new(waits: bool) -> Self {
        Self(waits.then(Arc::default))
    }

    fn raise(&self) {
        if let Some(raised) = &self.0 {
            raised.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` once, when the body is read and the client waits for that.
    pub(super) fn take(&mut self) -> bool {
        self.0.take_if(|raised| raised.load(Ordering::Relaxed)).is_some()
    }
}

/// Body of a request. Trailers are dropped; a body that is reset is an error, never an end.
///
/// The window is opened again as bytes are taken. The library compares their number with the length
/// that the client stated.
#[derive(Debug)]
pub(super) struct RequestBody {
    inner: RecvStream,
    length: Option<u64>,
    demand: Demand,
}

impl RequestBody {
    pub(super) fn new(inner: RecvStream, length: Option<u64>, demand: Demand) -> Self {
        Self { inner, length, demand }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.demand.raise();
        let Some(data) = ready!(self.inner.poll_data(cx)) else { return Poll::Ready(None) };
        let data = data?;
        let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.length = self.length.map(|length| length.saturating_sub(bytes));
        // It fails only if more is released than was received.
        let _ = self.inner.flow_control().release_capacity(data.len());
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            Some(length) => SizeHint::with_exact(length),
            None => SizeHint::default(),
        }
    }
}

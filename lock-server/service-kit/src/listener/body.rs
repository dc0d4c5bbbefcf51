//! Request bodies that must arrive in time.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::ListenOptions;
use crate::clock;

/// A body did not arrive in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyTooSlow {
    /// What had arrived.
    pub received_bytes: u64,
    /// The time that this many bytes are allowed.
    pub allowed: Duration,
}

impl fmt::Display for BodyTooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, ms) = (self.received_bytes, self.allowed.as_millis());
        write!(f, "only {bytes} bytes of the body arrived within {ms} ms")
    }
}

impl Error for BodyTooSlow {}

/// A body with a deadline that moves with what has arrived. A body that is there already costs no
/// timer.
#[derive(Debug)]
pub(super) struct TimedBody {
    inner: Incoming,
    timeout: Duration,
    bytes_per_sec_min: u32,
    received_bytes: u64,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl TimedBody {
    pub(super) fn new(inner: Incoming, options: &ListenOptions) -> Self {
        Self {
            inner,
            timeout: options.body_timeout,
            bytes_per_sec_min: options.body_bytes_per_sec_min.max(1),
            received_bytes: 0,
            waiting: None,
        }
    }

    fn allowed(&self) -> Duration {
        let earned_ms =
            self.received_bytes.saturating_mul(1000) / u64::from(self.bytes_per_sec_min);
        self.timeout.saturating_add(Duration::from_millis(earned_ms))
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<BodyTooSlow> {
        let allowed = self.allowed();
        let (started, sleep) = self
            .waiting
            .get_or_insert_with(|| (clock::now(), Box::pin(tokio::time::sleep(allowed))));
        while sleep.as_mut().poll(cx).is_ready() {
            let deadline = *started + allowed;
            if clock::now() >= deadline {
                return Poll::Ready(BodyTooSlow { received_bytes: self.received_bytes, allowed });
            }
            sleep.as_mut().reset(deadline.into());
        }
        Poll::Pending
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.received_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => this.poll_deadline(cx).map(|slow| Some(Err(slow.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

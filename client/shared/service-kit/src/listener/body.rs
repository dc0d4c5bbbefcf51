//! Request bodies that must arrive in time.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use super::ListenOptions;
use crate::clock;
use crate::problem::BodyTooSlow;

/// A body whose sender may be behind the minimum rate by the body timeout, at any moment. Bytes
/// that arrive early earn no more than that, so that a sender cannot send much and then rest for
/// long. Only the time in which the reader waits counts.
#[derive(Debug)]
pub(super) struct TimedBody<B> {
    inner: B,
    patience: Patience,
    received_bytes: u64,
    waiting: Option<Waiting>,
}

/// Remaining time that the reader waits for bytes.
#[derive(Clone, Copy, Debug)]
struct Patience {
    left: Duration,
    max: Duration,
    bytes_per_sec_min: u64,
}

impl Patience {
    fn new(options: &ListenOptions) -> Self {
        let bytes_per_sec_min = u64::from(options.body_bytes_per_sec_min.max(1));
        Self { left: options.body_timeout, max: options.body_timeout, bytes_per_sec_min }
    }

    /// `bytes` arrived after the reader had waited for `waited`.
    fn received(&mut self, bytes: u64, waited: Duration) {
        let earned = Duration::from_millis(bytes.saturating_mul(1000) / self.bytes_per_sec_min);
        self.left = self.left.saturating_sub(waited).saturating_add(earned).min(self.max);
    }
}

/// One wait for bytes; the timer is kept for the next one.
#[derive(Debug)]
struct Waiting {
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<B> TimedBody<B> {
    pub(super) fn new(inner: B, options: &ListenOptions) -> Self {
        Self { inner, patience: Patience::new(options), received_bytes: 0, waiting: None }
    }

    fn received(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let since = self.waiting.as_mut().and_then(|waiting| waiting.since.take());
        let waited = since.map_or(Duration::ZERO, |since| clock::now().duration_since(since));
        self.received_bytes = self.received_bytes.saturating_add(bytes);
        self.patience.received(bytes, waited);
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<BodyTooSlow> {
        let left = self.patience.left;
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            since: None,
            timer: Box::pin(tokio::time::sleep(left)),
        });
        let deadline = *waiting.since.get_or_insert_with(clock::now) + left;
        if waiting.timer.deadline() != deadline.into() {
            waiting.timer.as_mut().reset(deadline.into());
        }
        waiting.timer.as_mut().poll(cx).map(|()| BodyTooSlow {
            received_bytes: self.received_bytes,
            allowed: self.patience.max,
        })
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.received(frame.data_ref().map_or(0, Bytes::len));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        let second = Duration::from_secs(1);
        Patience { left: 30 * second, max: 30 * second, bytes_per_sec_min: 16 * 1024 }
    }

    #[test]
    fn a_sender_at_the_rate_is_never_late() {
        let mut patience = patience();
        for _ in 0..10_000 {
            patience.received(16 * 1024, Duration::from_secs(1));
        }
        assert_eq!(patience.left, patience.max);
    }

    #[test]
    fn much_at_once_earns_no_long_rest() {
        let mut patience = patience();
        patience.received(16 << 20, Duration::ZERO);
        assert_eq!(patience.left, Duration::from_secs(30));
    }

    #[test]
    fn a_sender_below_the_rate_uses_up_its_time() {
        let mut patience = patience();
        for _ in 0..29 {
            patience.received(1, Duration::from_secs(1));
        }
        assert_eq!(patience.left, Duration::from_secs(1));
        patience.received(0, Duration::from_secs(2));
        assert_eq!(patience.left, Duration::ZERO);
    }
}

//! Limit of TLS handshakes under way.

use std::io;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Handshakes under way in the process, which cost computing time and memory. Further ones wait.
const UNDER_WAY_MAX: usize = 256;

/// Longest handshake while others wait: clients that do not go on keep none waiting for longer.
const CROWDED: Duration = Duration::from_secs(1);

/// Handshakes under way, and those that wait.
#[derive(Debug)]
pub(super) struct Handshakes {
    slots: Semaphore,
    waiting: watch::Sender<usize>,
    under_way: Gauge,
}

impl Handshakes {
    /// Shows their number under way in a metric.
    pub(super) fn new(under_way: Gauge) -> Self {
        let slots = Semaphore::new(UNDER_WAY_MAX);
        Self { slots, waiting: watch::Sender::new(0), under_way }
    }

    /// Does a handshake, which may take `limit` from the moment that it is its turn, and less
    /// while others wait.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) async fn run<T>(
        &self,
        limit: Duration,
        handshake: impl Future<Output = T>,
    ) -> io::Result<T> {
        let _slot = self.slot().await?;
        let _counted = Counted::begin(&self.under_way);
        let mut waiting = self.waiting.subscribe();
        let crowded = async {
            tokio::time::sleep(CROWDED.min(limit)).await;
            // The sender is there as long as this.
            let _ = waiting.wait_for(|waiting| *waiting > 0).await;
        };
        tokio::select! {
            biased;
            done = tokio::time::timeout(limit, handshake) => done.ok(),
            () = crowded => None,
        }
        .ok_or_else(|| super::server::late("the handshake did not end"))
    }

    async fn slot(&self) -> io::Result<SemaphorePermit<'_>> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(slot);
        }
        let _waiting = Waiting::begin(&self.waiting);
        self.slots.acquire().await.map_err(io::Error::other)
    }
}

/// One that waits, until it is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// One that is under way, until it is dropped.
struct Counted<'a>(&'a Gauge);

impl<'a> Counted<'a> {
    fn begin(under_way: &'a Gauge) -> Self {
        under_way.inc();
        Self(under_way)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn those_without_end_make_way() {
        let handshakes = Handshakes::new(Gauge::default());
        let stuck = (0..UNDER_WAY_MAX + 44).map(|_| handshakes.run(LONG, pending::<()>()));
        let late = handshakes.run(LONG, async { 7 });
        let served = tokio::select! {
            biased;
            _ = futures_util::future::join_all(stuck) => panic!("without others they have no end"),
            served = tokio::time::timeout(20 * CROWDED, late) => served,
        };
        assert_eq!(served.unwrap().unwrap(), 7);
    }
}

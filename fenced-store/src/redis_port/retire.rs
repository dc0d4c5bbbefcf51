//! Takes connections that ended out of the registry.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::store::redis::Shared;
use crate::store::redis::preempt::Registration;

/// So many may wait; what is beyond stays in Redis until its lock's mark is raised.
const WAITING: usize = 16 * 1024;
const PAUSE: Duration = Duration::from_millis(200);
/// How long the last ones may take once shutdown has begun.
const LAST: Duration = Duration::from_secs(2);

/// Where connections that ended are handed in, and who looks after them.
pub(super) fn queue(redis: Arc<Shared>) -> (mpsc::Sender<Registration>, Worker) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (sender, Worker { redis, receiver })
}

/// Retires one connection after the other.
pub(super) struct Worker {
    redis: Arc<Shared>,
    receiver: mpsc::Receiver<Registration>,
}

impl Worker {
    /// Runs until `stop`, and a little longer for what is left then.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                registration = self.receiver.recv() => match registration {
                    Some(registration) => self.retire(&registration, &stop).await,
                    None => return,
                },
            }
        }
        // The port's threads are ending their clients now.
        let last = async {
            while let Some(registration) = self.receiver.recv().await {
                if let Err(reason) = self.redis.retire(&registration).await {
                    tracing::debug!(reason, "a registration stays in Redis");
                }
            }
        };
        let _ = tokio::time::timeout(LAST, last).await;
    }

    /// Tries until it is done, for it is harmless to try, and Redis may be away for a while.
    async fn retire(&self, registration: &Registration, stop: &CancellationToken) {
        while let Err(reason) = self.redis.retire(registration).await {
            tracing::debug!(reason, "a registration is still in Redis; trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

//! Removal of ended connections from Redis: their registrations and their users.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::confine;
use crate::stores::redis::Shared;
use crate::stores::redis::preempt::Registration;

/// Maximum number that may wait; others stay in Redis until their lock's mark is raised.
const WAITING: usize = 16 * 1024;
/// Maximum number removed together: a batch costs as many round trips as a single one.
const AT_ONCE: usize = 256;
/// Maximum number of attempts while Redis is reachable.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);
/// Time limit of the last removals after shutdown has begun.
const LAST: Duration = Duration::from_secs(2);

/// An ended connection.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Its registration, if any.
    pub(super) registration: Option<Registration>,
    /// Its own user, if any.
    pub(super) user: Option<String>,
}

impl Ended {
    pub(super) fn is_nothing(&self) -> bool {
        self.registration.is_none() && self.user.is_none()
    }
}

/// Makes the queue of ended connections, and its worker.
pub(super) fn queue(redis: Arc<Shared>) -> (mpsc::Sender<Ended>, Worker) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (sender, Worker { redis, receiver })
}

/// Worker that removes ended connections in batches.
pub(super) struct Worker {
    redis: Arc<Shared>,
    receiver: mpsc::Receiver<Ended>,
}

impl Worker {
    /// Runs until `stop`, and a little longer for the rest of the queue.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut ended = Vec::with_capacity(AT_ONCE);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                count = self.receiver.recv_many(&mut ended, AT_ONCE) => match count {
                    0 => return,
                    _ => self.insist(&ended, &stop).await,
                },
            }
            ended.clear();
        }
        // The port's threads are ending their clients now.
        let last = async {
            while self.receiver.recv_many(&mut ended, AT_ONCE).await > 0 {
                if let Err(reason) = self.retire(&ended).await {
                    tracing::debug!(
                        reason,
                        "registrations or users of ended connections stay in Redis"
                    );
                }
                ended.clear();
            }
        };
        let _ = tokio::time::timeout(LAST, last).await;
    }

    /// Retries until it succeeds: the removal is idempotent, and Redis may be unreachable for a
    /// while.
    async fn insist(&self, ended: &[Ended], stop: &CancellationToken) {
        let mut tries = 0;
        while let Err(reason) = self.retire(ended).await {
            // Only an error of a reachable Redis counts; an unreachable one will return.
            tries += u32::from(self.redis.link.generation() > 0);
            if tries >= TRIES {
                tracing::warn!(reason, "registrations or users of ended connections stay in Redis");
                // One of them may make the whole batch fail.
                for one in ended {
                    let _ = self.retire(std::slice::from_ref(one)).await;
                }
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn retire(&self, ended: &[Ended]) -> Result<(), String> {
        let registrations: Vec<&Registration> =
            ended.iter().filter_map(|ended| ended.registration.as_ref()).collect();
        let users: Vec<String> = ended.iter().filter_map(|ended| ended.user.clone()).collect();
        if !registrations.is_empty() {
            self.redis.retire(&registrations).await?;
        }
        if !users.is_empty() {
            confine::remove(&self.redis, &users).await?;
        }
        Ok(())
    }
}

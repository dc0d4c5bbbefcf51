//! Removes what Redis keeps of connections that ended: their registrations and their users.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::confine;
use crate::store::redis::Shared;
use crate::store::redis::preempt::Registration;

/// So many may wait; what is beyond stays in Redis until its lock's mark is raised.
const WAITING: usize = 16 * 1024;
/// So many are removed together: a batch costs as many ways to Redis and back as one alone.
const AT_ONCE: usize = 256;
/// How often it is tried while Redis is there.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);
/// How long the last ones may take once shutdown has begun.
const LAST: Duration = Duration::from_secs(2);

/// A connection that ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Where it was registered, if anywhere.
    pub(super) registration: Option<Registration>,
    /// The user that was made for it, if any.
    pub(super) user: Option<String>,
}

impl Ended {
    pub(super) fn is_nothing(&self) -> bool {
        self.registration.is_none() && self.user.is_none()
    }
}

/// Where connections that ended are handed in, and who looks after them.
pub(super) fn queue(redis: Arc<Shared>) -> (mpsc::Sender<Ended>, Worker) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (sender, Worker { redis, receiver })
}

/// Retires connections, all that wait at once.
pub(super) struct Worker {
    redis: Arc<Shared>,
    receiver: mpsc::Receiver<Ended>,
}

impl Worker {
    /// Runs until `stop`, and a little longer for what is left then.
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
                    tracing::debug!(reason, "something of a connection stays in Redis");
                }
                ended.clear();
            }
        };
        let _ = tokio::time::timeout(LAST, last).await;
    }

    /// Tries until it is done, for it is harmless to try, and Redis may be away for a while.
    async fn insist(&self, ended: &[Ended], stop: &CancellationToken) {
        let mut tries = 0;
        while let Err(reason) = self.retire(ended).await {
            // Only a Redis that answers and does not do it counts; one that is away will be back.
            tries += u32::from(self.redis.link.generation() > 0);
            if tries >= TRIES {
                tracing::warn!(reason, "something of a connection stays in Redis");
                // One of them may be what keeps the others.
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

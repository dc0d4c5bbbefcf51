//! Leader election: an election is a lock, and its leader is the holder.

mod observer;
mod patience;

use std::ops::Deref;
use std::time::Duration;

use fence_protocol::wire::lock::{HolderReply, LockState};
use fence_protocol::{LeaseId, Owner, Token};

pub use self::observer::{Observed, Observer};
use self::patience::{CampaignStep, Patience};
use crate::{Client, Error, Lease, LockRequest, clock, ids};

/// Time of one round of a campaign. Shorter than the longest wait of the protocol (5 minutes),
/// because a candidate whose server vanished without closing the connection notices only at its
/// end.
const ROUND: Duration = Duration::from_secs(60);
/// Shortest round, for candidates with little patience.
const ROUND_MIN: Duration = Duration::from_secs(1);

/// Election to campaign in or to observe; see [`Client::election`](crate::Client::election).
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `campaign` or `leader`"]
pub struct Election {
    request: LockRequest,
    patience: Option<Duration>,
}

impl Client {
    /// Returns the election `name`: its leader is the holder of the lock of that name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election { request: self.lock(name), patience: None }
    }
}

impl Election {
    /// Time to live of the leader's lease, 15 s by default: the longest time for which a leader
    /// that has stalled or died stays in office.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.change(|request| request.ttl(ttl))
    }

    /// JSON that observers get with the leader, such as its address.
    pub fn metadata(self, metadata: serde_json::Value) -> Self {
        self.change(|request| request.metadata(metadata))
    }

    /// See [`LockRequest::progress_within`].
    pub fn progress_within(self, limit: Duration) -> Self {
        self.change(|request| request.progress_within(limit))
    }

    /// See [`LockRequest::max_hold`]: limits a term, so that the leadership rotates.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.change(|request| request.max_hold(limit))
    }

    /// See [`LockRequest::warn_before`].
    pub fn warn_before(self, time: Duration) -> Self {
        self.change(|request| request.warn_before(time))
    }

    /// Approximate time for which requests to an unreachable server are retried; unlimited by
    /// default, because a candidate has nothing else to do. Also the length of a round, from 1 s to
    /// a minute, after which a candidate queues anew.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    fn change(self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        Self { request: change(self.request), ..self }
    }

    /// Waits until this client is the leader. Candidates are elected in the order of the queue, and
    /// each queues anew every minute.
    ///
    /// Cancel-safe: if the future is dropped, the candidate leaves the queue.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a name or an option that breaks a rule,
    /// [`Internal`](crate::ErrorKind::Internal) for a defect, and the last failure once
    /// [`patience`](Self::patience) has passed without a reply.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        let mut patience = Patience::new(self.patience);
        loop {
            let request = self.request.clone().wait(self.round()).patience(Duration::ZERO);
            let error = match request.acquire().await {
                Ok(lease) => return Ok(Leadership { lease }),
                Err(error) => error,
            };
            match patience.after(error.kind(), clock::now(), ids::random()) {
                CampaignStep::Pause(pause) => {
                    tracing::debug!(%error, "the campaign continues");
                    tokio::time::sleep(pause).await;
                }
                CampaignStep::Fail => return Err(error),
            }
        }
    }

    /// Time of a round. A failure is noticed at its end, so it is no longer than the patience.
    fn round(&self) -> Duration {
        self.patience.map_or(ROUND, |patience| patience.clamp(ROUND_MIN, ROUND))
    }

    /// Returns the current leader; `None` if the office is vacant.
    ///
    /// This was true when the server replied. Do not base a decision on it that needs the leader to
    /// be still in office: use the leader's token for that.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a name that is not valid,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if the server is unreachable.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let lock = self.request.lock_name()?;
        let shown = self.request.client().locks().show(lock).await?;
        let holder = shown.holder.filter(|_| shown.state == LockState::Held);
        Ok(holder.map(Leader::from))
    }

    /// Starts to watch the leader and its changes.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a name that is not valid, or if the server stores
    /// no events, [`Unavailable`](crate::ErrorKind::Unavailable) if the server is unreachable.
    pub async fn observe(&self) -> Result<Observer, Error> {
        Observer::new(self.clone()).await
    }
}

/// Leader of an election, as an observer sees it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Leader {
    /// The owner of the leader's lease.
    pub owner: Owner,
    /// The token of this term: higher than that of every earlier term.
    pub token: Token,
    /// The id of the leader's lease.
    pub lease_id: LeaseId,
    /// Time in office, in milliseconds.
    pub held_ms: u64,
    /// The JSON of [`Election::metadata`], if the leader set it.
    pub metadata: Option<serde_json::Value>,
}

impl From<HolderReply> for Leader {
    fn from(holder: HolderReply) -> Self {
        Self {
            owner: holder.info.owner,
            token: holder.info.token,
            lease_id: holder.lease_id,
            held_ms: holder.info.held_ms,
            metadata: holder.metadata,
        }
    }
}

/// The office of the leader, held by this client. Dereferences to its lease: [`Lease::token`]
/// numbers the term and belongs to every write of the leader, [`Lease::lost`] resolves at the end
/// of the term.
#[derive(Debug)]
#[must_use = "a leadership that is dropped is resigned"]
pub struct Leadership {
    lease: Lease,
}

impl Leadership {
    /// Resigns: the next candidate is elected at once.
    ///
    /// # Errors
    /// As [`Lease::release`].
    pub async fn resign(self) -> Result<(), Error> {
        self.lease.release().await
    }

    /// Runs `work` as the leader, then resigns. The work is dropped as soon as the office is lost.
    ///
    /// # Errors
    /// As [`Lease::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        self.lease.run(work).await
    }

    /// Returns the lease; the client stays the leader.
    pub fn into_lease(self) -> Lease {
        self.lease
    }
}

impl Deref for Leadership {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

//! Leader election: an election is a lock, and its leader is who holds it.

mod observer;
mod patience;

use std::ops::Deref;
use std::time::Duration;

use fence_protocol::wire::lock::{HolderReply, LockState};
use fence_protocol::{LeaseId, Owner, Token};

pub use self::observer::{Observed, Observer};
use self::patience::{CampaignStep, Patience};
use crate::{Error, Lease, LockRequest, clock, ids};

/// One round of a campaign. Shorter than what a server lets one wait (5 minutes), because a candidate
/// whose server is gone without a word notices only at its end.
const ROUND: Duration = Duration::from_secs(60);
/// The shortest, for candidates with little patience.
const ROUND_MIN: Duration = Duration::from_secs(1);

/// An election that is about to be campaigned in, or looked at.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `campaign` or `leader`"]
pub struct Election {
    request: LockRequest,
    patience: Option<Duration>,
}

impl Election {
    pub(crate) fn new(request: LockRequest) -> Self {
        Self { request, patience: None }
    }

    /// How long a leader that has stalled or died keeps the office at most: the time to live of its
    /// lease, 15 s by default.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.change(|request| request.ttl(ttl))
    }

    /// What observers find beside the leader's name; its address, for one.
    pub fn metadata(self, metadata: serde_json::Value) -> Self {
        self.change(|request| request.metadata(metadata))
    }

    /// See [`LockRequest::progress_within`].
    pub fn progress_within(self, limit: Duration) -> Self {
        self.change(|request| request.progress_within(limit))
    }

    /// See [`LockRequest::max_hold`]: an office that goes round.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.change(|request| request.max_hold(limit))
    }

    /// See [`LockRequest::warn_before`].
    pub fn warn_before(self, time: Duration) -> Self {
        self.change(|request| request.warn_before(time))
    }

    /// For how long, about, a server that cannot be reached is borne with; without it for ever,
    /// because a candidate has nothing better to do than to try again. A candidate with a patience
    /// below a minute queues anew that often.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    fn change(self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        Self { request: change(self.request), ..self }
    }

    /// Waits until this client is the leader. Candidates are elected in the order in which they
    /// queue, and every minute each queues anew.
    ///
    /// Cancel-safe: when the future is dropped, the candidate leaves the queue.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a name or a time that breaks a rule,
    /// [`Internal`](crate::ErrorKind::Internal) for a defect, and what made the server unreachable
    /// once [`patience`](Self::patience) is over.
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
                    tracing::debug!(%error, "the campaign goes on");
                    tokio::time::sleep(pause).await;
                }
                CampaignStep::Fail => return Err(error),
            }
        }
    }

    /// A failure shows at the end of a round, so rounds are no longer than the patience.
    fn round(&self) -> Duration {
        self.patience.map_or(ROUND, |patience| patience.clamp(ROUND_MIN, ROUND))
    }

    /// Who leads now, for observers; `None` where nobody does.
    ///
    /// This is what the server knew when it answered. Nothing may be decided by it that needs the
    /// leader to be still in office: that is what the leader's token is for.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for the name,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server cannot be reached.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let lock = self.request.lock_name()?;
        let shown = self.request.client().locks().show(lock).await?;
        let holder = shown.holder.filter(|_| shown.state == LockState::Held);
        Ok(holder.map(Leader::from))
    }
}

impl Election {
    /// Watches who leads: now, and whenever it changes.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for the name, or where the server keeps no events,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the server cannot be reached.
    pub async fn observe(&self) -> Result<Observer, Error> {
        Observer::new(self.clone()).await
    }
}

/// Who leads, as an observer sees it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Leader {
    /// Who.
    pub owner: Owner,
    /// The token of this term: higher than that of every term before.
    pub token: Token,
    /// The leader's lease.
    pub lease_id: LeaseId,
    /// For how long in office, in milliseconds.
    pub held_ms: u64,
    /// What the leader wanted observers to know.
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

/// The office, held. Dereferences to its lease: [`Lease::token`] is the number of the term and goes
/// with everything that the leader does, [`Lease::lost`] tells when it is over.
#[derive(Debug)]
#[must_use = "a leadership that is dropped is resigned"]
pub struct Leadership {
    lease: Lease,
}

impl Leadership {
    /// Gives the office up: the next candidate is elected at once.
    ///
    /// # Errors
    /// As [`Lease::release`].
    pub async fn resign(self) -> Result<(), Error> {
        self.lease.release().await
    }

    /// Does `work` as the leader, then resigns. The work is dropped the moment the office is lost.
    ///
    /// # Errors
    /// As [`Lease::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        self.lease.run(work).await
    }

    /// The lease, without the office's name around it.
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

//! Acquiring a lock: at most one grant a call, even if requests or replies are lost.

mod above_marks;
pub(crate) mod grant;
mod plan;
mod turns;

use std::time::Duration;

use fence_protocol::wire::lock::{LeaseMode, LeaseReply, LockState};
use fence_protocol::{Invalid, LeaseId, LockName, SessionId, Token, Ttl};

use crate::lock_spec::{Spec, Takeover, permits};
use crate::{Client, Error, ErrorKind, Lease};

pub use crate::retries::DEFAULT_PATIENCE;

/// Request for a lock; see [`Client::lock`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire` or `run`"]
pub struct LockRequest {
    client: Client,
    spec: Result<Spec, Invalid>,
}

impl Client {
    /// Returns a request for the lock `name`; nothing is sent yet. [`LockRequest::acquire`] reports
    /// a name that is not valid.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        let spec = LockName::new(name.as_ref()).map(|lock| Spec::new(self, lock));
        LockRequest { client: self.clone(), spec }
    }
}

impl LockRequest {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the lock, if it is valid.
    pub(crate) fn lock_name(&self) -> Result<&LockName, Error> {
        self.spec.as_ref().map(|spec| &spec.lock).map_err(|invalid| invalid.clone().into())
    }

    fn change(mut self, change: impl FnOnce(&mut Spec)) -> Self {
        if let Ok(spec) = &mut self.spec {
            change(spec);
        }
        self
    }

    /// Time to live of the lease unless it is renewed: 15 s by default, at most a day. The lease is
    /// trusted on this machine for 0.8 of that, and renewed in the background every third of it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let checked = Ttl::try_from(ttl);
        if let Ok(spec) = &mut self.spec {
            match checked {
                Ok(ttl) => spec.ttl = ttl,
                Err(invalid) => self.spec = Err(invalid),
            }
        }
        self
    }

    /// Longest wait in the queue while another lease holds the lock. Zero by default: the server
    /// replies at once. A wait beyond the five minutes of one request is continued by further ones
    /// at the same position.
    pub fn wait(self, wait: Duration) -> Self {
        self.change(|spec| spec.times.wait = wait)
    }

    /// Waits in the queue without end, also for a server that is unreachable. Dropping the future
    /// of [`acquire`](Self::acquire) ends the wait and leaves the queue:
    ///
    /// ```no_run
    /// # async fn example(client: fence_client::Client, stop: tokio::sync::oneshot::Receiver<()>)
    /// #     -> Result<(), fence_client::Error> {
    /// let acquiring = client.lock("orders/42").wait_forever().acquire();
    /// let lease = tokio::select! {
    ///     lease = acquiring => lease?,
    ///     _ = stop => return Ok(()),
    /// };
    /// # lease.release().await
    /// # }
    /// ```
    pub fn wait_forever(self) -> Self {
        self.wait(Duration::MAX)
    }

    /// Makes the wait bound the call: an unreachable server is retried only while the wait lasts;
    /// the patience is for requests that may have been granted.
    pub fn bounded(self) -> Self {
        self.change(|spec| spec.times.is_bounded = true)
    }

    /// Time beyond the wait for which requests to an unreachable server, or one whose store is
    /// unreachable, are retried: 5 s by default.
    pub fn patience(self, patience: Duration) -> Self {
        self.change(|spec| spec.times.patience = patience)
    }

    /// Shares the lock with other shared leases: they exclude exclusive leases, but not each other.
    ///
    /// No request overtakes a waiting exclusive one. A guard admits *one* of several live leases of
    /// a lock, the one with the highest token that it has seen: do not present the tokens of
    /// several shared leases to one guard. Replaces an earlier [`permit`](Self::permit).
    pub fn shared(self) -> Self {
        self.change(|spec| (spec.mode, spec.size) = (LeaseMode::Shared, None))
    }

    /// Acquires one of `size` permits, 1 to 1024: at most `size` leases hold the lock at a time.
    ///
    /// All clients must name the same size. If others use the lock with another size, or not as a
    /// semaphore, the error is [`Invalid`](crate::ErrorKind::Invalid), with the code
    /// `lock-kind-conflict` in its [`problem`](Error::problem). A permit bounds concurrency; its
    /// token is not for guards, see [`shared`](Self::shared). Replaces an earlier `shared`.
    pub fn permit(mut self, size: u32) -> Self {
        match permits(size) {
            Ok(size) => {
                self.change(|spec| (spec.mode, spec.size) = (LeaseMode::Permit, Some(size)))
            }
            Err(invalid) => {
                self.spec = self.spec.and(Err(invalid));
                self
            }
        }
    }

    /// Requires a grant with a token above this one, which a guard has seen.
    pub fn min_token(self, token: Token) -> Self {
        self.change(|spec| spec.min_token = Some(token))
    }

    /// JSON shown to people who inspect the lock.
    pub fn metadata(self, metadata: serde_json::Value) -> Self {
        self.change(|spec| spec.metadata = Some(metadata))
    }

    /// Longest time between two calls of [`Lease::report_progress`], at least 1 ms. If the work
    /// does not report in time, the lease is lost, so that work that hangs does not hold the lock
    /// for as long as its process lives. Time in suspend does not count.
    pub fn progress_within(self, limit: Duration) -> Self {
        self.change(|spec| spec.limits.progress_within = Some(limit))
    }

    /// Longest time for which the lock may be held, renewals included, at least 1 ms. After it the
    /// lease is lost.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.change(|spec| spec.limits.max_hold = Some(limit))
    }

    /// Time before a loss of the lease at which [`Lease::warnings`] resolves. Must be less than the
    /// other limits. No warnings by default.
    pub fn warn_before(self, time: Duration) -> Self {
        self.change(|spec| spec.limits.warn_before = Some(time))
    }

    /// Takes the lock over from an earlier incarnation of this owner, at once and before the
    /// waiters: for a process that restarts while its lock is held by the lease of its crashed
    /// predecessor.
    ///
    /// The owner ([`ClientBuilder::owner`](crate::ClientBuilder::owner)) must stay the same after a
    /// restart; the [incarnation](crate::ClientBuilder::incarnation) must change. The grant has a
    /// new token. If the predecessor still runs, its next renewal fails as superseded, and the
    /// guard refuses it from the first use of the new token. A lock of another owner is waited for
    /// as usual, for [`wait`](Self::wait). Replaces an earlier [`takeover_of`](Self::takeover_of).
    pub fn takeover(self) -> Self {
        self.change(|spec| spec.takeover = Takeover::EarlierSelf)
    }

    /// Takes the lock over from this lease of the same owner, at once and before the waiters: for a
    /// supervisor that saw the holder die.
    ///
    /// If that lease has ended already, this is a usual acquire. The owner of this client must be
    /// the owner of the lease. Replaces an earlier [`takeover`](Self::takeover).
    pub fn takeover_of(self, lease_id: LeaseId) -> Self {
        self.change(|spec| spec.takeover = Takeover::Lease(lease_id))
    }

    /// Acquires the lock.
    ///
    /// After a lost reply, a time-out or an unavailable server the request is retried with the same
    /// lease id, so that there is never more than one grant. The lease is then renewed in the
    /// background, on the current tokio runtime.
    ///
    /// Cancel-safe: if the future is dropped, a grant that it may have caused is released in the
    /// background.
    ///
    /// # Errors
    /// [`Contended`](crate::ErrorKind::Contended) if another lease holds the lock for longer than
    /// the wait, [`TakeoverRefused`](crate::ErrorKind::TakeoverRefused) if it may not be taken
    /// over, [`Unavailable`](crate::ErrorKind::Unavailable) and
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) if the server is unreachable or does
    /// not reply, [`Invalid`](crate::ErrorKind::Invalid) for a name or an option that breaks a
    /// rule.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let spec = self.spec?;
        spec.check(&self.client)?;
        let (reply, window) = grant::obtain(&self.client, &spec).await?;
        Ok(Lease::begin(self.client, reply, window, spec))
    }

    /// Acquires the lock if it is granted at once; `None` while another lease holds it. Cancel-safe
    /// as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without [`Contended`](crate::ErrorKind::Contended).
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<Lease>, Error> {
        match self.wait(Duration::ZERO).acquire().await {
            Err(error) if matches!(error.kind(), ErrorKind::Contended { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Returns `true` if a lease of the lock is live, of this client or of another. For people: it
    /// may have changed by the time of the reply.
    ///
    /// # Errors
    /// As [`Locks::show`](crate::Locks::show).
    pub async fn is_held(&self) -> Result<bool, Error> {
        let shown = self.client.locks().show(self.lock_name()?).await?;
        Ok(shown.state == LockState::Held)
    }

    /// Acquires the lock without renewing, releasing or watching the lease. For tools that pass the
    /// grant to another process.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_detached(self) -> Result<LeaseReply, Error> {
        let spec = self.spec?;
        spec.check(&self.client)?;
        let (reply, _) = grant::obtain(&self.client, &spec).await?;
        Ok(reply)
    }

    /// As [`acquire_detached`](Self::acquire_detached), for a lease bound to a session that another
    /// process keeps alive. The lease gets the session's owner and time to live; an owner that was
    /// configured for the client must be the session's.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LeaseLost`](crate::ErrorKind::LeaseLost) if the session
    /// has ended or is unknown.
    pub async fn acquire_detached_in(self, session: SessionId) -> Result<LeaseReply, Error> {
        let is_owner_given = self.client.is_owner_given();
        let bound = self.change(|spec| {
            spec.session = Some(session);
            spec.owner = spec.owner.take().filter(|_| is_owner_given);
        });
        bound.acquire_detached().await
    }

    /// Acquires the lock, runs `work` and releases it; see [`Lease::run`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) and [`Lease::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        self.acquire().await?.run(work).await
    }
}

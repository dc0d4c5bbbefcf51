//! Acquiring a lock: one grant for one call, whatever the network loses.

pub(crate) mod grant;
mod plan;

use std::time::Duration;

use fence_protocol::wire::lock::{LeaseMode, LeaseReply, MAX_WAIT_MS, PERMITS_MAX};
use fence_protocol::{Invalid, LeaseId, LockName, Owner, SessionId, Token, Ttl};

use crate::limits::Limits;
use crate::{Client, Error, ErrorKind, Lease, Reentrant};

/// How long a server that cannot be reached is tried beyond the time to wait, unless
/// [`LockRequest::patience`] says otherwise.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);

/// A lock that is about to be acquired.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire` or `run`"]
pub struct LockRequest {
    client: Client,
    spec: Result<Spec, Invalid>,
}

/// What to acquire, and how.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) lock: LockName,
    pub(crate) ttl: Ttl,
    pub(crate) wait: Duration,
    pub(crate) patience: Duration,
    pub(crate) min_token: Option<Token>,
    pub(crate) metadata: Option<serde_json::Value>,
    pub(crate) limits: Limits,
    /// Left out where the lease is bound to a session, whose owner it then has.
    pub(crate) owner: Option<Owner>,
    pub(crate) takeover: Takeover,
    pub(crate) session: Option<SessionId>,
    pub(crate) mode: LeaseMode,
    /// Of a permit, and only there.
    pub(crate) size: Option<u32>,
}

/// Whom the lock may be taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Takeover {
    #[default]
    Never,
    /// An earlier incarnation of the same owner.
    EarlierSelf,
    /// One lease of the same owner.
    Lease(LeaseId),
}

impl Spec {
    /// What is asked for unless the caller says otherwise.
    pub(crate) fn new(client: &Client, lock: LockName) -> Self {
        Self {
            lock,
            ttl: Ttl::DEFAULT,
            wait: Duration::ZERO,
            patience: DEFAULT_PATIENCE,
            min_token: None,
            metadata: None,
            limits: Limits::default(),
            owner: Some(client.owner().clone()),
            takeover: Takeover::Never,
            session: None,
            mode: LeaseMode::Exclusive,
            size: None,
        }
    }

    /// Refuses what could never be granted, before anything is sent.
    pub(crate) fn check(&self, client: &Client) -> Result<(), Error> {
        self.limits.check()?;
        if self.takeover != Takeover::Never && !self.mode.is_exclusive() {
            return Err(no_takeover_of(&self.lock, self.mode));
        }
        if self.takeover != Takeover::Never && self.session.is_none() && !client.is_owner_given() {
            let message = format!(
                "the lock {} cannot be taken over as {}: a takeover needs an owner that a restart \
                 keeps, and this one ends in the number of this process; give one to the client \
                 (ClientBuilder::owner, FENCE_OWNER)",
                self.lock,
                client.owner()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(())
    }
}

/// Whoever takes a lock over has it alone.
pub(crate) fn no_takeover_of(lock: &LockName, mode: LeaseMode) -> Error {
    let message = format!(
        "the lock {lock} cannot be taken over in mode {}: a takeover is for exclusive leases",
        mode.as_str()
    );
    Error::new(ErrorKind::Invalid, message)
}

/// A size that a semaphore can have.
pub(crate) fn permits(size: u32) -> Result<u32, Invalid> {
    if (1..=PERMITS_MAX).contains(&size) {
        return Ok(size);
    }
    Err(Invalid::new("size", size.to_string(), format!("must be 1 to {PERMITS_MAX} permits")))
}

impl LockRequest {
    pub(crate) fn new(client: Client, lock: Result<LockName, Invalid>) -> Self {
        let spec = lock.map(|lock| Spec::new(&client, lock));
        Self { client, spec }
    }

    pub(crate) fn from_spec(client: Client, spec: Spec) -> Self {
        Self { client, spec: Ok(spec) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The name of the lock, where it is valid.
    pub(crate) fn lock_name(&self) -> Result<&LockName, Error> {
        self.spec.as_ref().map(|spec| &spec.lock).map_err(|invalid| invalid.clone().into())
    }

    fn change(mut self, change: impl FnOnce(&mut Spec)) -> Self {
        if let Ok(spec) = &mut self.spec {
            change(spec);
        }
        self
    }

    /// How long the lease lives unless it is renewed: 15 s by default, at most a day. It is trusted
    /// here for 0.8 of that, and renewed in the background every third of it.
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

    /// How long to wait in the queue while another holds the lock: at most 5 minutes, the limit of
    /// the protocol. Without it the answer comes at once.
    pub fn wait(mut self, wait: Duration) -> Self {
        if wait > Duration::from_millis(MAX_WAIT_MS) {
            let rule = format!("must be at most {MAX_WAIT_MS} ms (5 minutes)");
            self.spec = Err(Invalid::new("wait", format!("{wait:?}"), rule));
        }
        self.change(|spec| spec.wait = wait)
    }

    /// For how long beyond the wait a server that cannot be reached, or whose store cannot be, is
    /// tried again: 5 s by default.
    pub fn patience(self, patience: Duration) -> Self {
        self.change(|spec| spec.patience = patience)
    }

    /// Shares the lock with other shared leases: they keep writers out, but not each other.
    ///
    /// Nobody overtakes a writer that waits. A guard serves *one* of several live leases of a name,
    /// the one with the highest token that it has seen: do not present the token of a shared lease
    /// where its fellows present theirs. In place of [`permit`](Self::permit), where that was asked
    /// for before.
    pub fn shared(self) -> Self {
        self.change(|spec| (spec.mode, spec.size) = (LeaseMode::Shared, None))
    }

    /// Acquires one of `size` permits, 1 to 1024: at most so many hold the lock at a time.
    ///
    /// Everybody names the same size; where others use the lock with another one, or as a lock that
    /// is no semaphore, the answer is [`Invalid`](crate::ErrorKind::Invalid), with the code
    /// `lock-kind-conflict` in its [`problem`](Error::problem). A permit bounds how many work, and
    /// its token is for no guard; see [`shared`](Self::shared). In place of that, where it was asked
    /// for before.
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

    /// The token of the grant must exceed this one: a guard has seen it.
    pub fn min_token(self, token: Token) -> Self {
        self.change(|spec| spec.min_token = Some(token))
    }

    /// Anything that people who look at the lock should see.
    pub fn metadata(self, metadata: serde_json::Value) -> Self {
        self.change(|spec| spec.metadata = Some(metadata))
    }

    /// The work has to report within this time, again and again: see
    /// [`Lease::report_progress`]. Where it does not, the lease is lost, so that work that hangs does
    /// not keep the lock for as long as its process lives. Time for which the machine was suspended
    /// does not count.
    pub fn progress_within(self, limit: Duration) -> Self {
        self.change(|spec| spec.limits.progress_within = Some(limit))
    }

    /// The longest time for which the lock may be held, renewals and all. Then the lease is lost.
    pub fn max_hold(self, limit: Duration) -> Self {
        self.change(|spec| spec.limits.max_hold = Some(limit))
    }

    /// How long before the lease will be lost [`Lease::warnings`] tells. Must be less than the other
    /// limits.
    pub fn warn_before(self, time: Duration) -> Self {
        self.change(|spec| spec.limits.warn_before = Some(time))
    }

    /// Takes the lock over from an earlier incarnation of this owner, at once and before those who
    /// wait: for a process that starts again and finds its lock held by its own dead self.
    ///
    /// The owner ([`ClientBuilder::owner`](crate::ClientBuilder::owner)) has to be one that a
    /// restart keeps; the [incarnation](crate::ClientBuilder::incarnation) tells its lives apart.
    /// The token of the grant is a new one. The old life, where it still runs, learns that it was
    /// superseded by its next renewal, and is refused by the guard before that. Another owner's lock
    /// is waited for, as any, where there is a [`wait`](Self::wait). In place of
    /// [`takeover_of`](Self::takeover_of), where that was asked for before.
    pub fn takeover(self) -> Self {
        self.change(|spec| spec.takeover = Takeover::EarlierSelf)
    }

    /// Takes the lock over from this lease of the same owner, at once and before those who wait: for
    /// a supervisor that saw the lease's holder die.
    ///
    /// Where that lease has ended already, this acquires the lock like any other. Never across
    /// owners: the owner of this client has to be the one of the lease. In place of
    /// [`takeover`](Self::takeover), where that was asked for before.
    pub fn takeover_of(self, lease_id: LeaseId) -> Self {
        self.change(|spec| spec.takeover = Takeover::Lease(lease_id))
    }

    /// Acquires the lock.
    ///
    /// A lost reply, a timeout and a server that is not available are repeated with the same lease
    /// id, so that there is never more than one grant. Must run on a tokio runtime, which then
    /// renews the lease in the background.
    ///
    /// Cancel-safe: when the future is dropped, a grant that it may have caused is given back in
    /// the background.
    ///
    /// # Errors
    /// [`Contended`](crate::ErrorKind::Contended) when another holds the lock for longer than the
    /// wait, [`TakeoverRefused`](crate::ErrorKind::TakeoverRefused) when it may not be taken over,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) and
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) when the server cannot be reached or
    /// does not answer, [`Invalid`](crate::ErrorKind::Invalid) for a name or a time that breaks a
    /// rule.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let spec = self.spec?;
        spec.check(&self.client)?;
        let (reply, window) = grant::obtain(&self.client, &spec).await?;
        Ok(Lease::begin(self.client, reply, window, spec))
    }

    /// Acquires the lock for somebody else: nothing renews it here, nothing releases it, and
    /// nothing watches its deadline. For tools that hand it on.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_detached(self) -> Result<LeaseReply, Error> {
        let spec = self.spec?;
        spec.check(&self.client)?;
        let (reply, _) = grant::obtain(&self.client, &spec).await?;
        Ok(reply)
    }

    /// As [`acquire_detached`](Self::acquire_detached), for a lease that lives as long as a session
    /// does which is kept elsewhere. Its owner and time to live are the session's; an owner that was
    /// given to the client has to be the same.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LeaseLost`](crate::ErrorKind::LeaseLost) where the
    /// session has ended or is not known.
    pub async fn acquire_detached_in(self, session: SessionId) -> Result<LeaseReply, Error> {
        let is_owner_given = self.client.is_owner_given();
        let bound = self.change(|spec| {
            spec.session = Some(session);
            spec.owner = spec.owner.take().filter(|_| is_owner_given);
        });
        bound.acquire_detached().await
    }

    /// A lock that its holder may enter again and again; see [`Reentrant`].
    pub fn reentrant(self) -> Reentrant {
        Reentrant::new(self)
    }

    /// Acquires the lock, does `work` under it and releases it; see [`Lease::run`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) and [`Lease::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        self.acquire().await?.run(work).await
    }
}

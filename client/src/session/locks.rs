//! Several locks for one session: all of them, or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::{
    AcquireAllRequest, LOCKS_PER_ACQUIRE_MAX, LeaseMode, LeaseReply, LockWish, MAX_WAIT_MS,
};
use fence_protocol::{Invalid, LockName};
use serde_json::Value;

use super::{ENDED, LeaseSet, Session, SessionLease};
use crate::acquire::grant::Group;
use crate::acquire::{DEFAULT_PATIENCE, Spec, Takeover, grant, no_takeover_of, permits};
use crate::clock::{self, Moment};
use crate::{Error, ErrorKind};

/// How many locks one call acquires at most.
pub const MAX_LOCKS: usize = LOCKS_PER_ACQUIRE_MAX;

/// Locks that are about to be acquired for a session.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire_all`"]
pub struct SessionLocks<'s> {
    session: &'s Session,
    wishes: Result<Vec<LockWish>, Invalid>,
    wait: Duration,
    patience: Duration,
    takeover: Takeover,
    metadata: Option<Value>,
}

impl<'s> SessionLocks<'s> {
    pub(super) fn new(session: &'s Session) -> Self {
        Self {
            session,
            wishes: Ok(Vec::new()),
            wait: Duration::ZERO,
            patience: DEFAULT_PATIENCE,
            takeover: Takeover::Never,
            metadata: None,
        }
    }

    /// One more lock, for this session alone.
    pub fn exclusive(self, lock: impl AsRef<str>) -> Self {
        self.with(lock.as_ref(), LeaseMode::Exclusive, Ok(None))
    }

    /// One more lock, beside other shared leases; see
    /// [`LockRequest::shared`](crate::LockRequest::shared).
    pub fn shared(self, lock: impl AsRef<str>) -> Self {
        self.with(lock.as_ref(), LeaseMode::Shared, Ok(None))
    }

    /// One more lock: one of its `size` permits; see
    /// [`LockRequest::permit`](crate::LockRequest::permit).
    pub fn permit(self, lock: impl AsRef<str>, size: u32) -> Self {
        self.with(lock.as_ref(), LeaseMode::Permit, permits(size).map(Some))
    }

    fn with(mut self, lock: &str, mode: LeaseMode, size: Result<Option<u32>, Invalid>) -> Self {
        let wish = LockName::new(lock)
            .and_then(|lock| Ok(LockWish { lock, mode, size: size?, min_token: None }));
        match (&mut self.wishes, wish) {
            (Ok(wishes), Ok(wish)) => wishes.push(wish),
            (Ok(_), Err(invalid)) => self.wishes = Err(invalid),
            (Err(_), _) => {}
        }
        self
    }

    /// How long to wait for all of them together while others hold them: at most 5 minutes. Without
    /// it the answer comes at once.
    pub fn wait(mut self, wait: Duration) -> Self {
        if wait > Duration::from_millis(MAX_WAIT_MS) {
            let rule = format!("must be at most {MAX_WAIT_MS} ms (5 minutes)");
            self.wishes = Err(Invalid::new("wait", format!("{wait:?}"), rule));
        }
        Self { wait, ..self }
    }

    /// For how long beyond the wait a server that cannot be reached is tried again: 5 s by default.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Takes each of them over from an earlier incarnation of this owner; see
    /// [`LockRequest::takeover`](crate::LockRequest::takeover). For exclusive leases.
    ///
    /// A takeover is of one lock, so they are acquired one after the other then, in the order of
    /// their names: the first are held while the last is waited for, and the old leases of those that
    /// were taken over have ended even where another lock then cannot be acquired.
    pub fn takeover(self) -> Self {
        Self { takeover: Takeover::EarlierSelf, ..self }
    }

    /// Anything that people who look at these locks should see.
    pub fn metadata(self, metadata: Value) -> Self {
        Self { metadata: Some(metadata), ..self }
    }

    /// Acquires all of these locks, or none: 1 to 64, each once.
    ///
    /// The server grants them in one step, when every one of them has room for this lease. While the
    /// request waits it holds none of them, and has its place in the queue of each: so two who want
    /// some of the same locks never wait for each other in a circle, in whatever order they name
    /// them, as long as both acquire all that they want by one such call. Whoever comes later waits
    /// behind those places, also at a lock that nobody holds.
    ///
    /// A lost reply is repeated under the same lease id, and gets the same tokens.
    ///
    /// # Cancel safety
    /// When the future is dropped, the request leaves the queues, and what it may have been granted
    /// is given back in the background.
    ///
    /// # Errors
    /// [`Contended`](ErrorKind::Contended) where one of them is held by another for longer than the
    /// wait, [`TakeoverRefused`](ErrorKind::TakeoverRefused) where one may not be taken over,
    /// [`LeaseLost`](ErrorKind::LeaseLost) where the session is lost, [`Invalid`](ErrorKind::Invalid)
    /// for a name that is not valid or there twice, for too many, and for a lock that is in use as
    /// another kind; otherwise as [`LockRequest::acquire`](crate::LockRequest::acquire).
    /// [`Error::lock`] names the lock that stood in the way.
    pub async fn acquire_all(self) -> Result<LeaseSet, Error> {
        let wishes = checked(self.wishes.clone()?)?;
        self.session.check()?;
        let leases = match self.takeover {
            Takeover::Never => self.together(wishes).await?,
            _ => self.one_by_one(&wishes).await?,
        };
        let set = LeaseSet::new(leases);
        // The wait may have outlasted the session, or one of the first of them.
        if let Err(error) = set.check() {
            drop(Gathered { session: self.session, leases: set.into_iter().collect() });
            return Err(error);
        }
        Ok(set)
    }

    async fn together(&self, wishes: Vec<LockWish>) -> Result<Vec<SessionLease>, Error> {
        let Session { client, state, .. } = self.session;
        let _waiting = state.wait(wishes.len());
        let request = AcquireAllRequest {
            locks: wishes,
            ttl_ms: state.ttl,
            owner: Some(state.owner.clone()),
            metadata: self.metadata.clone(),
            session_id: Some(state.id),
            // Always, so that a later life of this owner can take each of them over.
            incarnation: Some(client.incarnation().clone()),
            ..AcquireAllRequest::default()
        };
        let group = Group { request, wait: self.wait, patience: self.patience };
        let grants = grant::obtain_all(client, &group).await;
        let grants = grants.inspect_err(|error| self.record_refusal(error))?;
        Ok(grants.into_iter().map(|grant| self.bound(grant)).collect())
    }

    /// For takeovers alone, which the server does for one lock at a time.
    async fn one_by_one(&self, wishes: &[LockWish]) -> Result<Vec<SessionLease>, Error> {
        if !self.session.client.is_owner_given() {
            let message = "a takeover needs an owner that a restart keeps; give one to the client \
                           (ClientBuilder::owner, FENCE_OWNER)";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let Some(wish) = wishes.iter().find(|wish| !wish.mode.is_exclusive()) {
            return Err(no_takeover_of(&wish.lock, wish.mode));
        }
        let wait_ms = u64::try_from(self.wait.as_millis()).unwrap_or(MAX_WAIT_MS);
        let wait_until = clock::now().plus_ms(wait_ms);
        let mut gathered = Gathered { session: self.session, leases: Vec::new() };
        for lock in wishes.iter().map(|wish| &wish.lock).collect::<BTreeSet<_>>() {
            gathered.leases.push(self.take_over(lock, wait_until).await?);
        }
        let mut leases = std::mem::take(&mut gathered.leases);
        leases.sort_by_key(|lease| wishes.iter().position(|wish| wish.lock == *lease.lock()));
        Ok(leases)
    }

    async fn take_over(&self, lock: &LockName, wait_until: Moment) -> Result<SessionLease, Error> {
        let Session { client, state, .. } = self.session;
        let spec = Spec {
            ttl: state.ttl,
            wait: wait_until.since(clock::now()),
            patience: self.patience,
            metadata: self.metadata.clone(),
            owner: Some(state.owner.clone()),
            takeover: self.takeover,
            session: Some(state.id),
            ..Spec::new(client, lock.clone())
        };
        let _waiting = state.wait(1);
        let granted = grant::obtain(client, &spec).await;
        let (grant, _) = granted.inspect_err(|error| self.record_refusal(error))?;
        Ok(self.bound(grant))
    }

    fn bound(&self, grant: LeaseReply) -> SessionLease {
        let Session { client, state, .. } = self.session;
        SessionLease::new(client.clone(), Arc::clone(state), grant)
    }

    /// A refusal may be the first that is heard of the session's end.
    fn record_refusal(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::LeaseLost { reason } if *reason == ENDED) {
            self.session.state.trust.lose(ENDED);
        }
    }
}

/// The wishes, where they are 1 to 64 and no lock is there twice.
fn checked(wishes: Vec<LockWish>) -> Result<Vec<LockWish>, Invalid> {
    if wishes.is_empty() || wishes.len() > MAX_LOCKS {
        let rule = format!("must be 1 to {MAX_LOCKS} locks");
        return Err(Invalid::new("locks", wishes.len().to_string(), rule));
    }
    let mut seen = BTreeSet::new();
    match wishes.iter().map(|wish| &wish.lock).find(|lock| !seen.insert(*lock)) {
        Some(twice) => Err(Invalid::new("locks", twice.as_str(), "is there twice")),
        None => Ok(wishes),
    }
}

/// What was acquired so far. Dropping it gives it back in the background.
struct Gathered<'s> {
    session: &'s Session,
    leases: Vec<SessionLease>,
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        for lease in std::mem::take(&mut self.leases) {
            self.session.in_background(async move {
                let lock = lease.lock().clone();
                if let Err(error) = lease.release().await {
                    tracing::debug!(%lock, %error, "one lock of several was not given back");
                }
            });
        }
    }
}

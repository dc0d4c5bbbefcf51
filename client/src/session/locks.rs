//! Acquiring several locks for one session: all of them, or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::{LOCKS_PER_ACQUIRE_MAX, LeaseMode, LeaseReply};
use fence_protocol::wire::lock_set::{AcquireAllRequest, LockWish};
use fence_protocol::{Invalid, LockName};
use serde_json::Value;

use super::{ENDED, LeaseSet, Session, SessionLease};
use crate::acquire::grant::{self, Group};
use crate::clock::{self, Moment};
use crate::lock_spec::{Spec, Takeover, no_takeover_of, permits};
use crate::retries::WaitTimes;
use crate::{Error, ErrorKind};

/// Most locks that one call acquires.
pub const MAX_LOCKS: usize = LOCKS_PER_ACQUIRE_MAX;

/// Request for several locks of a session; see [`Session::locks`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire_all`"]
pub struct SessionLocks<'s> {
    session: &'s Session,
    wishes: Result<Vec<LockWish>, Invalid>,
    times: WaitTimes,
    takeover: Takeover,
    metadata: Option<Value>,
}

impl<'s> SessionLocks<'s> {
    pub(super) fn new(session: &'s Session) -> Self {
        Self {
            session,
            wishes: Ok(Vec::new()),
            times: WaitTimes::default(),
            takeover: Takeover::Never,
            metadata: None,
        }
    }

    /// Adds a lock, for an exclusive lease.
    pub fn exclusive(self, lock: impl AsRef<str>) -> Self {
        self.with(lock.as_ref(), LeaseMode::Exclusive, Ok(None))
    }

    /// Adds a lock, for a shared lease; see
    /// [`LockRequest::shared`](crate::LockRequest::shared).
    pub fn shared(self, lock: impl AsRef<str>) -> Self {
        self.with(lock.as_ref(), LeaseMode::Shared, Ok(None))
    }

    /// Adds a semaphore, for one of its `size` permits; see
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

    /// Longest wait for all locks together while other leases hold them; see
    /// [`LockRequest::wait`](crate::LockRequest::wait).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.times.wait = wait;
        self
    }

    /// Waits for all locks together without end; see
    /// [`LockRequest::wait_forever`](crate::LockRequest::wait_forever).
    pub fn wait_forever(self) -> Self {
        self.wait(Duration::MAX)
    }

    /// Makes the wait bound the call; see
    /// [`LockRequest::bounded`](crate::LockRequest::bounded).
    pub fn bounded(mut self) -> Self {
        self.times.is_bounded = true;
        self
    }

    /// Time beyond the wait for which requests to an unreachable server are retried: 5 s by
    /// default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.times.patience = patience;
        self
    }

    /// Takes each lock over from an earlier incarnation of this owner; see
    /// [`LockRequest::takeover`](crate::LockRequest::takeover). For exclusive leases only.
    ///
    /// A takeover concerns one lock, so the locks are then acquired one after the other, in the
    /// order of their names: the first are held while the last is waited for, and old leases that
    /// were taken over have ended even if another lock cannot be acquired.
    pub fn takeover(self) -> Self {
        Self { takeover: Takeover::EarlierSelf, ..self }
    }

    /// JSON shown to people who inspect these locks.
    pub fn metadata(self, metadata: Value) -> Self {
        Self { metadata: Some(metadata), ..self }
    }

    /// Acquires all of these locks, or none: 1 to 64, each once.
    ///
    /// The server grants them in one step, once every lock has room for this lease. A waiting
    /// request holds none of them and has an entry in the queue of each. So two clients that
    /// request some of the same locks, in any order, never deadlock, if each acquires all its locks
    /// by one such call. Later requests wait behind those entries, even at a lock that is free.
    ///
    /// If no reply arrives, the request is retried under the same lease id and gets the same
    /// tokens.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request leaves the queues, and grants that it may have caused
    /// are released in the background.
    ///
    /// # Errors
    /// [`Contended`](ErrorKind::Contended) if another lease holds one of them for longer than the
    /// wait, [`TakeoverRefused`](ErrorKind::TakeoverRefused) if one may not be taken over,
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the session is lost, [`Invalid`](ErrorKind::Invalid)
    /// for a name that is not valid or is duplicated, for too many locks, and for a lock that is in
    /// use as another kind; otherwise as [`LockRequest::acquire`](crate::LockRequest::acquire).
    /// [`Error::lock`] names the lock that prevented the grant.
    pub async fn acquire_all(self) -> Result<LeaseSet, Error> {
        let wishes = checked(self.wishes.clone()?)?;
        self.session.check()?;
        let leases = match self.takeover {
            Takeover::Never => self.together(wishes).await?,
            _ => self.one_by_one(&wishes).await?,
        };
        let set = LeaseSet { leases };
        // The session, or one of the first leases, may have ended during the wait.
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
            // Always sent, so that a later incarnation of this owner can take each lock over.
            incarnation: Some(client.incarnation().clone()),
            ..AcquireAllRequest::default()
        };
        let group = Group { request, times: self.times };
        let grants = grant::obtain_all(client, &group).await;
        let grants = grants.inspect_err(|error| self.record_refusal(error))?;
        Ok(grants.into_iter().map(|grant| self.bound(grant)).collect())
    }

    /// Acquires the locks one by one, for takeovers, which the server does for one lock at a time.
    async fn one_by_one(&self, wishes: &[LockWish]) -> Result<Vec<SessionLease>, Error> {
        if !self.session.client.is_owner_given() {
            let message = "a takeover needs an owner that stays the same after a restart; configure \
                           one (ClientBuilder::owner, FENCE_OWNER)";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if let Some(wish) = wishes.iter().find(|wish| !wish.mode.is_exclusive()) {
            return Err(no_takeover_of(&wish.lock, wish.mode));
        }
        let wait_until = clock::now().plus(self.times.wait);
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
            times: WaitTimes { wait: wait_until.since(clock::now()), ..self.times },
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

    /// Marks the session as lost if the refusal says that it has ended: the heartbeat may notice
    /// later.
    fn record_refusal(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::LeaseLost { reason } if *reason == ENDED) {
            self.session.state.trust.lose(ENDED);
        }
    }
}

/// Checks that there are 1 to 64 locks, and none twice.
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

/// The leases acquired so far. Dropping them releases them in the background.
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
                    tracing::debug!(%lock, %error, "one lock of several was not released");
                }
            });
        }
    }
}

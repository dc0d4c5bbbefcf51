//! Several locks for one session: all of them, or none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::MAX_WAIT_MS;
use fence_protocol::{Invalid, LockName};
use serde_json::Value;

use super::{ENDED, LeaseSet, Session, SessionLease};
use crate::acquire::{DEFAULT_PATIENCE, Spec, Takeover, grant};
use crate::clock::{self, Moment};
use crate::{Error, ErrorKind};

/// How many locks one call acquires at most.
pub const MAX_LOCKS: usize = 64;

/// Locks that are about to be acquired for a session.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire_all`"]
pub struct SessionLocks<'s> {
    session: &'s Session,
    locks: Result<Vec<LockName>, Invalid>,
    wait: Duration,
    patience: Duration,
    takeover: Takeover,
    metadata: Option<Value>,
}

impl<'s> SessionLocks<'s> {
    pub(super) fn new(session: &'s Session, locks: Result<Vec<LockName>, Invalid>) -> Self {
        Self {
            session,
            locks: locks.and_then(checked),
            wait: Duration::ZERO,
            patience: DEFAULT_PATIENCE,
            takeover: Takeover::Never,
            metadata: None,
        }
    }

    /// How long to wait for all of them together while others hold them: at most 5 minutes. Without
    /// it the answer comes at once.
    pub fn wait(mut self, wait: Duration) -> Self {
        if wait > Duration::from_millis(MAX_WAIT_MS) {
            let rule = format!("must be at most {MAX_WAIT_MS} ms (5 minutes)");
            self.locks = Err(Invalid::new("wait", format!("{wait:?}"), rule));
        }
        Self { wait, ..self }
    }

    /// For how long beyond the wait a server that cannot be reached is tried again: 5 s by default.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Takes each of them over from an earlier incarnation of this owner; see
    /// [`LockRequest::takeover`](crate::LockRequest::takeover). The old leases of those that were
    /// taken over have ended even where another lock then cannot be acquired.
    pub fn takeover(self) -> Self {
        Self { takeover: Takeover::EarlierSelf, ..self }
    }

    /// Anything that people who look at these locks should see.
    pub fn metadata(self, metadata: Value) -> Self {
        Self { metadata: Some(metadata), ..self }
    }

    /// Acquires all of these locks, or none: 1 to 64, each once.
    ///
    /// They are acquired one after the other in the order of their names, whatever the order in which
    /// they were asked for, so that two who want some of the same locks never wait for each other in a
    /// circle, as long as both acquire all that they want by one such call. What was acquired is given
    /// back where one of the others cannot be.
    ///
    /// # Cancel safety
    /// When the future is dropped, what it has acquired or waits for is given back in the background.
    ///
    /// # Errors
    /// [`Contended`](ErrorKind::Contended) where one of them is held by another for longer than the
    /// wait, [`TakeoverRefused`](ErrorKind::TakeoverRefused) where one may not be taken over,
    /// [`LeaseLost`](ErrorKind::LeaseLost) where the session is lost, [`Invalid`](ErrorKind::Invalid)
    /// for a name that is not valid or there twice, and for too many; otherwise as
    /// [`LockRequest::acquire`](crate::LockRequest::acquire).
    pub async fn acquire_all(self) -> Result<LeaseSet, Error> {
        let locks = self.locks.clone()?;
        self.session.check()?;
        let wait_ms = u64::try_from(self.wait.as_millis()).unwrap_or(MAX_WAIT_MS);
        let wait_until = clock::now().plus_ms(wait_ms);
        let mut gathered = Gathered { session: self.session, leases: Vec::new() };
        for lock in locks.iter().collect::<BTreeSet<_>>() {
            gathered.leases.push(self.acquire(lock, wait_until).await?);
        }
        let mut leases = std::mem::take(&mut gathered.leases);
        leases.sort_by_key(|lease| locks.iter().position(|lock| lock == lease.lock()));
        let set = LeaseSet::new(leases);
        // The wait may have outlasted the session, or one of the first of them.
        set.check()?;
        Ok(set)
    }

    async fn acquire(&self, lock: &LockName, wait_until: Moment) -> Result<SessionLease, Error> {
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
        let _waiting = state.wait();
        match grant::obtain(client, &spec).await {
            Ok((grant, _)) => Ok(SessionLease::new(client.clone(), Arc::clone(state), grant)),
            Err(error) => {
                if matches!(error.kind(), ErrorKind::LeaseLost { reason } if *reason == ENDED) {
                    state.trust.lose(ENDED);
                }
                Err(error)
            }
        }
    }
}

/// The names, where they are 1 to 64 and none is there twice.
fn checked(locks: Vec<LockName>) -> Result<Vec<LockName>, Invalid> {
    if locks.is_empty() || locks.len() > MAX_LOCKS {
        let rule = format!("must be 1 to {MAX_LOCKS} locks");
        return Err(Invalid::new("locks", locks.len().to_string(), rule));
    }
    let mut seen = BTreeSet::new();
    match locks.iter().find(|lock| !seen.insert(*lock)) {
        Some(twice) => Err(Invalid::new("locks", twice.as_str(), "is there twice")),
        None => Ok(locks),
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

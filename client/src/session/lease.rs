//! The leases of a session, single and in sets.

use std::ops::Deref;
use std::sync::Arc;

use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_protocol::{LeaseId, LockName, Token};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::state::{Bond, SessionState};
use crate::fence::sealed::Sealed;
use crate::late_release::WorkEnd;
use crate::{Client, Error, ErrorKind, Fence, LostReason, trust};

/// Lease that lives as long as its [`Session`](super::Session), unless it is released, revoked or
/// taken over before.
///
/// The session's heartbeat renews it. Dropping it does *not* release the lock, which is then held
/// until the session ends; use [`release`](Self::release).
#[derive(Clone, Debug)]
pub struct SessionLease {
    client: Client,
    state: Arc<SessionState>,
    bond: Arc<Bond>,
}

impl SessionLease {
    pub(super) fn new(client: Client, state: Arc<SessionState>, grant: LeaseReply) -> Self {
        let bond = state.hold(grant);
        Self { client, state, bond }
    }

    /// The fencing token: higher than that of every earlier grant of this lock.
    pub fn token(&self) -> Token {
        self.grant().token
    }

    /// The name of the lock.
    pub fn lock(&self) -> &LockName {
        &self.grant().lock
    }

    /// The id of this grant.
    pub fn lease_id(&self) -> LeaseId {
        self.grant().lease_id
    }

    /// The value of the `Fencing-Token` header.
    pub fn fencing_token(&self) -> &str {
        &self.grant().fencing_token
    }

    /// The same token as a password for the guard's Redis port. A connection that uses several
    /// locks takes their credentials joined by `.`.
    pub fn fencing_credential(&self) -> &str {
        &self.grant().fencing_credential
    }

    /// The grant as the server sent it.
    pub fn grant(&self) -> &LeaseReply {
        &self.bond.grant
    }

    /// Checks that this lease can be trusted now: its session can, and the lease has not ended
    /// before it. Reads the clock; sends nothing.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if it cannot, and after its release.
    pub fn check(&self) -> Result<(), Error> {
        self.state.check_bond(&self.bond)
    }

    /// Waits until this lease can no longer be trusted. Cancel-safe.
    ///
    /// The end of the session is noticed at the latest when 0.8 of its time to live has passed. The
    /// end of this lease alone (revoked or taken over) is noticed by the next heartbeat, at most a
    /// third of the time to live later, if the server is reachable.
    pub async fn lost(&self) -> Error {
        self.state.until_lost(|| self.check()).await
    }

    /// Runs `work` under this lease, then releases it. The work is dropped as soon as the lease can
    /// no longer be trusted.
    ///
    /// # Errors
    /// As [`Lease::run`](crate::Lease::run).
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        match trust::guard(|| self.check(), self.lost(), work(&self)).await {
            Ok(value) => ignore_unreleased(self.release().await).map(|()| value),
            Err(error) => {
                drop(self.start_release());
                Err(error)
            }
        }
    }

    /// Releases the lock; retries for up to 5 s if no reply arrives, and no longer than the session
    /// lasts. The session and its other leases stay live.
    ///
    /// # Errors
    /// As [`Lease::release`](crate::Lease::release).
    ///
    /// # Cancel safety
    /// The release continues in the background if the future is dropped.
    pub async fn release(self) -> Result<(), Error> {
        finished(self.start_release()).await
    }

    fn start_release(self) -> Releasing {
        let work_end = match self.check() {
            Ok(()) => WorkEnd::now(&self.state.trust),
            Err(_) => WorkEnd::too_late(),
        };
        self.state.let_go(&self.bond, LostReason::Ended(EndReason::Released));
        let (sender, receiver) = oneshot::channel();
        let client = self.client.clone();
        let state = self.state;
        let bond = self.bond;
        self.client.background().spawn_on(&Handle::current(), async move {
            let grant = &bond.grant;
            let release = client.locks().release(&grant.lock, grant.lease_id);
            let released = state.trust.until_expired(release).await;
            // The receiver is dropped if the caller does not wait for the release.
            let _ = sender.send(work_end.excuse_late_release(released, &grant.lock, || ()));
        });
        receiver
    }
}

impl Sealed for SessionLease {}

impl Fence for SessionLease {
    fn fencing_token(&self) -> &str {
        SessionLease::fencing_token(self)
    }

    fn token(&self) -> Token {
        SessionLease::token(self)
    }

    fn check(&self) -> Result<(), Error> {
        SessionLease::check(self)
    }
}

/// Result of a release in the background.
type Releasing = oneshot::Receiver<Result<(), Error>>;

async fn finished(release: Releasing) -> Result<(), Error> {
    let ended =
        || Error::new(ErrorKind::OutcomeUnknown, "the runtime ended before the release did");
    release.await.unwrap_or_else(|_| Err(ended()))
}

/// Drops errors other than a lost lease: a lease whose release failed ends with the session.
fn ignore_unreleased(released: Result<(), Error>) -> Result<(), Error> {
    match released {
        Err(error) if !matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
            tracing::warn!(%error, "a lock was not released; it ends with its session");
            Ok(())
        }
        result => result,
    }
}

/// The leases of one [`acquire_all`](super::SessionLocks::acquire_all), in the order of the
/// request. Dereferences to a slice of them.
///
/// The set can be trusted while every lease in it can.
#[derive(Clone, Debug)]
pub struct LeaseSet {
    pub(super) leases: Vec<SessionLease>,
}

impl LeaseSet {
    /// The lease on `lock`, if it is in the set.
    pub fn lease_on(&self, lock: &str) -> Option<&SessionLease> {
        self.leases.iter().find(|lease| lease.lock().as_str() == lock)
    }

    /// All credentials joined, for a connection to the guard's Redis port that uses all of these
    /// locks; the port accepts at most 16 at once.
    pub fn fencing_credential(&self) -> String {
        let each: Vec<&str> = self.leases.iter().map(SessionLease::fencing_credential).collect();
        each.join(".")
    }

    /// Checks that all leases can be trusted now.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) for the first lease that cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.leases.iter().try_for_each(SessionLease::check)
    }

    /// Waits until one lease can no longer be trusted. Cancel-safe.
    pub async fn lost(&self) -> Error {
        match self.leases.first() {
            Some(first) => first.state.until_lost(|| self.check()).await,
            None => std::future::pending().await,
        }
    }

    /// Runs `work` under all leases, then releases them. The work is dropped as soon as one lease
    /// can no longer be trusted.
    ///
    /// # Errors
    /// As [`Lease::run`](crate::Lease::run).
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        match trust::guard(|| self.check(), self.lost(), work(&self)).await {
            Ok(value) => self.release().await.map(|()| value),
            Err(error) => {
                // The other leases would otherwise be held, unused, until the session ends.
                self.leases.into_iter().for_each(|lease| drop(lease.start_release()));
                Err(error)
            }
        }
    }

    /// Releases every lock; the session and its other leases stay live. A failed release other than
    /// of a lost lease is logged, and the lease ends with the session.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if a lease had ended before; the others are released all
    /// the same.
    pub async fn release(self) -> Result<(), Error> {
        let mut result = Ok(());
        let each: Vec<Releasing> =
            self.leases.into_iter().map(SessionLease::start_release).collect();
        for release in each {
            let released = ignore_unreleased(finished(release).await);
            result = result.and(released);
        }
        result
    }
}

impl Deref for LeaseSet {
    type Target = [SessionLease];

    fn deref(&self) -> &[SessionLease] {
        &self.leases
    }
}

impl IntoIterator for LeaseSet {
    type Item = SessionLease;
    type IntoIter = std::vec::IntoIter<SessionLease>;

    fn into_iter(self) -> Self::IntoIter {
        self.leases.into_iter()
    }
}

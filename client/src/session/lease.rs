//! What a session holds.

use std::ops::Deref;
use std::sync::Arc;

use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_protocol::{LeaseId, LockName, Token};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::state::{Bond, SessionState};
use crate::late_release::WorkEnd;
use crate::{Client, Error, ErrorKind, LostReason, trust};

/// A lease that lives as long as its [`Session`](super::Session), unless it is released, revoked or
/// taken over before.
///
/// It renews nothing itself. Dropping it keeps the lock until the session ends;
/// [`release`](Self::release) gives it back.
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

    /// The fencing token: higher than that of every grant of this lock before.
    pub fn token(&self) -> Token {
        self.grant().token
    }

    /// The lock.
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

    /// The same token as a password for the guard's Redis port. A connection that works under
    /// several locks gets all of theirs, with a `.` between.
    pub fn fencing_credential(&self) -> &str {
        &self.grant().fencing_credential
    }

    /// The grant as the server sent it.
    pub fn grant(&self) -> &LeaseReply {
        &self.bond.grant
    }

    /// Nothing, where this lease can be trusted now: its session can, and it has not ended before
    /// it. Reads the clock.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) where it cannot, and after its release.
    pub fn check(&self) -> Result<(), Error> {
        self.state.check_bond(&self.bond)
    }

    /// Waits until this lease can no longer be trusted. Cancel-safe.
    ///
    /// That its session ended is known at the latest when 0.8 of its time to live have passed. That
    /// this lease alone did (it was revoked or taken over) is known from the next heartbeat, a third
    /// of the time to live later at most, where the server can be reached.
    pub async fn lost(&self) -> Error {
        let mut changed = self.state.changed.subscribe();
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::select! {
                _ = self.state.trust.when_lost() => {}
                _ = changed.changed() => {}
            }
        }
    }

    /// Does `work` under this lease, then releases it. The work is dropped the moment the lease can
    /// no longer be trusted.
    ///
    /// # Errors
    /// As [`Lease::run`](crate::Lease::run).
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        match trust::guard(|| self.check(), self.lost(), work(&self)).await {
            Ok(value) => given_back(self.release().await).map(|()| value),
            Err(error) => {
                drop(self.start_release());
                Err(error)
            }
        }
    }

    /// Gives the lock back, and repeats that where the reply was lost; the session and its other
    /// leases live on.
    ///
    /// # Errors
    /// As [`Lease::release`](crate::Lease::release).
    ///
    /// # Cancel safety
    /// Once begun it goes on in the background, also where the future is dropped.
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
        let (client, bond) = (self.client.clone(), self.bond);
        self.client.background().spawn_on(&Handle::current(), async move {
            let grant = &bond.grant;
            let released = client.locks().release(&grant.lock, grant.lease_id).await;
            // The receiver is gone where the caller does not wait for the release.
            let _ = sender.send(work_end.excuse_late_release(released, &grant.lock, || ()));
        });
        receiver
    }
}

/// A release in the background.
type Releasing = oneshot::Receiver<Result<(), Error>>;

async fn finished(release: Releasing) -> Result<(), Error> {
    let ended =
        || Error::new(ErrorKind::OutcomeUnknown, "the runtime ended before the release did");
    release.await.unwrap_or_else(|_| Err(ended()))
}

/// Only a lease that had ended before is an error: what cannot be told ends with the session.
fn given_back(released: Result<(), Error>) -> Result<(), Error> {
    match released {
        Err(error) if !matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
            tracing::warn!(%error, "a lock was not released; it ends with its session");
            Ok(())
        }
        result => result,
    }
}

/// The leases of one [`acquire_all`](super::SessionLocks::acquire_all), in the order in which they
/// were asked for. Dereferences to a slice of them.
///
/// It can be trusted as long as every one of them can.
#[derive(Clone, Debug)]
pub struct LeaseSet {
    leases: Vec<SessionLease>,
}

impl LeaseSet {
    pub(super) fn new(leases: Vec<SessionLease>) -> Self {
        Self { leases }
    }

    /// The lease on `lock`, where it is one of them.
    pub fn lease_on(&self, lock: &str) -> Option<&SessionLease> {
        self.leases.iter().find(|lease| lease.lock().as_str() == lock)
    }

    /// All credentials in one, for a connection to the guard's Redis port that works under all of
    /// these locks; the port takes at most 16 at once.
    pub fn fencing_credential(&self) -> String {
        let each: Vec<&str> = self.leases.iter().map(SessionLease::fencing_credential).collect();
        each.join(".")
    }

    /// Nothing, where all of them can be trusted now.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) for the first that cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.leases.iter().try_for_each(SessionLease::check)
    }

    /// Waits until one of them can no longer be trusted. Cancel-safe.
    pub async fn lost(&self) -> Error {
        let Some(first) = self.leases.first() else {
            return std::future::pending().await;
        };
        let mut changed = first.state.changed.subscribe();
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::select! {
                _ = first.state.trust.when_lost() => {}
                _ = changed.changed() => {}
            }
        }
    }

    /// Does `work` under all of them, then releases them. The work is dropped the moment one of them
    /// can no longer be trusted.
    ///
    /// # Errors
    /// As [`Lease::run`](crate::Lease::run).
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        match trust::guard(|| self.check(), self.lost(), work(&self)).await {
            Ok(value) => self.release().await.map(|()| value),
            Err(error) => {
                // Those that are left would otherwise be held by nobody until the session ends.
                self.leases.into_iter().for_each(|lease| drop(lease.start_release()));
                Err(error)
            }
        }
    }

    /// Gives every lock back; the session and its other leases live on.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) where one had ended before; all of them were tried then.
    pub async fn release(self) -> Result<(), Error> {
        let mut result = Ok(());
        let each: Vec<Releasing> =
            self.leases.into_iter().map(SessionLease::start_release).collect();
        for release in each {
            let released = given_back(finished(release).await);
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

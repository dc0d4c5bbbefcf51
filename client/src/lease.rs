//! A lease that is held: renewed in the background, watched here, given back in the end.

mod above_marks;
mod renewal;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{LeaseId, LockName, Token};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

use crate::acquire::Spec;
use crate::clock::{self, Moment};
use crate::late_release::WorkEnd;
use crate::limits::{Hold, WarnedEnds};
use crate::timing::Window;
use crate::trust::{self, Trust};
use crate::{Client, Error, ErrorKind, FencedStore, LostReason, Warning, tasks};

/// A lock that is held.
///
/// It is renewed in the background until it is released or dropped. It can be lost at any time;
/// [`lost`](Self::lost) tells, and fenced calls with a lost lease are refused without being sent.
/// Dropping it never blocks: the release goes out in the background.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    client: Client,
    spec: Spec,
    grant: LeaseReply,
    trust: Arc<Trust>,
    runtime: Handle,
    /// Dropping it stops the renewal.
    renewal: Option<DropGuard>,
    released: bool,
    /// Whether it was granted above a guard's mark because the one before it was below.
    is_above_marks: bool,
}

impl Lease {
    /// A lease that was granted as `spec` asked for; must be called on a runtime.
    pub(crate) fn begin(client: Client, grant: LeaseReply, window: Window, spec: Spec) -> Self {
        let hold = Hold::new(spec.limits, clock::reading());
        let trust = Arc::new(Trust::new(&grant.lock, window, hold));
        let renewal = renewal::Renewal {
            locks: client.locks().clone(),
            trust: Arc::clone(&trust),
            lock: grant.lock.clone(),
            lease_id: grant.lease_id,
            token: grant.token,
            ttl: spec.ttl,
        };
        let renewal = Some(tasks::spawn_until_dropped(renewal.keep()));
        Self {
            client,
            spec,
            grant,
            trust,
            runtime: Handle::current(),
            renewal,
            released: false,
            is_above_marks: false,
        }
    }

    /// The fencing token: higher than that of every grant of this lock before.
    pub fn token(&self) -> Token {
        self.grant.token
    }

    /// The lock.
    pub fn lock(&self) -> &LockName {
        &self.grant.lock
    }

    /// The id of this grant.
    pub fn lease_id(&self) -> LeaseId {
        self.grant.lease_id
    }

    /// The value of the `Fencing-Token` header, for calls to the guard by other means.
    pub fn fencing_token(&self) -> &str {
        &self.grant.fencing_token
    }

    /// The same token as a password for the guard's Redis port: `redis://fence:<credential>@guard`.
    pub fn fencing_credential(&self) -> &str {
        &self.grant.fencing_credential
    }

    /// The grant as the server sent it.
    pub fn grant(&self) -> &LeaseReply {
        &self.grant
    }

    /// For how long this lease may be trusted from now on if no renewal succeeds; zero once it is
    /// lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::reading();
        match self.trust.lost(now) {
            None => self.trust.next_end(now).ends_at.since(now.at),
            Some(_) => Duration::ZERO,
        }
    }

    /// Until when this lease may be trusted if no renewal succeeds and nothing is reported: 0.8 of
    /// its time to live, or sooner where [`progress_within`](crate::LockRequest::progress_within) or
    /// [`max_hold`](crate::LockRequest::max_hold) say so.
    pub fn deadline(&self) -> Moment {
        self.trust.next_end(clock::reading()).ends_at
    }

    /// The work goes on. Where the lease was acquired with
    /// [`progress_within`](crate::LockRequest::progress_within), its time begins anew; otherwise
    /// this only tells whether the lease is live. Cheap: nothing is sent.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it is lost: a report that comes too late brings nothing back.
    pub fn report_progress(&self) -> Result<(), Error> {
        if self.trust.progress(clock::reading()) { Ok(()) } else { self.check() }
    }

    /// Tells when an end of this lease comes near; see
    /// [`warn_before`](crate::LockRequest::warn_before).
    pub fn warnings(&self) -> Warnings {
        Warnings::new(Arc::clone(&self.trust))
    }

    /// What the last renewal allows, with the moments at which things are due.
    pub fn window(&self) -> Window {
        self.trust.window()
    }

    /// Whether this lease can be trusted now. Reads the clock, so that a process that has just
    /// been resumed gets the truth.
    pub fn is_live(&self) -> bool {
        self.trust.lost(clock::reading()).is_none()
    }

    /// Nothing, where this lease can be trusted now.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it cannot.
    pub fn check(&self) -> Result<(), Error> {
        match self.trust.lost(clock::reading()) {
            None => Ok(()),
            Some(reason) => Err(Error::lease_lost(self.lock(), reason)),
        }
    }

    /// Resolves when this lease can no longer be trusted, with the reason. Cancel-safe; resolves
    /// at once for a lease that is lost already.
    ///
    /// A lease that was released or dropped counts as lost when its time has passed.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let trust = Arc::clone(&self.trust);
        async move { trust.when_lost().await }
    }

    /// The guard's objects.
    pub fn objects(&self) -> &FencedStore {
        self.client.objects()
    }

    /// Gives the lock back, and repeats that where the reply was lost.
    ///
    /// A lease that could be trusted when this was called, and expired before the request arrived at
    /// the server, is no error: the work under it has ended in time. The log has a warning then.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when it had ended before: what was done under it may overlap with
    /// another holder's work, unless the guard watched over it.
    /// [`Unavailable`](ErrorKind::Unavailable) or [`OutcomeUnknown`](ErrorKind::OutcomeUnknown)
    /// when the server cannot be reached; the lease then ends by itself.
    pub async fn release(self) -> Result<(), Error> {
        let work_end = WorkEnd::now(&self.trust);
        let lock = self.lock().clone();
        work_end.excuse_late_release(self.release_live().await, &lock, || ())
    }

    /// The same; succeeds only where the lease was live at the server until this moment.
    async fn release_live(mut self) -> Result<(), Error> {
        // Dropping this future before its end leaves the release to the background.
        self.renewal = None;
        let result = self.client.locks().release(self.lock(), self.lease_id()).await;
        self.released = true;
        result
    }

    /// Does `work` under this lease, then releases it.
    ///
    /// The work is dropped the moment the lease can no longer be trusted. The clock is read before
    /// each step of the work, so that a process that was stopped past its deadline does not go on
    /// for even one step.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when the work was cancelled, and also when the work came to its end
    /// but the lease had not lasted until then: its unfenced effects may then overlap with another
    /// holder's. A release that the server could not be told of is no error: the lease ends by
    /// itself.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let value = self.guard(work(&self)).await?;
        let lock = self.lock().clone();
        match self.release().await {
            Ok(()) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%lock, %error, "the lock was not released; it expires by itself");
                Ok(value)
            }
        }
    }

    /// Drives `work` for as long as this lease can be trusted.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let lost = self.lost();
        let lost = async { Error::lease_lost(self.lock(), lost.await) };
        trust::guard(|| self.check(), lost, work).await
    }
}

/// The warnings of a lease or of a session; see [`Lease::warnings`].
#[derive(Debug)]
pub struct Warnings {
    trust: Arc<Trust>,
    warned: WarnedEnds,
}

impl Warnings {
    pub(crate) fn new(trust: Arc<Trust>) -> Self {
        Self { trust, warned: WarnedEnds::default() }
    }

    /// Resolves when the lease will be lost within the time that
    /// [`warn_before`](crate::LockRequest::warn_before) names, unless the work reports or a renewal
    /// succeeds. Each end is told of once, and again when it has moved.
    ///
    /// A renewal that fails is told of no earlier than when half of the trusted time is gone. Never
    /// resolves without `warn_before`, nor once the lease is lost. Cancel-safe.
    pub async fn next(&mut self) -> Warning {
        let warning = self.trust.when_near(&self.warned).await;
        self.warned.record(warning);
        warning
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal = None;
        let ended = matches!(self.trust.lost(clock::reading()), Some(LostReason::Ended(_)));
        if self.released || ended {
            return;
        }
        let locks = self.client.locks().clone();
        let (lock, lease_id) = (self.grant.lock.clone(), self.grant.lease_id);
        self.client.background().spawn_on(&self.runtime, async move {
            if let Err(error) = locks.release(&lock, lease_id).await {
                tracing::debug!(%lock, %lease_id, %error, "a dropped lease was not released");
            }
        });
    }
}

#[cfg(test)]
mod tests;

//! A held lease: renewed in the background, watched by the local clock, released at the end.

mod renewal;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{LeaseId, LockName, Token};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

use crate::clock::{self, Moment};
use crate::fence::sealed::Sealed;
use crate::late_release::WorkEnd;
use crate::limits::{Hold, WarnedEnds};
use crate::lock_spec::Spec;
use crate::timing::Window;
use crate::trust::{self, Trust};
use crate::{Client, Error, ErrorKind, Fence, FencedStore, LostReason, Warning, tasks};

/// Live lease on a lock.
///
/// It is renewed in the background until it is released or dropped. It can be lost at any time:
/// [`lost`](Self::lost) resolves then, and fenced calls with a lost lease fail without being sent.
/// Dropping it never blocks: the release is sent in the background.
#[derive(Debug)]
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    pub(crate) client: Client,
    pub(crate) spec: Spec,
    grant: LeaseReply,
    trust: Arc<Trust>,
    runtime: Handle,
    /// Dropping it stops the renewal.
    renewal: Option<DropGuard>,
    released: bool,
    /// `true` if `reacquire_above` acquired it.
    pub(crate) is_above_marks: bool,
}

impl Lease {
    /// Starts to renew and watch a lease that was granted for `spec`. Panics outside of a runtime.
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

    /// The fencing token: higher than that of every earlier grant of this lock.
    pub fn token(&self) -> Token {
        self.grant.token
    }

    /// The name of the lock.
    pub fn lock(&self) -> &LockName {
        &self.grant.lock
    }

    /// The id of this grant.
    pub fn lease_id(&self) -> LeaseId {
        self.grant.lease_id
    }

    /// The value of the `Fencing-Token` header, for calls to the guard by other HTTP clients.
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

    /// Time for which this lease is trusted from now on if no renewal succeeds; zero once it is
    /// lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::reading();
        match self.trust.lost(now) {
            None => self.trust.next_end(now).ends_at.since(now.at),
            Some(_) => Duration::ZERO,
        }
    }

    /// Moment until which this lease is trusted if no renewal succeeds and no progress is reported:
    /// 0.8 of its time to live, or an earlier end by
    /// [`progress_within`](crate::LockRequest::progress_within) or
    /// [`max_hold`](crate::LockRequest::max_hold).
    pub fn deadline(&self) -> Moment {
        self.trust.next_end(clock::reading()).ends_at
    }

    /// Reports that the work makes progress, which restarts the time of
    /// [`progress_within`](crate::LockRequest::progress_within). Without that limit this is a
    /// [`check`](Self::check). Cheap: nothing is sent.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the lease is lost: a late report does not restore it.
    pub fn report_progress(&self) -> Result<(), Error> {
        if self.trust.progress(clock::reading()) { Ok(()) } else { self.check() }
    }

    /// Warnings before a loss of this lease; see [`warn_before`](crate::LockRequest::warn_before).
    pub fn warnings(&self) -> Warnings {
        Warnings::new(Arc::clone(&self.trust))
    }

    /// Window of the last successful renewal: the moments of renewal, deadline and expiry.
    pub fn window(&self) -> Window {
        self.trust.window()
    }

    /// Returns `true` if this lease can be trusted now. Reads the clock, so the result is right
    /// even in a process that has just resumed.
    pub fn is_live(&self) -> bool {
        self.trust.lost(clock::reading()).is_none()
    }

    /// Checks that this lease can be trusted now. Reads the clock; sends nothing.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if it cannot.
    pub fn check(&self) -> Result<(), Error> {
        match self.trust.lost(clock::reading()) {
            None => Ok(()),
            Some(reason) => Err(Error::lease_lost(self.lock(), reason)),
        }
    }

    /// Resolves to the reason once this lease can no longer be trusted, at once if it is lost
    /// already. Cancel-safe.
    ///
    /// A lease that was released or dropped counts as lost at its deadline.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let trust = Arc::clone(&self.trust);
        async move { trust.when_lost().await }
    }

    /// The objects behind the guard.
    pub fn objects(&self) -> &FencedStore {
        self.client.objects()
    }

    /// Releases the lock; retries for up to 5 s if no reply arrives, and no longer than the lease
    /// lasts.
    ///
    /// A lease that is live when this is called and expires before a reply arrives is no error,
    /// because the work under it ended in time; a warning is logged. Neither is a retry that finds
    /// the lock with the next holder.
    ///
    /// Cancel-safe: if the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the lease had ended before: unfenced effects of the work may
    /// overlap with another holder's. [`Unavailable`](ErrorKind::Unavailable) or
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the server is unreachable; the lease then
    /// expires by itself.
    pub async fn release(self) -> Result<(), Error> {
        let work_end = WorkEnd::now(&self.trust);
        let lock = self.lock().clone();
        work_end.excuse_late_release(self.release_live().await, &lock, || ())
    }

    /// Releases the lock; succeeds only if the lease was live at the server until then.
    pub(crate) async fn release_live(mut self) -> Result<(), Error> {
        // If this future is dropped, `Drop` releases the lock in the background.
        self.renewal = None;
        let release = self.client.locks().release(self.lock(), self.lease_id());
        let result = self.trust.until_expired(release).await;
        self.released = true;
        result
    }

    /// Runs `work` under this lease, then releases it.
    ///
    /// The work is dropped as soon as the lease can no longer be trusted. The clock is read before
    /// each poll of the work, so that a process that was stopped past its deadline takes no further
    /// step.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the work was cancelled, and also if it ended but the lease had
    /// been lost by then: its unfenced effects may overlap with another holder's. A release that
    /// did not reach the server is no error: the lease expires by itself.
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

    /// Drives `work` while this lease can be trusted.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let lost = self.lost();
        let lost = async { Error::lease_lost(self.lock(), lost.await) };
        trust::guard(|| self.check(), lost, work).await
    }
}

impl Sealed for Lease {}

impl Fence for Lease {
    fn fencing_token(&self) -> &str {
        Lease::fencing_token(self)
    }

    fn token(&self) -> Token {
        Lease::token(self)
    }

    fn check(&self) -> Result<(), Error> {
        Lease::check(self)
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

    /// Resolves when the lease will be lost within [`warn_before`](crate::LockRequest::warn_before)
    /// unless the work reports progress or a renewal succeeds. Each end is warned of once, and
    /// again when it has moved.
    ///
    /// The warning about failing renewals comes no earlier than when half of the trusted time has
    /// passed. Never resolves without `warn_before`, nor once the lease is lost. Cancel-safe.
    pub async fn next(&mut self) -> Warning {
        let warning = self.trust.when_near(&self.warned).await;
        self.warned.record(warning);
        warning
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal = None;
        let has_ended = || matches!(self.trust.lost(clock::reading()), Some(LostReason::Ended(_)));
        if self.released || has_ended() {
            return;
        }
        let locks = self.client.locks().clone();
        let trust = Arc::clone(&self.trust);
        let lock = self.grant.lock.clone();
        let lease_id = self.grant.lease_id;
        self.client.background().spawn_on(&self.runtime, async move {
            if let Err(error) = trust.until_expired(locks.release(&lock, lease_id)).await {
                tracing::debug!(%lock, %lease_id, %error, "a dropped lease was not released");
            }
        });
    }
}

#[cfg(test)]
mod tests;

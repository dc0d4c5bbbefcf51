//! Sessions: many leases kept alive by one heartbeat.

mod builder;
mod count;
mod heartbeat;
mod lease;
mod locks;
mod state;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Owner, SessionId};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

pub use self::builder::SessionBuilder;
pub use self::lease::{LeaseSet, SessionLease};
pub use self::locks::{MAX_LOCKS, SessionLocks};
use self::state::SessionState;
use crate::clock::{self, Moment};
use crate::limits::Limits;
use crate::timing::Window;
use crate::trust;
use crate::{Client, Error, ErrorKind, LostReason, Warnings};

/// Session at the lock server: one heartbeat in the background keeps all its leases alive.
///
/// Use it if a process holds more than one lock. Its leases are lost together, at the latest when
/// 0.8 of its time to live has passed without a successful heartbeat. [`end`](Self::end) releases
/// all of them in one step; dropping the session does so in the background.
///
/// ```no_run
/// # async fn example(client: fence_client::Client) -> Result<(), fence_client::Error> {
/// use std::time::Duration;
///
/// let session = client.session().ttl(Duration::from_secs(15)).begin().await?;
/// session
///     .run(async |session| {
///         let from_to = ["accounts/1", "accounts/2"];
///         let held = session.locks(from_to).wait(Duration::from_secs(10)).acquire_all().await?;
///         client.objects().put(&held[0], "accounts/1", "90").await?;
///         client.objects().put(&held[1], "accounts/2", "110").await?;
///         held.release().await
///     })
///     .await?
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a session that is dropped is ended"]
pub struct Session {
    client: Client,
    state: Arc<SessionState>,
    limits: Limits,
    runtime: Handle,
    /// Dropping it stops the heartbeat.
    heartbeat: Option<DropGuard>,
    ended: bool,
}

impl Session {
    /// Begins a session with this time to live; see [`Client::session`] for more options.
    ///
    /// # Errors
    /// As [`SessionBuilder::begin`].
    pub async fn begin(client: &Client, ttl: Duration) -> Result<Self, Error> {
        client.session().ttl(ttl).begin().await
    }

    /// The id of the session at the lock server.
    pub fn id(&self) -> SessionId {
        self.state.id
    }

    /// The owner of the session and of all its leases.
    pub fn owner(&self) -> &Owner {
        &self.state.owner
    }

    /// Time for which the session is trusted from now on if no heartbeat succeeds; zero once it is
    /// lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::reading();
        match self.state.trust.lost(now) {
            None => self.state.trust.next_end(now).ends_at.since(now.at),
            Some(_) => Duration::ZERO,
        }
    }

    /// Moment until which the session is trusted if no heartbeat succeeds and no progress is
    /// reported; as [`Lease::deadline`](crate::Lease::deadline).
    pub fn deadline(&self) -> Moment {
        self.state.trust.next_end(clock::reading()).ends_at
    }

    /// Window of the last successful heartbeat: the moments of heartbeat, deadline and expiry.
    pub fn window(&self) -> Window {
        self.state.trust.window()
    }

    /// Checks that the session can be trusted now. Reads the clock; sends nothing.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if it cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.state.check(&format_args!("session {}", self.state.id))
    }

    /// Reports that the work makes progress; as
    /// [`Lease::report_progress`](crate::Lease::report_progress).
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the session is lost: a late report does not restore
    /// it.
    pub fn report_progress(&self) -> Result<(), Error> {
        if self.state.trust.progress(clock::reading()) { Ok(()) } else { self.check() }
    }

    /// Starts the limits of the session now; see [`SessionBuilder::limits_wait`].
    pub fn start_limits(&self) {
        self.state.trust.limit(self.limits, clock::reading());
    }

    /// Warnings before a loss of the session; see [`SessionBuilder::warn_before`].
    pub fn warnings(&self) -> Warnings {
        Warnings::new(Arc::clone(&self.state.trust))
    }

    /// Waits until the session is lost, and with it every lease. Cancel-safe. For the loss of a
    /// single lease use [`SessionLease::lost`].
    pub async fn lost(&self) -> Error {
        let reason = self.state.trust.when_lost().await;
        Error::lease_lost(&format_args!("session {}", self.state.id), reason)
    }

    /// Returns a request for exclusive leases on all of these locks together; nothing is sent yet.
    /// [`SessionLocks::acquire_all`] reports names that are not valid.
    pub fn locks(&self, names: impl IntoIterator<Item: AsRef<str>>) -> SessionLocks<'_> {
        names.into_iter().fold(self.group(), SessionLocks::exclusive)
    }

    /// Returns an empty request, to acquire locks in several modes together; nothing is sent yet.
    ///
    /// ```no_run
    /// # async fn example(session: fence_client::Session) -> Result<(), fence_client::Error> {
    /// // One of two print jobs that may run at a time, and printer 3 for this job alone.
    /// let held = session.group().permit("printers", 2).exclusive("printers/3").acquire_all().await?;
    /// # held.release().await
    /// # }
    /// ```
    pub fn group(&self) -> SessionLocks<'_> {
        SessionLocks::new(self)
    }

    /// Acquires an exclusive lease on one lock, waiting in its queue for up to `wait`.
    ///
    /// # Cancel safety
    /// As [`SessionLocks::acquire_all`].
    ///
    /// # Errors
    /// As [`SessionLocks::acquire_all`].
    pub async fn acquire(
        &self,
        lock: impl AsRef<str>,
        wait: Duration,
    ) -> Result<SessionLease, Error> {
        let set = self.locks([lock]).wait(wait).acquire_all().await?;
        let lease = set.into_iter().next();
        lease.ok_or_else(|| Error::new(ErrorKind::Internal, "no lease for the one lock"))
    }

    /// Ends the session and all its leases in one step; retries for up to 5 s if no reply arrives,
    /// and no longer than the session lasts. Returns the number of leases. As by
    /// [`Lease::release`](crate::Lease::release), a session that was live when this was called and
    /// expired before a reply arrived is no error.
    ///
    /// Cancel-safe: if the future is dropped, the end continues in the background.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the session had ended before: unfenced effects of the
    /// work may overlap with other holders'. [`Unavailable`](ErrorKind::Unavailable) or
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the server is unreachable; the session then
    /// expires by itself.
    pub async fn end(mut self) -> Result<usize, Error> {
        // If this future is dropped, `Drop` ends the session in the background.
        self.heartbeat = None;
        let count = self.state.bonds().len();
        let work_end = self.state.work_end();
        self.state.trust.end(ENDED);
        let end = self.client.sessions().end(self.state.id);
        let result = self.state.trust.until_expired(end).await;
        self.ended = true;
        let reply = work_end.excuse_late_release(
            result,
            &format_args!("session {}", self.state.id),
            || None,
        )?;
        Ok(reply.map_or(count, |reply| reply.lease_count))
    }

    /// Runs `work` under the session, then ends it. The work is dropped as soon as the session is
    /// lost, as by [`Lease::run`](crate::Lease::run); the loss of a single lease cancels the work
    /// of [`SessionLease::run`].
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the work was cancelled, and also if it ended but the
    /// session had been lost by then. An end that did not reach the server is no error: the session
    /// expires by itself.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let value = trust::guard(|| self.check(), self.lost(), work(&self)).await?;
        let session = self.id();
        match self.end().await {
            Ok(_) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%session, %error, "the session was not ended; it expires by itself");
                Ok(value)
            }
        }
    }

    fn in_background(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.client.background().spawn_on(&self.runtime, task);
    }
}

/// Loss of a session that ended, here or at the server.
const ENDED: LostReason = LostReason::Ended(EndReason::SessionEnded);

impl Drop for Session {
    fn drop(&mut self) {
        self.heartbeat = None;
        // An `end` whose future was dropped is retried here.
        if self.ended {
            return;
        }
        // Before the server can grant the locks to other clients.
        self.state.trust.end(ENDED);
        let sessions = self.client.sessions().clone();
        let trust = Arc::clone(&self.state.trust);
        let session = self.state.id;
        self.in_background(async move {
            if let Err(error) = trust.until_expired(sessions.end(session)).await {
                tracing::debug!(%session, %error, "a dropped session was not ended");
            }
        });
    }
}

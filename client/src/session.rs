//! Many locks under one heartbeat.

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

/// A session at the lock server: one heartbeat in the background keeps every lease of it.
///
/// Take it where a process holds more than one lock. Its leases are lost together, at the latest
/// when 0.8 of its time to live have passed without a heartbeat that succeeded. [`end`](Self::end)
/// frees all of them in one step; dropping the session does it in the background.
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
    /// Begins a session with this time to live; see [`Client::session`] for more than that.
    ///
    /// # Errors
    /// As [`SessionBuilder::begin`].
    pub async fn begin(client: &Client, ttl: Duration) -> Result<Self, Error> {
        client.session().ttl(ttl).begin().await
    }

    /// The id of the session.
    pub fn id(&self) -> SessionId {
        self.state.id
    }

    /// Whose it is, and all its leases.
    pub fn owner(&self) -> &Owner {
        &self.state.owner
    }

    /// For how long its leases may be trusted from now on if no heartbeat succeeds; zero once it is
    /// lost.
    pub fn remaining(&self) -> Duration {
        let now = clock::reading();
        match self.state.trust.lost(now) {
            None => self.state.trust.next_end(now).ends_at.since(now.at),
            Some(_) => Duration::ZERO,
        }
    }

    /// Until when it may be trusted if no heartbeat succeeds and nothing is reported; as
    /// [`Lease::deadline`](crate::Lease::deadline).
    pub fn deadline(&self) -> Moment {
        self.state.trust.next_end(clock::reading()).ends_at
    }

    /// What the last heartbeat allows, with the moments at which things are due.
    pub fn window(&self) -> Window {
        self.state.trust.window()
    }

    /// Nothing, where the session can be trusted now. Reads the clock.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) where it cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.state.check(&format_args!("session {}", self.state.id))
    }

    /// The work goes on; as [`Lease::report_progress`](crate::Lease::report_progress).
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) where the session is lost: a report that comes too late
    /// brings nothing back.
    pub fn report_progress(&self) -> Result<(), Error> {
        if self.state.trust.progress(clock::reading()) { Ok(()) } else { self.check() }
    }

    /// The limits of the session count from now on; see [`SessionBuilder::limits_wait`].
    pub fn start_limits(&self) {
        self.state.trust.limit(self.limits, clock::reading());
    }

    /// Tells when an end of the session comes near; see [`SessionBuilder::warn_before`].
    pub fn warnings(&self) -> Warnings {
        Warnings::new(Arc::clone(&self.state.trust))
    }

    /// Waits until the session is lost, and with it every lease. Cancel-safe. That one lease is lost
    /// and the session is not tells [`SessionLease::lost`].
    pub async fn lost(&self) -> Error {
        let reason = self.state.trust.when_lost().await;
        Error::lease_lost(&format_args!("session {}", self.state.id), reason)
    }

    /// Begins to acquire these locks together, each for this session alone; nothing is sent yet.
    /// Names that are not valid are reported by [`SessionLocks::acquire_all`].
    pub fn locks(&self, names: impl IntoIterator<Item: AsRef<str>>) -> SessionLocks<'_> {
        names.into_iter().fold(self.group(), SessionLocks::exclusive)
    }

    /// Begins to acquire locks of several kinds together; nothing is sent yet.
    ///
    /// ```no_run
    /// # async fn example(session: fence_client::Session) -> Result<(), fence_client::Error> {
    /// // One of the two print jobs that may run at a time, and printer 3 for this one.
    /// let held = session.group().permit("printers", 2).exclusive("printers/3").acquire_all().await?;
    /// # held.release().await
    /// # }
    /// ```
    pub fn group(&self) -> SessionLocks<'_> {
        SessionLocks::new(self)
    }

    /// Acquires one lock, waiting in its queue for up to `wait`.
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

    /// Ends the session and every lease of it in one step, and repeats that where the reply was
    /// lost; returns how many leases there were. A session that could be trusted when this was called,
    /// and expired before the request arrived at the server, is no error, as by
    /// [`Lease::release`](crate::Lease::release).
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) where it had ended before: what was done under its leases
    /// may overlap with other holders' work, unless the guard watched over it.
    /// [`Unavailable`](ErrorKind::Unavailable) or [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) where
    /// the server cannot be told; it then ends at its time.
    pub async fn end(mut self) -> Result<usize, Error> {
        // Dropping this future before its end leaves the rest to the background.
        self.heartbeat = None;
        let count = self.state.bonds().len();
        let work_end = self.state.work_end();
        self.state.trust.end(ENDED);
        let result = self.client.sessions().end(self.state.id).await;
        self.ended = true;
        let reply = work_end.excuse_late_release(
            result,
            &format_args!("session {}", self.state.id),
            || None,
        )?;
        Ok(reply.map_or(count, |reply| reply.lease_count))
    }

    /// Does `work` while the session lives, then ends it. The work is dropped the moment the session
    /// is lost, as by [`Lease::run`](crate::Lease::run); for one lease of it that is lost alone see
    /// [`SessionLease::run`].
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost) when the work was cancelled, and also when the work came
    /// to its end but the session had not lasted until then. An end that the server could not be told
    /// of is no error: the session ends by itself.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let value = trust::guard(|| self.check(), self.lost(), work(&self)).await?;
        let session = self.id();
        match self.end().await {
            Ok(_) => Ok(value),
            Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%session, %error, "the session was not ended; it ends by itself");
                Ok(value)
            }
        }
    }

    fn in_background(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.client.background().spawn_on(&self.runtime, task);
    }
}

/// It ended, here or at the server.
const ENDED: LostReason = LostReason::Ended(EndReason::SessionEnded);

impl Drop for Session {
    fn drop(&mut self) {
        self.heartbeat = None;
        // An `end` that was dropped before its end comes here too, and is repeated.
        if self.ended {
            return;
        }
        // Before the server lets anybody else have them.
        self.state.trust.end(ENDED);
        let (sessions, session) = (self.client.sessions().clone(), self.state.id);
        self.in_background(async move {
            if let Err(error) = sessions.end(session).await {
                tracing::debug!(%session, %error, "a dropped session was not ended");
            }
        });
    }
}

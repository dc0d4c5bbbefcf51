//! The builder of a session, and the requests that begin it.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::wire::session::{SessionReply, SessionRequest};
use fence_protocol::{SessionId, Ttl};
use tokio::runtime::Handle;

use super::state::SessionState;
use super::{Session, heartbeat};
use crate::clock::{self, Moment};
use crate::limits::{Hold, Limits};
use crate::locks::CALL_TIMEOUT;
use crate::retries::{Retries, WaitTimes};
use crate::timing::{self, Window};
use crate::transport::Effect;
use crate::trust::Trust;
use crate::{Client, Error, ErrorKind, ids, lock_spec, tasks};

/// Builder of a [`Session`]; see [`Client::session`].
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `begin`"]
pub struct SessionBuilder {
    client: Client,
    ttl: Duration,
    times: WaitTimes,
    metadata: Option<serde_json::Value>,
    limits: Limits,
    limits_wait: bool,
}

impl Client {
    /// Returns a builder of a session, whose single heartbeat keeps any number of leases alive;
    /// nothing is sent yet.
    pub fn session(&self) -> SessionBuilder {
        SessionBuilder {
            client: self.clone(),
            ttl: Ttl::DEFAULT.duration(),
            times: WaitTimes::default(),
            metadata: None,
            limits: Limits::default(),
            limits_wait: false,
        }
    }
}

impl SessionBuilder {
    /// Starts the limits (progress, longest hold, warnings) at [`Session::start_limits`] and not at
    /// the begin of the session: for a session that first waits for its locks.
    pub fn limits_wait(self) -> Self {
        Self { limits_wait: true, ..self }
    }

    /// Time to live of the session without a heartbeat: 15 s by default, at most a day. The session
    /// is trusted on this machine for 0.8 of that, and a heartbeat is sent every third of it.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Time for which requests to an unreachable server are retried: 5 s by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.times.patience = patience;
        self
    }

    /// Retries an unreachable server for `wait` alone; the patience, which begins after it, is for
    /// requests whose outcome is unknown.
    pub fn bounded(mut self, wait: Duration) -> Self {
        self.times.wait = wait;
        self.times.is_bounded = true;
        self
    }

    /// JSON shown to people who inspect the session.
    pub fn metadata(self, metadata: serde_json::Value) -> Self {
        Self { metadata: Some(metadata), ..self }
    }

    /// Longest time between two calls of [`Session::report_progress`], at least 1 ms; after it the
    /// session is lost, as by
    /// [`LockRequest::progress_within`](crate::LockRequest::progress_within).
    pub fn progress_within(mut self, limit: Duration) -> Self {
        self.limits.progress_within = Some(limit);
        self
    }

    /// Longest life of the session, heartbeats included, at least 1 ms. After it the session is
    /// lost.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.limits.max_hold = Some(limit);
        self
    }

    /// Time before a loss of the session at which [`Session::warnings`] resolves. Must be less than
    /// the other limits. No warnings by default.
    pub fn warn_before(mut self, time: Duration) -> Self {
        self.limits.warn_before = Some(time);
        self
    }

    /// Begins the session. Its owner is the client's.
    ///
    /// After a lost reply or an unavailable server the request is retried with the same session id,
    /// so that there is never more than one session. If the session has ended before the reply
    /// arrives, another one is begun while the patience lasts.
    ///
    /// Cancel-safe: if the future is dropped, a session that it may have begun is ended in the
    /// background.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a time that breaks a rule or that the server does not
    /// accept, [`Unavailable`](ErrorKind::Unavailable) and
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the server is unreachable, does not reply,
    /// or replies too late for the time to live.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn begin(self) -> Result<Session, Error> {
        self.limits.check()?;
        lock_spec::metadata(self.metadata.as_ref())?;
        let ttl = Ttl::try_from(self.ttl)?;
        let (reply, window) = self.obtain(ttl).await?;
        let first = if self.limits_wait { Limits::default() } else { self.limits };
        let hold = Hold::new(first, clock::reading());
        let trust = Trust::new(format_args!("session {}", reply.session_id), window, hold);
        let state = Arc::new(SessionState::new(reply.session_id, reply.owner, ttl, trust));
        let heartbeat = heartbeat::keep(self.client.clone(), Arc::clone(&state));
        Ok(Session {
            client: self.client,
            state,
            limits: self.limits,
            runtime: Handle::current(),
            heartbeat: Some(tasks::spawn_until_dropped(heartbeat)),
            ended: false,
        })
    }

    /// Begins a session at the server; returns it with its window, which has not passed yet.
    async fn obtain(&self, ttl: Ttl) -> Result<(SessionReply, Window), Error> {
        let retries = Retries::new(clock::now(), self.times);
        let patience_until = retries.unknown_until;
        for attempt in 1.. {
            let request = SessionRequest {
                ttl_ms: ttl,
                owner: self.client.owner().clone(),
                session_id: Some(ids::session_id()),
                metadata: self.metadata.clone(),
            };
            let mut claim = SessionClaim::new(&self.client, request.session_id, ttl);
            let begun =
                self.client.sessions().begin(&request, &retries, self.client.observer()).await;
            let (sent_at, reply) = begun.inspect_err(|error| claim.record_failure(error))?;
            let window = Window::of_reply(sent_at, reply.expires_in_ms, ttl);
            let obtained = if window.is_worn(clock::now()) {
                confirm(&self.client, reply, ttl, patience_until).await?
            } else {
                Some((reply, window))
            };
            // Nothing is left to end: the caller has the session now, or the server has ended it.
            claim.session = None;
            if let Some(obtained) = obtained {
                return Ok(obtained);
            }
            pause(attempt, patience_until, ttl).await?;
        }
        unreachable!("the loop has no end but its returns")
    }
}

/// Sends heartbeats until a reply arrives within its window; `None` if the session has ended.
async fn confirm(
    client: &Client,
    begun: SessionReply,
    ttl: Ttl,
    patience_until: Moment,
) -> Result<Option<(SessionReply, Window)>, Error> {
    let timeout = CALL_TIMEOUT.min(ttl.duration() * 2);
    loop {
        let sent_at = clock::now();
        match client.sessions().heartbeat_once(begun.session_id, timeout).await {
            Ok(reply) => {
                let window = Window::of_reply(sent_at, reply.expires_in_ms, ttl);
                if window.is_live(clock::now()) {
                    return Ok(Some((reply, window)));
                }
            }
            Err(failure) if heartbeat::is_over(&failure) => return Ok(None),
            Err(failure) => {
                let error = failure.into_error("begin a session", Effect::Changes);
                let is_passing =
                    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
                if !is_passing || clock::now() >= patience_until {
                    return Err(error);
                }
            }
        }
        pause(1, patience_until, ttl).await?;
    }
}

/// Pauses before the next attempt; the error if the patience has ended.
async fn pause(attempt: u32, patience_until: Moment, ttl: Ttl) -> Result<(), Error> {
    let pause = timing::pause(attempt, ids::random());
    if clock::now() >= patience_until {
        let message = format!(
            "begin a session: replies take too long for a time to live of {ttl}; retry, or ask for a \
             longer time to live"
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

/// A session that the server may have begun. Dropping it ends the session in the background, so
/// that a begin that failed or was dropped leaves no session until its time to live has passed.
struct SessionClaim<'a> {
    client: &'a Client,
    session: Option<SessionId>,
    ttl: Ttl,
    runtime: Handle,
}

impl<'a> SessionClaim<'a> {
    fn new(client: &'a Client, session: Option<SessionId>, ttl: Ttl) -> Self {
        Self { client, session, ttl, runtime: Handle::current() }
    }

    /// Records the failure of the request; only if an outcome is unknown, a session may have been
    /// begun.
    fn record_failure(&mut self, error: &Error) {
        if error.outcome() != Some(WriteOutcome::Unknown) {
            self.session = None;
        }
    }
}

impl Drop for SessionClaim<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session else {
            return;
        };
        let sessions = self.client.sessions().clone();
        let expires_at = clock::now().plus(self.ttl.duration());
        self.client.background().release_on(&self.runtime, expires_at, async move {
            if let Err(error) = sessions.end(session).await {
                tracing::debug!(%session, %error, "an undelivered session was not ended");
            }
        });
    }
}

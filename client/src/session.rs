//! Many locks under one heartbeat.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fence_protocol::wire::lock::{AcquireRequest, LeaseReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionReply, SessionRequest};
use fence_protocol::{Code, LeaseId, LockName, Owner, SessionId, Token, Ttl};
use reqwest::Method;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use crate::locks::CALL_TIMEOUT;
use crate::timing::{self, Window};
use crate::transport::{Effect, Failure};
use crate::{Client, Error, LostReason, clock, ids, tasks};

/// The longest reply to the end of a session, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// How often a call is sent again whose reply was lost: its id makes that harmless.
const ATTEMPTS_MAX: u32 = 3;

/// A session at the lock server: one heartbeat in the background keeps every lease of it.
///
/// Take it where a process holds more than one lock. Its leases are lost together, at the latest
/// when 0.8 of its time to live have passed without a heartbeat that succeeded. Dropping it stops
/// the heartbeat, so that the server ends it at its time; [`end`](Self::end) does it at once.
#[derive(Debug)]
#[must_use = "a session that is dropped gets no heartbeat any more"]
pub struct Session {
    client: Client,
    state: Arc<State>,
    _heartbeat: DropGuard,
}

#[derive(Debug)]
struct State {
    id: SessionId,
    owner: Owner,
    window: Mutex<Window>,
    lost: watch::Sender<Option<LostReason>>,
}

/// A lease that lives as long as its [`Session`].
///
/// It renews nothing itself. Dropping it keeps the lock until the session ends;
/// [`release`](Self::release) gives it back.
#[derive(Clone, Debug)]
pub struct SessionLease {
    client: Client,
    state: Arc<State>,
    grant: LeaseReply,
}

impl Session {
    /// Begins a session; must be called on a runtime.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a time to live that the server does not take,
    /// [`Unavailable`](crate::ErrorKind::Unavailable) where it cannot be reached.
    pub async fn begin(client: &Client, ttl: Duration) -> Result<Self, Error> {
        let request = SessionRequest {
            ttl_ms: Ttl::try_from(ttl)?,
            owner: client.owner().clone(),
            session_id: Some(ids::session_id()),
            metadata: None,
        };
        let mut attempt = 1;
        let (sent_at, reply) = loop {
            let sent_at = clock::now();
            let endpoint = client.locks().endpoint();
            match endpoint.post::<SessionReply>("/v1/sessions", &request, CALL_TIMEOUT).await {
                Ok(reply) => break (sent_at, reply),
                Err(Failure::NoReply(_)) if attempt < ATTEMPTS_MAX => attempt += 1,
                Err(failure) => return Err(failure.into_error("begin a session", Effect::Changes)),
            }
        };
        let state = Arc::new(State {
            id: reply.session_id,
            owner: reply.owner,
            window: Mutex::new(Window::new(sent_at, reply.expires_in_ms.min(request.ttl_ms.ms()))),
            lost: watch::channel(None).0,
        });
        let heartbeat = keep(client.clone(), Arc::clone(&state), request.ttl_ms);
        let heartbeat = tasks::spawn_until_dropped(heartbeat);
        Ok(Self { client: client.clone(), state, _heartbeat: heartbeat })
    }

    /// The id of the session.
    pub fn id(&self) -> SessionId {
        self.state.id
    }

    /// For how long its leases may be trusted if no heartbeat succeeds; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.state.window().remaining(clock::now());
        if self.state.lost.borrow().is_some() { Duration::ZERO } else { remaining }
    }

    /// Waits until the session is lost, and with it every lease. Cancel-safe.
    pub async fn lost(&self) -> Error {
        let mut lost = self.state.lost.subscribe();
        loop {
            if let Err(error) = self.state.check(&self.state.id) {
                return error;
            }
            tokio::select! {
                _ = lost.changed() => {}
                () = clock::sleep_until(self.state.window().deadline()) => {}
            }
        }
    }

    /// Acquires `lock`, waiting in its queue for up to `wait`.
    ///
    /// # Errors
    /// [`Contended`](crate::ErrorKind::Contended) where it is held by another for longer,
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) where the session is lost,
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) where no reply came: what may have been
    /// granted ends with the session.
    ///
    /// # Cancel safety
    /// A waiting request that is dropped leaves the queue; a grant that it may have got lives as
    /// long as the session.
    pub async fn acquire(
        &self,
        lock: impl AsRef<str>,
        wait: Duration,
    ) -> Result<SessionLease, Error> {
        let lock = LockName::new(lock.as_ref())?;
        self.state.check(&lock)?;
        let request = AcquireRequest {
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            owner: Some(self.state.owner.clone()),
            lease_id: Some(ids::lease_id()),
            session_id: Some(self.state.id),
            ..AcquireRequest::default()
        };
        let mut attempt = 1;
        let grant = loop {
            match self.client.locks().acquire(&lock, &request).await {
                Ok(grant) => break grant,
                Err(Failure::NoReply(_)) if attempt < ATTEMPTS_MAX => attempt += 1,
                Err(failure) => {
                    if let Some(reason) = ended(&failure) {
                        self.state.lose(reason);
                        return Err(Error::lease_lost(&lock, reason));
                    }
                    return Err(failure.into_error(&format!("acquire {lock}"), Effect::Changes));
                }
            }
        };
        let lease =
            SessionLease { client: self.client.clone(), state: Arc::clone(&self.state), grant };
        // The wait may have outlasted the session.
        lease.check()?;
        Ok(lease)
    }

    /// Ends the session and every lease of it; tells how many there were.
    ///
    /// # Errors
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) where it had ended before,
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) where no reply came: it then ends at its
    /// time.
    pub async fn end(self) -> Result<usize, Error> {
        let path = format!("/v1/sessions/{}", self.state.id);
        let ended_here = LostReason::Ended(fence_protocol::wire::lock::EndReason::SessionEnded);
        self.state.lose(ended_here);
        match delete(&self.client, &path).await {
            Ok(reply) => Ok(reply.lease_count),
            Err(failure) => match ended(&failure) {
                Some(reason) => Err(Error::lease_lost(&self.state.id, reason)),
                None => Err(failure.into_error("end the session", Effect::Changes)),
            },
        }
    }
}

impl State {
    fn window(&self) -> Window {
        *self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lost is for ever: the work has been told to stop.
    fn lose(&self, reason: LostReason) {
        self.lost.send_if_modified(|lost| {
            let is_news = lost.is_none();
            lost.get_or_insert(reason);
            is_news
        });
    }

    fn check(&self, what: &impl std::fmt::Display) -> Result<(), Error> {
        if !self.window().is_live(clock::now()) {
            self.lose(LostReason::Deadline);
        }
        let lost = *self.lost.borrow();
        lost.map_or(Ok(()), |reason| Err(Error::lease_lost(what, reason)))
    }

    fn extend(&self, window: Window) {
        // A heartbeat that comes too late brings nothing back.
        if self.check(&self.id).is_ok() {
            *self.window.lock().unwrap_or_else(PoisonError::into_inner) = window;
        }
    }
}

/// Sends heartbeats at a third of the time to live until the session is lost.
async fn keep(client: Client, state: Arc<State>, ttl: Ttl) {
    let path = format!("/v1/sessions/{}/heartbeat", state.id);
    let mut attempt = 0;
    while state.check(&state.id).is_ok() {
        if attempt == 0 {
            clock::sleep_until(state.window().renew_at()).await;
        } else {
            tokio::time::sleep(timing::pause(attempt, ids::random())).await;
        }
        let sent_at = clock::now();
        let timeout = state.window().renewal_timeout(sent_at);
        let endpoint = client.locks().endpoint();
        match endpoint.post::<SessionReply>(&path, &json!({}), timeout).await {
            Ok(reply) => {
                // A server that answers with more time than was asked for is not believed.
                state.extend(Window::new(sent_at, reply.expires_in_ms.min(ttl.ms())));
                attempt = 0;
            }
            Err(failure) => {
                if let Some(reason) = ended(&failure) {
                    return state.lose(reason);
                }
                let (session, reason) = (state.id, failure.reason());
                tracing::warn!(%session, attempt, "a heartbeat failed: {reason}");
                attempt += 1;
            }
        }
    }
}

async fn delete(client: &Client, path: &str) -> Result<SessionEndedReply, Failure> {
    let endpoint = client.locks().endpoint();
    let request = endpoint.request(Method::DELETE, path, CALL_TIMEOUT);
    endpoint.send(request, REPLY_BYTES_MAX).await?.json()
}

/// Whether the server says that the session has ended.
fn ended(failure: &Failure) -> Option<LostReason> {
    let session_ended = fence_protocol::wire::lock::EndReason::SessionEnded;
    match failure {
        Failure::Refused(problem, _)
            if matches!(problem.code, Code::SessionEnded | Code::SessionUnknown) =>
        {
            Some(LostReason::Ended(session_ended))
        }
        _ => None,
    }
}

impl SessionLease {
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

    /// The value of the `Fencing-Token` header.
    pub fn fencing_token(&self) -> &str {
        &self.grant.fencing_token
    }

    /// Whether it can be trusted now: as long as its session can.
    ///
    /// # Errors
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) where it cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.state.check(&self.grant.lock)
    }

    /// Gives the lock back; the session and its other leases live on.
    ///
    /// # Errors
    /// [`LeaseLost`](crate::ErrorKind::LeaseLost) where it had ended before.
    pub async fn release(self) -> Result<(), Error> {
        self.client.locks().release(&self.grant.lock, self.grant.lease_id).await
    }
}

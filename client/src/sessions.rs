//! The lock server's session API, one method a call, for tools. Programs that hold locks use
//! [`Client::session`](crate::Client::session).

use std::time::Duration;

use fence_protocol::wire::session::{
    BlockRequest, SessionEndReason, SessionEndedReply, SessionPage, SessionReply, SessionRequest,
};
use fence_protocol::{Code, Owner, SessionId};
use reqwest::Method;
use serde_json::json;

use crate::clock::{self, Moment};
use crate::locks::CALL_TIMEOUT;
use crate::retries::{Retries, WaitTimes};
use crate::sent_change::{self, SentChange, is_outcome_unknown, is_passing};
use crate::transport::{Effect, Endpoint, Failure};
use crate::wait_observer::{Unobserved, WaitObserver};
use crate::{Error, ErrorKind, ids, timing};

/// Longest reply to the end of a session, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Time for which an end is retried; after it the session expires by itself.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The session API, one method a call; see [`Client::sessions`](crate::Client::sessions).
///
/// It neither sends heartbeats in the background nor watches a deadline. Every future may be
/// dropped at any time; the outcome of a change is then unknown.
#[derive(Clone, Debug)]
pub struct Sessions {
    endpoint: Endpoint,
}

impl Sessions {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Begins a session, with retries only if there is a session id in the request, which makes it
    /// idempotent. Returns also when the successful attempt was sent.
    pub(crate) async fn begin(
        &self,
        request: &SessionRequest,
        retries: &Retries,
        observer: &dyn WaitObserver,
    ) -> Result<(Moment, SessionReply), Error> {
        let mut sent = SentChange::default();
        for attempt in 1.. {
            let sent_at = clock::now();
            let timeout = retries.timeout(sent_at, CALL_TIMEOUT);
            let posted = self.endpoint.post("/v1/sessions", request, timeout);
            let failure = match posted.await {
                Ok(reply) => return Ok((sent_at, reply)),
                Err(failure) => failure,
            };
            let limit = match is_outcome_unknown(&failure) {
                true => retries.unknown_until,
                false => retries.unavailable_until,
            };
            let pause = timing::pause(attempt, ids::random());
            let pause = pause.max(failure.retry_after().unwrap_or_default());
            let now = clock::now();
            let is_retried = request.session_id.is_some() && is_passing(&failure);
            if !is_retried || now.plus(pause) >= limit {
                return Err(sent.error("begin a session", failure));
            }
            sent.record(&failure);
            let reason = failure.reason();
            observer.retrying(&reason, retries.unavailable_until.since(now));
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop has no end but its returns")
    }

    /// Begins a session; not retried. With a `session_id` in the request the call is idempotent.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a time to live that the server does not accept, or an id of
    /// another owner's session; [`ErrorKind::Unavailable`] if the server is unreachable or at its
    /// limit of sessions.
    pub async fn create(&self, request: &SessionRequest) -> Result<SessionReply, Error> {
        let once = WaitTimes { patience: Duration::ZERO, ..WaitTimes::default() };
        let retries = Retries::new(clock::now(), once);
        Ok(self.begin(request, &retries, &Unobserved).await?.1)
    }

    /// Sends one heartbeat without retries; times out after `timeout`.
    pub(crate) async fn heartbeat_once(
        &self,
        session: SessionId,
        timeout: Duration,
    ) -> Result<SessionReply, Failure> {
        let path = format!("/v1/sessions/{session}/heartbeat");
        let reply: SessionReply = self.endpoint.post(&path, &json!({}), timeout).await?;
        if reply.session_id == session { Ok(reply) } else { Err(mixed_up(session, &reply)) }
    }

    /// Renews a session and all its leases. Not retried.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the session has ended or is unknown; [`ErrorKind::Invalid`] if
    /// it is blocked.
    pub async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, Error> {
        let sent = self.heartbeat_once(session, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("heartbeat {session}"), Effect::Changes))
    }

    /// Ends a session and its leases; retries for up to 5 s if no reply arrives. `None` if an
    /// attempt of this call ended it and its reply was lost.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the session had ended before or is unknown;
    /// [`ErrorKind::OutcomeUnknown`] if an attempt may have ended it and no retry gets a reply.
    pub async fn end(&self, session: SessionId) -> Result<Option<SessionEndedReply>, Error> {
        let path = format!("/v1/sessions/{session}");
        let send = || async {
            let request = self.endpoint.request(Method::DELETE, &path, END_PATIENCE);
            self.endpoint.send(request, REPLY_BYTES_MAX).await?.json()
        };
        let what = format!("end session {session}");
        sent_change::until_settled(&what, END_PATIENCE, send, was_ended_by_its_client).await
    }

    /// Makes the server refuse further heartbeats of a session, for an operator: the session
    /// expires after its time to live, and only then its locks are free.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the session has ended or is unknown.
    pub async fn block(&self, session: SessionId, reason: Owner) -> Result<SessionReply, Error> {
        let path = format!("/v1/sessions/{session}/block");
        let sent = self.endpoint.post(&path, &BlockRequest { reason }, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("block {session}"), Effect::Changes))
    }

    /// Returns a live session with up to 100 of its leases.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] if the session has ended or is unknown.
    pub async fn show(&self, session: SessionId) -> Result<SessionReply, Error> {
        let sent = self.endpoint.get(&format!("/v1/sessions/{session}"), CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("show {session}"), Effect::Reads))
    }

    /// Returns a page of at most `limit` live sessions with ids after `after`, ordered by id.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable, [`ErrorKind::Invalid`] for a limit
    /// above the server's.
    pub async fn list(&self, after: Option<SessionId>, limit: usize) -> Result<SessionPage, Error> {
        let after = after.map_or_else(String::new, |after| format!("&after={after}"));
        let path = format!("/v1/sessions?limit={limit}{after}");
        let sent = self.endpoint.get(&path, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error("list sessions", Effect::Reads))
    }
}

fn was_ended_by_its_client(failure: &Failure) -> bool {
    failure.problem().is_some_and(|problem| {
        problem.code == Code::SessionEnded
            && problem.extension("reason") == Some(SessionEndReason::Ended)
    })
}

/// Failure of a reply about another session than requested: nothing in it can be trusted.
fn mixed_up(session: SessionId, reply: &SessionReply) -> Failure {
    let message =
        format!("the reply to a request about session {session} is about {}", reply.session_id);
    Failure::Unusable(Error::new(ErrorKind::Internal, message))
}

//! The lock server's calls about sessions, one by one: for tools. Programs that hold locks use
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
use crate::transport::{Effect, Endpoint, Failure};
use crate::{Error, ErrorKind, ids, timing};

/// The longest reply to the end of a session, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// How long an end is tried before it is left to the session's own time to live.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The calls about sessions, one to one.
///
/// Nothing here sends heartbeats in the background or watches a deadline. Every call may be dropped
/// at any time; whether a change was done is then not known.
#[derive(Clone, Debug)]
pub struct Sessions {
    endpoint: Endpoint,
}

impl Sessions {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }

    /// Begins a session, and repeats that for up to `patience` where no reply came; with an id in
    /// the request that is harmless, and without one it is not repeated. Also tells when the request
    /// was sent that the reply is to.
    pub(crate) async fn begin(
        &self,
        request: &SessionRequest,
        patience: Duration,
    ) -> Result<(Moment, SessionReply), Error> {
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let give_up_at = clock::now().plus_ms(patience_ms);
        for attempt in 1.. {
            let sent_at = clock::now();
            let sent = self.endpoint.post("/v1/sessions", request, CALL_TIMEOUT);
            let failure = match sent.await {
                Ok(reply) => return Ok((sent_at, reply)),
                Err(failure) => failure,
            };
            let error = failure.into_error("begin a session", Effect::Changes);
            let again = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
            let pause = timing::pause(attempt, ids::random());
            let pause = pause.max(error.retry_after().unwrap_or_default());
            let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            if !again
                || request.session_id.is_none()
                || clock::now().plus_ms(pause_ms) >= give_up_at
            {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop has no end but its returns")
    }

    /// Begins a session. With a `session_id` in the request a repeat gets the same session.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a time to live that the server does not take, or where the id is
    /// another owner's; [`ErrorKind::Unavailable`] where the server cannot be reached, or has as many
    /// sessions as it takes.
    pub async fn create(&self, request: &SessionRequest) -> Result<SessionReply, Error> {
        Ok(self.begin(request, Duration::ZERO).await?.1)
    }

    /// One heartbeat, without repeats; gives up after `timeout`.
    pub(crate) async fn heartbeat_once(
        &self,
        session: SessionId,
        timeout: Duration,
    ) -> Result<SessionReply, Failure> {
        let path = format!("/v1/sessions/{session}/heartbeat");
        let reply: SessionReply = self.endpoint.post(&path, &json!({}), timeout).await?;
        if reply.session_id == session { Ok(reply) } else { Err(mixed_up(session, &reply)) }
    }

    /// Gives a session, and every lease of it, its time again.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it has ended or is not known; [`ErrorKind::Invalid`] where it
    /// is blocked.
    pub async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, Error> {
        let sent = self.heartbeat_once(session, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("heartbeat {session}"), Effect::Changes))
    }

    /// Ends a session and its leases, and repeats that for up to 5 s where no reply came. `None`
    /// where an attempt of this very call whose reply was lost had ended it.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it had ended before, or is not known.
    pub async fn end(&self, session: SessionId) -> Result<Option<SessionEndedReply>, Error> {
        let path = format!("/v1/sessions/{session}");
        let give_up_at = clock::now().plus_ms(END_PATIENCE.as_millis() as u64);
        let mut maybe_done = false;
        for attempt in 1.. {
            let request = self.endpoint.request(Method::DELETE, &path, END_PATIENCE);
            let sent = self.endpoint.send(request, REPLY_BYTES_MAX).await;
            let failure = match sent.and_then(|reply| reply.json()) {
                Ok(reply) => return Ok(Some(reply)),
                Err(failure) => failure,
            };
            if maybe_done && was_ended_by_its_client(&failure) {
                return Ok(None);
            }
            maybe_done |= !matches!(failure, Failure::NotSent(_));
            let error = failure.into_error(&format!("end session {session}"), Effect::Changes);
            let again = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::OutcomeUnknown);
            let pause = timing::pause(attempt, ids::random());
            if !again || clock::now().plus_ms(pause.as_millis() as u64) >= give_up_at {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
        unreachable!("the loop has no end but its returns")
    }

    /// Refuses the heartbeats of a session from now on, for an operator: it ends by itself when its
    /// time to live has passed, and only then are its locks free.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it has ended or is not known.
    pub async fn block(&self, session: SessionId, reason: Owner) -> Result<SessionReply, Error> {
        let path = format!("/v1/sessions/{session}/block");
        let sent = self.endpoint.post(&path, &BlockRequest { reason }, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("block {session}"), Effect::Changes))
    }

    /// A live session, with up to 100 of its leases.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] where it has ended or is not known.
    pub async fn show(&self, session: SessionId) -> Result<SessionReply, Error> {
        let sent = self.endpoint.get(&format!("/v1/sessions/{session}"), CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error(&format!("show {session}"), Effect::Reads))
    }

    /// A page of the live sessions, in the order of their ids.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server cannot be reached, [`ErrorKind::Invalid`] for a
    /// limit beyond the server's.
    pub async fn list(&self, after: Option<SessionId>, limit: usize) -> Result<SessionPage, Error> {
        let after = after.map_or_else(String::new, |after| format!("&after={after}"));
        let path = format!("/v1/sessions?limit={limit}{after}");
        let sent = self.endpoint.get(&path, CALL_TIMEOUT).await;
        sent.map_err(|failure| failure.into_error("list sessions", Effect::Reads))
    }
}

fn was_ended_by_its_client(failure: &Failure) -> bool {
    match failure {
        Failure::Refused(problem, _) => {
            problem.code == Code::SessionEnded
                && problem.extension("reason") == Some(SessionEndReason::Ended)
        }
        _ => false,
    }
}

/// A reply about something else than was asked cannot be trusted with anything.
fn mixed_up(session: SessionId, reply: &SessionReply) -> Failure {
    let message = format!("asked about session {session}, answered about {}", reply.session_id);
    Failure::Unusable(Error::new(ErrorKind::Internal, message))
}

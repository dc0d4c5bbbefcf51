//! HTTP client for the upstream: no retries of what may have been sent, no redirects.
//!
//! A connection is driven by the task of its request, and rests in the pool of its thread between
//! two of them. The pool's library would need a task and several wake-ups a request, and has no
//! bound on how stale a connection may be that fits writes.

mod connection;
mod io;
mod pool;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use service_kit::tasks::Tasks;
use tower::ServiceExt as _;

use super::term::Term;
use super::upstream::Upstream;
use crate::https::{Connector, Https};

pub(super) use self::connection::Connection;
use self::io::ProbedIo;
use self::pool::Pool;

/// Body of a request: received whole, or streamed.
pub(super) type UpstreamBody = Either<Full<Bytes>, Body>;

/// Failure of a request without a reply.
#[derive(Debug)]
pub(super) enum Lost {
    /// Nothing was sent: there is no connection, or it had ended before the request's turn.
    NotSent(String),
    /// Nothing was sent: the guard's term has ended.
    NotLeader,
    /// It was sent, in whole or in part.
    Unknown(String),
}

/// Sender of requests to the upstream, in one term. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Client {
    connector: Connector,
    https: Https,
    origin: Uri,
    pool: Arc<Pool>,
    term: Term,
    unacknowledged: Option<Duration>,
}

impl Client {
    /// Makes a client. Connecting, with the TLS handshake, gets half of the time of a request, so
    /// that a failure to connect is never taken for a lost reply.
    pub(super) fn new(upstream: &Upstream, term: Term, tasks: &Tasks) -> Self {
        let pool = Arc::new(Pool::new(upstream.idle));
        Pool::start_pruning(&pool, tasks);
        Self {
            connector: upstream.https.connector(upstream.timeout / 2),
            https: upstream.https.clone(),
            origin: upstream.url.base().parse().unwrap_or_default(),
            pool,
            unacknowledged: term.is_limited().then(|| upstream.unacknowledged()),
            term,
        }
    }

    /// Term in which requests may be sent.
    pub(super) fn term(&self) -> &Term {
        &self.term
    }

    /// Sends a request and awaits the head of the reply. The body needs the connection to be
    /// driven on.
    ///
    /// A connection that ended before the request's turn hands it back, and then a new one is made:
    /// nothing was sent. Anything else that breaks before the reply is an unknown outcome.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the upstream may still act on the request.
    pub(super) async fn send(
        &self,
        mut request: Request<UpstreamBody>,
    ) -> Result<(Box<Connection>, Response<Incoming>), Lost> {
        if !self.term.holds() {
            return Err(Lost::NotLeader);
        }
        while let Some(mut connection) = self.pool.take() {
            if !poll_fn(|cx| Poll::Ready(connection.is_usable(cx))).await {
                continue;
            }
            match connection.send(request).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.lost(&connection, error.error())),
                },
            }
        }
        // Boxed: it is large and rare, and every request would move room for it.
        let mut connection = Box::pin(self.connect()).await?;
        match connection.send(request).await {
            Ok(response) => Ok((connection, response)),
            Err(error) if error.message().is_some() => Err(Lost::NotSent(chain(error.error()))),
            Err(error) => Err(self.lost(&connection, error.error())),
        }
    }

    fn lost(&self, connection: &Connection, error: &hyper::Error) -> Lost {
        match connection.has_sent() || self.term.holds() {
            true => Lost::Unknown(chain(error)),
            false => Lost::NotLeader,
        }
    }

    /// Keeps a connection whose reply was read to its end, if it can carry another request.
    pub(super) fn release(&self, mut connection: Box<Connection>, cx: &mut Context<'_>) {
        if self.pool.is_used() && self.term.holds() && connection.is_ready(cx) {
            self.pool.put(connection);
        }
    }

    async fn connect(&self) -> Result<Box<Connection>, Lost> {
        let host = self.origin.host().unwrap_or_default();
        let connected = self.connector.clone().oneshot(self.origin.clone()).await;
        let stream = connected.map_err(|error| {
            let error = error.as_ref();
            Lost::NotSent(self.https.explain(error, host).unwrap_or_else(|| chain(error)))
        })?;
        let (io, flags) = ProbedIo::new(stream, self.term.clone(), self.unacknowledged)
            .map_err(|error| Lost::NotSent(error.to_string()))?;
        let (sender, driver) =
            http1::handshake(io).await.map_err(|error| Lost::NotSent(chain(&error)))?;
        // It has kilobytes, which would be moved several times a request.
        Ok(Box::new(Connection::new(sender, driver, flags)))
    }
}

/// Formats an error with its causes, in one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

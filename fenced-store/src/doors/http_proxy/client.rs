//! HTTP client for the upstream: no retries, no redirects, no shared connection for writes.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::upstream::Upstream;
use crate::https::{Connector, Https};

/// Idle connections kept for reads.
const IDLE_CONNECTIONS: usize = 32;
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Failure of a request without a reply.
#[derive(Debug)]
pub(super) enum Lost {
    /// No connection could be made: nothing was sent.
    NotSent(String),
    /// It was sent, in whole or in part.
    Unknown(String),
}

/// Sender of requests to the upstream.
#[derive(Clone, Debug)]
pub(super) struct Client {
    reads: HyperClient<Connector, Full<Bytes>>,
    /// Client for writes; each has a connection of its own. A pooled connection may be closing at
    /// the other end that very moment, and then it is unknown if the write was sent.
    writes: HyperClient<Connector, Full<Bytes>>,
    https: Https,
}

impl Client {
    /// Makes a client. Connecting, with the TLS handshake, gets half of the time of a request, so
    /// that a failure to connect is never taken for a lost reply.
    pub(super) fn new(upstream: &Upstream) -> Self {
        let connector = upstream.https.connector(upstream.timeout / 2);
        let build = |idle: usize| {
            HyperClient::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .pool_max_idle_per_host(idle)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_timer(TokioTimer::new())
                .build(connector.clone())
        };
        Self { reads: build(IDLE_CONNECTIONS), writes: build(0), https: upstream.https.clone() }
    }

    /// Sends a request and awaits the head of the reply.
    ///
    /// # Cancel safety
    /// Dropping the future of a write closes its connection; the upstream may still act on it.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        is_write: bool,
    ) -> Result<Response<Incoming>, Lost> {
        let client = if is_write { &self.writes } else { &self.reads };
        let host = request.uri().host().unwrap_or_default().to_owned();
        client.request(request).await.map_err(|error| {
            let text = self.https.explain(&error, &host).unwrap_or_else(|| chain(&error));
            if error.is_connect() { Lost::NotSent(text) } else { Lost::Unknown(text) }
        })
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

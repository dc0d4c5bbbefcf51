//! HTTP client for the upstream: no retries, no redirects, no shared connection for writes.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

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
    reads: HyperClient<HttpConnector, Full<Bytes>>,
    /// Client for writes; each has a connection of its own. A pooled connection may be closing at
    /// the other end that very moment, and then it is unknown if the write was sent.
    writes: HyperClient<HttpConnector, Full<Bytes>>,
}

impl Client {
    /// Makes a client. `timeout` is for a whole request; connecting gets half of it, so that a
    /// failure to connect is never taken for a lost reply.
    pub(super) fn new(timeout: Duration) -> Self {
        let build = |idle: usize| {
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(timeout / 2));
            HyperClient::builder(TokioExecutor::new())
                .retry_canceled_requests(false)
                .pool_max_idle_per_host(idle)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_timer(TokioTimer::new())
                .build(connector)
        };
        Self { reads: build(IDLE_CONNECTIONS), writes: build(0) }
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
        client.request(request).await.map_err(|error| {
            let text = chain(&error);
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

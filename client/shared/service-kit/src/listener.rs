//! The accept loop: HTTP/1.1 and HTTP/2 with every wait and every size bounded.
//!
//! axum's own `serve` leaves hyper's header timeout without a timer and has no limit on idle or
//! slow connections; this loop has.

mod bind;
mod body;
mod connection;
mod early_reply;
mod exposure;
mod handler;
mod http2;
mod stream;
mod threads;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use fence_protocol::duration::parse_positive;
use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::http::ApiRouter;
use crate::limit;
use crate::tasks::Tasks;
use crate::tls::ServerTls;

pub use bind::{BindError, BoundListener, bind};
pub use exposure::{Exposure, ListenAddr, Safeguards, listen_addr};
pub use threads::HttpThreads;

/// Bytes that hyper may hold of a body in each direction of a connection, so that ten thousand of
/// them fit into memory.
const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;

/// Time that cut connections may take to close.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Pause of accepting when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of a listener, with the flags of those that an operator may want to change.
///
/// `header_timeout` runs from a request's first byte (or the connection's start); a TLS handshake,
/// and the wait for its first byte, have as much again. `body_timeout` counts against
/// `body_bytes_per_sec_min`, at any moment. An idle connection is cut within a quarter more of
/// `idle_timeout`. `max_connections` also bounds the requests in flight beyond the first of each
/// connection; further connections wait in the kernel's backlog of 1024, and further requests of
/// HTTP/2 are refused.
#[derive(Clone, Copy, Debug, Args)]
pub struct ListenOptions {
    /// Connections at once; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = limit::parse)]
    pub max_connections: usize,
    /// Time for the head of a request.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub header_timeout: Duration,
    /// Time by which the sender of a body may be behind 16 KiB a second.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_positive)]
    pub body_timeout: Duration,
    /// Idle time of a connection between requests.
    #[arg(long, value_name = "DURATION", default_value = "75s", value_parser = parse_positive)]
    pub idle_timeout: Duration,
    /// Time for requests in flight at shutdown.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub drain_deadline: Duration,
    /// Rate that the sender of a body must keep up.
    #[arg(skip = Self::default().body_bytes_per_sec_min)]
    pub body_bytes_per_sec_min: u32,
    /// Longest time that a client may leave a reply unread while nothing more fits into the socket.
    #[arg(skip = Self::default().write_timeout)]
    pub write_timeout: Duration,
    /// HTTP/2 is spoken beside HTTP/1.1: by ALPN in TLS, by its preface otherwise.
    #[arg(skip)]
    pub http2: bool,
    /// Header fields of a request.
    #[arg(skip = Self::default().max_headers)]
    pub max_headers: usize,
    /// Bytes of a request's head; at least 8192 are always allowed.
    #[arg(skip = Self::default().max_header_bytes)]
    pub max_header_bytes: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            body_bytes_per_sec_min: 16 * 1024,
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            max_connections: 10_000,
            http2: false,
            max_headers: 64,
            max_header_bytes: 16 * 1024,
            drain_deadline: Duration::from_secs(10),
        }
    }
}

/// Result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that were open when shutdown began.
    pub open: usize,
    /// Connections that were cut at the deadline, with a request in flight or unread.
    pub cut: usize,
}

/// Parts that all connections of a listener share.
struct Shared {
    router: ApiRouter,
    options: ListenOptions,
    http: http1::Builder,
    tls: Option<ServerTls>,
    /// Permits of connections, and of requests beyond the first of each.
    slots: Arc<Semaphore>,
    shutdown: CancellationToken,
    cut: CancellationToken,
}

/// Serves connections on the caller's runtime; otherwise as [`serve_on`].
pub async fn serve(
    listener: BoundListener,
    router: impl Into<ApiRouter>,
    options: ListenOptions,
    tasks: Tasks,
) -> DrainReport {
    serve_on(&HttpThreads::default(), listener, router, options, tasks).await
}

/// Serves connections on `threads` until `tasks` begins to shut down, then finishes what is in
/// flight. Connections are accepted on the caller's runtime.
///
/// Requests in flight get [`ListenOptions::drain_deadline`]; what is left then is cut. Connections
/// run as tracked tasks of `tasks`. When this future is dropped, accepting stops and connections
/// continue until shutdown.
pub async fn serve_on(
    threads: &HttpThreads,
    listener: BoundListener,
    router: impl Into<ApiRouter>,
    options: ListenOptions,
    tasks: Tasks,
) -> DrainReport {
    let BoundListener { tcp, tls } = listener;
    let max_connections = options.max_connections.clamp(1, Semaphore::MAX_PERMITS >> 8);
    let slots = Arc::new(Semaphore::new(max_connections));
    let shared = Arc::new(Shared {
        router: router.into(),
        options,
        http: http_builder(&options),
        tls: tls.map(|tls| {
            tls.for_listener(options.header_timeout, early_reply::plain_text)
                .with_http2(options.http2)
        }),
        slots: Arc::clone(&slots),
        shutdown: tasks.shutdown_token(),
        cut: CancellationToken::new(),
    });
    tokio::select! {
        biased;
        () = shared.shutdown.cancelled() => {}
        () = accept_all(threads, &tcp, &slots, &shared, &tasks) => {}
    }
    drop(tcp);
    drain(&slots, max_connections, &shared).await
}

fn http_builder(options: &ListenOptions) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // The stream under the connection keeps the head's time without a timer a request.
        .header_read_timeout(None)
        .max_headers(options.max_headers)
        .max_header_size(options.max_header_bytes.max(8192))
        .max_buf_size(options.max_header_bytes.max(CONNECTION_BUFFER_BYTES));
    // No pipeline_flush: with it hyper takes a body that is always ready without any bound.
    http
}

/// Accepts for ever; at the limit of connections it waits for one to end before it accepts.
async fn accept_all(
    threads: &HttpThreads,
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    shared: &Arc<Shared>,
    tasks: &Tasks,
) {
    let mut full = false;
    loop {
        if slots.available_permits() == 0 && !std::mem::replace(&mut full, true) {
            let max_connections = shared.options.max_connections;
            tracing::warn!(max_connections, "every connection is in use; new ones wait");
        }
        // The semaphore is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let stream = accept(listener).await;
        full &= slots.available_permits() == 0;
        threads.serve(stream, slot, shared.clone(), tasks);
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) if connection::is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept; check the limit of open files (ulimit -n)");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn drain(slots: &Semaphore, max_connections: usize, shared: &Shared) -> DrainReport {
    let in_use = || max_connections - slots.available_permits();
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    let open = in_use();
    if tokio::time::timeout(shared.options.drain_deadline, slots.acquire_many(all)).await.is_ok() {
        return DrainReport { open, cut: 0 };
    }
    let cut = in_use();
    shared.cut.cancel();
    // Cut connections end at their next poll; a handler that blocks its thread may not.
    let _ = tokio::time::timeout(CUT_GRACE, slots.acquire_many(all)).await;
    tracing::warn!(cut, "requests in flight at the end of the drain were cut");
    DrainReport { open, cut }
}

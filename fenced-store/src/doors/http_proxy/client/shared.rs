//! A connection of HTTP/2 to the upstream, which requests share.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use hyper_util::rt::TokioIo;
use service_kit::clock;

use super::super::term::Term;
use super::chain;
use super::connection::{ProbedIo, SocketFlags};

/// Requests in flight of one connection, if the upstream allows as many.
const MAX_STREAMS: usize = 100;
/// Bytes of a reply that the upstream may send before they are read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// The same for all replies of a connection: one that is read slowly must not hold up the others.
const CONNECTION_WINDOW: u32 = 100 * STREAM_WINDOW;
/// Bytes of a reply's head: of names, values and 32 a field.
const HEAD_BYTES: u32 = 64 * 1024;
/// Streams that errors of the upstream may reset.
const MAX_ERROR_RESETS: usize = 100;
/// Bytes of a streamed body that wait for the socket.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

type Driver = Connection<TokioIo<ProbedIo>, Bytes>;

/// A connection that requests share. Cheap to clone; it ends with the last clone and the last
/// stream.
#[derive(Clone, Debug)]
pub(super) struct SharedConnection {
    requests: SendRequest<Bytes>,
    state: Arc<SharedState>,
}

#[derive(Debug)]
struct SharedState {
    usage: Mutex<Usage>,
    driven: Mutex<Driven>,
}

/// Requests on a connection.
#[derive(Debug)]
struct Usage {
    in_flight: usize,
    rests_since: Instant,
    /// No further request is sent on it.
    is_retired: bool,
}

#[derive(Debug)]
struct Driven {
    /// `None` once the connection has ended.
    driver: Option<Driver>,
    flags: Arc<SocketFlags>,
    /// Of the task that moves bytes.
    waker: Option<Waker>,
}

impl SharedState {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driven(&self) -> MutexGuard<'_, Driven> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.driven().driver = None;
    }
}

impl Driven {
    /// Moves bytes; ready once the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(driver) = &mut self.driver else { return Poll::Ready(()) };
        let Poll::Ready(ended) = std::pin::Pin::new(driver).poll(cx) else { return Poll::Pending };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
        self.driver = None;
        Poll::Ready(())
    }
}

impl SharedConnection {
    /// Begins HTTP/2 with the place of a first request, and awaits that the upstream speaks it and
    /// has stated its limits: one that does not must get no request.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn begin(
        io: ProbedIo,
        flags: Arc<SocketFlags>,
        term: Term,
    ) -> Result<Lease, String> {
        let handshake = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(MAX_STREAMS)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
            .handshake(TokioIo::new(io));
        let failed = |error: h2::Error| {
            format!("it does not speak HTTP/2 ({}); set --upstream-http h1", chain(&error))
        };
        let (requests, mut driver) = handshake.await.map_err(failed)?;
        let pings = driver.ping_pong();
        let usage = Usage { in_flight: 1, rests_since: clock::now(), is_retired: false };
        let driven = Driven { driver: Some(driver), flags, waker: None };
        let state = Arc::new(SharedState { usage: Mutex::new(usage), driven: Mutex::new(driven) });
        // Given back if the upstream does not confirm.
        let lease =
            Lease { connection: Self { requests, state: Arc::clone(&state) }, has_replied: false };
        #[expect(clippy::disallowed_methods, reason = "it ends with the last request on it")]
        tokio::spawn(drive(state, term));
        confirm(pings).await.map_err(failed)?;
        Ok(lease)
    }

    /// Takes a place for a request; `None` if another connection must carry it.
    ///
    /// A connection at rest is probed: one that the upstream is closing would leave the outcome
    /// unknown.
    pub(super) fn lease(&self, idle_max: Duration, cx: &mut Context<'_>) -> Option<Lease> {
        let mut usage = self.state.usage();
        let is_full = usage.in_flight >= MAX_STREAMS.min(self.requests.current_max_send_streams());
        let is_stale = usage.in_flight == 0
            && (clock::now().duration_since(usage.rests_since) > idle_max || !self.is_silent(cx));
        usage.is_retired |= is_stale || self.has_ended();
        if is_full || usage.is_retired {
            return None;
        }
        usage.in_flight += 1;
        Some(Lease { connection: self.clone(), has_replied: false })
    }

    /// Returns `true` if the upstream has neither closed the connection nor sent anything.
    fn is_silent(&self, cx: &mut Context<'_>) -> bool {
        let mut driven = self.state.driven();
        driven.flags.probe.store(true, Ordering::Relaxed);
        let is_open = driven.poll(cx).is_pending();
        driven.flags.probe.store(false, Ordering::Relaxed);
        // The next event must wake its own task again.
        if let Some(waker) = &driven.waker {
            waker.wake_by_ref();
        }
        is_open
    }

    /// Returns `true` if the connection may carry another request, now or later.
    pub(super) fn is_kept(&self, idle_max: Duration) -> bool {
        let usage = self.state.usage();
        let is_fresh = || clock::now().duration_since(usage.rests_since) <= idle_max;
        !usage.is_retired && (usage.in_flight > 0 || is_fresh()) && !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        self.state.driven().driver.is_none()
    }
}

/// Place of one request on a connection.
#[derive(Debug)]
pub(super) struct Lease {
    connection: SharedConnection,
    /// The upstream has replied to the request, or reset it.
    pub(super) has_replied: bool,
}

impl Lease {
    pub(super) fn requests(&self) -> SendRequest<Bytes> {
        self.connection.requests.clone()
    }

    pub(super) fn connection(&self) -> SharedConnection {
        self.connection.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut usage = self.connection.state.usage();
        usage.in_flight -= 1;
        if usage.in_flight == 0 {
            usage.rests_since = clock::now();
        }
        // The upstream may be gone without a word.
        usage.is_retired |= !self.has_replied;
    }
}

/// Moves bytes until the connection ends. Nothing is sent after the end of the term, though frames
/// may wait: the socket is closed.
async fn drive(state: Arc<SharedState>, term: Term) {
    let driving = std::future::poll_fn(|cx| {
        let mut driven = state.driven();
        driven.waker = Some(cx.waker().clone());
        driven.poll(cx)
    });
    tokio::select! {
        biased;
        _ = term.ended() => {}
        () = driving => {}
    }
    state.end();
}

async fn confirm(pings: Option<PingPong>) -> Result<(), h2::Error> {
    if let Some(mut pings) = pings {
        pings.ping(Ping::opaque()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper_rustls::MaybeHttpsStream;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Frames wait for the upstream's window when the term ends, and stay there.
    #[tokio::test]
    async fn frames_that_wait_are_not_sent_after_the_end_of_the_term() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        let term = Term::until(u64::MAX);
        let stream = MaybeHttpsStream::Http(TokioIo::new(stream));
        let (io, flags) = ProbedIo::new(stream, term.clone(), None).unwrap();
        let begin = SharedConnection::begin(io, flags, term.clone());
        let mut settings = h2::server::Builder::new();
        settings.initial_window_size(4);
        let serve = async {
            let mut upstream = settings.handshake::<_, Bytes>(peer).await.unwrap();
            (upstream.accept().await.unwrap().unwrap(), upstream)
        };
        let ask = async {
            let lease = begin.await.unwrap();
            let request = http::Request::put("http://upstream/a").body(()).unwrap();
            let requests = lease.requests().ready().await;
            let (reply, mut stream) = requests.unwrap().send_request(request, false).unwrap();
            stream.send_data(Bytes::from_static(b"in time, late"), true).unwrap();
            (lease, reply, stream)
        };
        let (((request, _respond), mut upstream), (_lease, reply, _stream)) =
            tokio::join!(serve, ask);
        let mut body = request.into_body();
        let first = tokio::select! {
            data = body.data() => data.unwrap().unwrap(),
            _ = upstream.accept() => panic!("the connection ended"),
        };
        assert_eq!(first, "in t");
        term.end();
        body.flow_control().release_capacity(first.len()).unwrap();
        let more = tokio::select! {
            data = body.data() => data.unwrap(),
            _ = upstream.accept() => body.data().await.unwrap(),
        };
        assert!(more.is_err(), "{more:?}");
        assert!(reply.await.is_err());
    }
}

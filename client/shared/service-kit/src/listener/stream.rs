//! The socket with its time limits: an incomplete head, rest between requests, unread replies.
//!
//! hyper's own header timeout counts rest between requests as part of the next head and makes a
//! timer for every request. Here a timer is only made when the socket has nothing to read or
//! cannot be written to, so a request that arrives in one piece costs none.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::http2::HeadWatch;
use super::transport::Transport;
use super::{ListenOptions, early_reply};

const RESTING: u8 = 0;
const HEAD: u8 = 1;
const IN_FLIGHT: u8 = 2;
/// HTTP/2: `http2` knows its requests, and has the timer of rest.
const STREAMS: u8 = 3;

/// First bytes of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that are read at once to look for them: most first requests are shorter.
const EARLY_BYTES: usize = 4096;

/// Rest is measured in quarters of the idle timeout: no clock is read for a request.
const QUARTERS: u32 = 4;

/// Time between probes of a socket that hyper does not look at.
const HANG_UP_PROBE: Duration = Duration::from_secs(1);

/// Activity of a connection; the handler writes it and the stream reads it, in one task.
#[derive(Debug)]
pub(super) struct Activity {
    phase: AtomicU8,
    requests: AtomicU32,
    /// The handler of the request in flight waits.
    waits: AtomicBool,
    late_head: Notify,
}

impl Activity {
    /// A new connection owes its first head at once.
    pub(super) fn new() -> Self {
        Self {
            phase: AtomicU8::new(HEAD),
            requests: AtomicU32::new(0),
            waits: AtomicBool::new(false),
            late_head: Notify::new(),
        }
    }

    pub(super) fn request_began(&self) {
        self.phase.store(IN_FLIGHT, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn request_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(super) fn request_ended(&self) {
        self.phase.store(RESTING, Ordering::Relaxed);
    }

    /// The connection speaks HTTP/2 from now on.
    pub(super) fn streams_begin(&self) {
        self.phase.store(STREAMS, Ordering::Relaxed);
    }

    /// Awaits a head of HTTP/2 that is not complete in time.
    pub(super) async fn late_head(&self) {
        self.late_head.notified().await;
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(super) struct Stream {
    inner: Transport,
    activity: Arc<Activity>,
    header_timeout: Duration,
    idle_quarter: Duration,
    write_timeout: Duration,
    head_timer: Option<Pin<Box<Sleep>>>,
    idle_timer: Option<Idle>,
    write_timer: Option<Pin<Box<Sleep>>>,
    peer_closed: bool,
    /// hyper waits for bytes or the end. It does not while it holds bytes behind a request.
    is_watched: bool,
    hang_up: HangUp,
    /// Some of the head that is awaited has arrived.
    head_begun: bool,
    /// Heads of HTTP/2.
    heads: HeadWatch,
    /// Bytes that were read to look for HTTP/2, and are read again.
    early: Bytes,
}

/// Watch for a client that hangs up while its request waits.
#[derive(Debug)]
enum HangUp {
    /// hyper or the runtime does it, or no request waits.
    Watched,
    /// Something arrived that hyper did not look at when it was polled last. It does at its next
    /// poll, unless it holds bytes.
    Unwatched,
    /// hyper holds bytes; the socket is probed again when this ends.
    Probing(Pin<Box<Sleep>>),
}

#[derive(Debug)]
struct Idle {
    timer: Pin<Box<Sleep>>,
    /// The number of requests when the last quarter ended, if the connection was resting then.
    rested_since: Option<u32>,
    quarters: u32,
}

impl Stream {
    pub(super) fn new(inner: Transport, activity: Arc<Activity>, options: &ListenOptions) -> Self {
        Self {
            inner,
            activity,
            header_timeout: options.header_timeout,
            idle_quarter: options.idle_timeout / QUARTERS,
            write_timeout: options.write_timeout,
            head_timer: None,
            idle_timer: None,
            write_timer: None,
            peer_closed: false,
            is_watched: false,
            hang_up: HangUp::Watched,
            head_begun: false,
            heads: HeadWatch::new(PREFACE.len()),
            early: Bytes::new(),
        }
    }

    /// Reads until the first bytes show whether the client speaks HTTP/2.
    ///
    /// # Errors
    /// As reading; the connection cannot be served.
    ///
    /// # Cancel safety
    /// Bytes that were read are lost.
    pub(super) async fn begins_http2(&mut self) -> io::Result<bool> {
        let mut early = Vec::with_capacity(EARLY_BYTES);
        loop {
            let count = self.read_buf(&mut early).await?;
            let shared = early.len().min(PREFACE.len());
            if count == 0 || early[..shared] != PREFACE[..shared] || shared == PREFACE.len() {
                let is_http2 = early.starts_with(PREFACE);
                self.early = early.into();
                return Ok(is_http2);
            }
        }
    }

    /// True once the peer has closed its side.
    pub(super) fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    pub(super) fn transport(&self) -> &Transport {
        &self.inner
    }

    pub(super) fn into_inner(self) -> Transport {
        self.inner
    }

    /// Is ready if the client hung up while its request waits and hyper does not look at the
    /// socket. The handler must not go on: a grant would reach no client, and a write to a peer
    /// that has closed succeeds once. Under TLS too this is the end of the TCP connection: the
    /// alert that ends TLS is behind the bytes that hyper does not read.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.is_watched || !self.activity.waits.load(Ordering::Relaxed) {
            self.hang_up = HangUp::Watched;
            return Poll::Pending;
        }
        match &mut self.hang_up {
            HangUp::Watched => {
                // The runtime wakes this task when more bytes arrive, or the end.
                ready!(self.inner.tcp().poll_read_ready(cx).map(drop));
                self.hang_up = HangUp::Unwatched;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            HangUp::Unwatched => {
                let mut closed = [PollFd::new(self.inner.tcp(), PollFlags::RDHUP)];
                if rustix::event::poll(&mut closed, Some(&Timespec::default())) == Ok(0) {
                    self.hang_up = HangUp::Probing(sleep(HANG_UP_PROBE));
                    return self.poll_hang_up(cx);
                }
                self.peer_closed = true;
                Poll::Ready(io::ErrorKind::BrokenPipe.into())
            }
            HangUp::Probing(timer) => {
                ready!(timer.as_mut().poll(cx));
                self.hang_up = HangUp::Unwatched;
                self.poll_hang_up(cx)
            }
        }
    }

    /// Nothing to read: is it time to close the connection?
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = self.activity.phase();
        match phase {
            HEAD => {}
            STREAMS if self.heads.is_open() => {}
            STREAMS => return Poll::Pending,
            _ => return self.poll_rest(cx),
        }
        let timeout = self.header_timeout;
        let timer = self.head_timer.get_or_insert_with(|| sleep(timeout));
        ready!(timer.as_mut().poll(cx));
        if phase == STREAMS {
            // An error here would end the connection without GOAWAY.
            self.activity.late_head.notify_one();
            return Poll::Pending;
        }
        self.refuse_late_head(cx);
        Poll::Ready(Err(timed_out("the head of a request did not arrive in time")))
    }

    /// Follows bytes that are about to be read. Each head of HTTP/2 has the whole time.
    fn follow_heads(&mut self, bytes: &[u8]) {
        if self.activity.phase() == STREAMS {
            let was_open = self.heads.is_open();
            let has_ended = self.heads.follow(bytes);
            if has_ended || !was_open {
                self.head_timer = None;
            }
        }
    }

    /// Sends 408 to a client that began a head. While a reply before it is not wholly in the socket
    /// nothing is sent: two writers would mix their bytes.
    fn refuse_late_head(&mut self, cx: &mut Context<'_>) {
        if self.head_begun && self.write_timer.is_none() {
            // The socket is empty, so it takes this at once; a client that is gone needs none.
            let _ = Pin::new(&mut self.inner).poll_write(cx, &early_reply::late_head());
            let _ = Pin::new(&mut self.inner).poll_flush(cx);
        }
    }

    /// Counts quarters in which the connection rested all the time. The timer runs on while a
    /// request is in flight, because hyper need not poll the socket again when that one ends.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let quarter = self.idle_quarter;
        let idle = self.idle_timer.get_or_insert_with(|| Idle {
            timer: sleep(quarter),
            rested_since: None,
            quarters: 0,
        });
        loop {
            ready!(idle.timer.as_mut().poll(cx));
            let requests = Some(self.activity.requests.load(Ordering::Relaxed));
            let is_resting = self.activity.phase() == RESTING;
            let has_rested = is_resting && idle.rested_since == requests;
            idle.quarters = if has_rested { idle.quarters + 1 } else { 0 };
            idle.rested_since = if is_resting { requests } else { None };
            if idle.quarters >= QUARTERS {
                return Poll::Ready(Err(timed_out("the connection rested for too long")));
            }
            let next = idle.timer.deadline() + quarter;
            idle.timer.as_mut().reset(next.max(Instant::from_std(crate::clock::now())));
        }
    }

    /// The result of writing, or the end of patience with a client that takes nothing. TLS holds
    /// bytes back, so a flush may wait too.
    fn poll_written<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let timeout = self.write_timeout;
        let timer = self.write_timer.get_or_insert_with(|| sleep(timeout));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the client did not read its reply in time")))
    }
}

fn sleep(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(duration))
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.early.is_empty() {
            let count = this.early.len().min(buf.remaining());
            let early = this.early.split_to(count);
            this.follow_heads(&early);
            buf.put_slice(&early);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let Poll::Ready(result) = Pin::new(&mut this.inner).poll_read(cx, buf) else {
            this.is_watched = true;
            return this.poll_patience(cx);
        };
        this.is_watched = false;
        if buf.filled().len() == before {
            this.peer_closed = true;
            return Poll::Ready(result);
        }
        this.follow_heads(&buf.filled()[before..]);
        if this.activity.phase() == RESTING {
            this.activity.phase.store(HEAD, Ordering::Relaxed);
            this.head_timer = None;
        }
        this.head_begun = true;
        Poll::Ready(result)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.poll_written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes whenever it has polled the handler.
        if let Poll::Ready(error) = self.poll_hang_up(cx) {
            return Poll::Ready(Err(error));
        }
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.poll_written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.poll_written(cx, ended)
    }
}

//! A connection of HTTP/1 to the upstream, and the socket of any connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec};
use service_kit::socket;
use tokio::net::TcpStream;

use super::super::term::Term;
use super::UpstreamBody;

/// Bytes of a reply that are read at first, where it matters whether there are any.
const FIRST_BYTES: usize = 2048;

/// A connection that the task of its request drives.
#[derive(Debug)]
pub(crate) struct Connection {
    sender: http1::SendRequest<UpstreamBody>,
    /// Gone once the connection has ended; a request that it did not begin is handed back then.
    driver: Option<http1::Connection<ProbedIo, UpstreamBody>>,
    flags: Arc<SocketFlags>,
    /// It has carried a request before.
    is_reused: bool,
}

impl Connection {
    pub(super) fn new(
        sender: http1::SendRequest<UpstreamBody>,
        driver: http1::Connection<ProbedIo, UpstreamBody>,
        flags: Arc<SocketFlags>,
    ) -> Self {
        Self { sender, driver: Some(driver), flags, is_reused: false }
    }

    /// Returns `true` if the connection has carried a request before the current one.
    pub(crate) fn is_reused(&self) -> bool {
        self.is_reused
    }

    /// Returns `true` if the upstream has neither closed the connection nor sent anything since the
    /// last reply.
    pub(super) fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_reused = true;
        self.flags.probe.store(true, Ordering::Relaxed);
        self.is_ready(cx)
    }

    /// Returns `true` if the connection can carry another request.
    pub(super) fn is_ready(&mut self, cx: &mut Context<'_>) -> bool {
        !drive(&mut self.driver, cx) && self.sender.is_ready()
    }

    /// Sends a request and awaits the head of its reply.
    ///
    /// # Errors
    /// With the request, if it was not handed to the connection; without it, if any byte may have
    /// been sent.
    pub(super) async fn send(
        &mut self,
        request: Request<UpstreamBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<UpstreamBody>>> {
        let Self { sender, driver, flags, .. } = self;
        flags.has_sent.store(false, Ordering::Relaxed);
        let mut reply = pin!(sender.try_send_request(request));
        poll_fn(|cx| {
            drive(driver, cx);
            reply.as_mut().poll(cx)
        })
        .await
    }

    /// Returns `true` if any byte of the last request was handed to the kernel.
    pub(super) fn has_sent(&self) -> bool {
        self.flags.has_sent.load(Ordering::Relaxed)
    }

    /// Notes when the first byte of the next reply comes.
    pub(super) fn await_first_byte(&self) {
        self.flags.awaits_first.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if that byte has not come.
    pub(super) fn awaits_first_byte(&self) -> bool {
        self.flags.awaits_first.load(Ordering::Relaxed)
    }

    /// Polls the next frame of the reply's body.
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        drive(&mut self.driver, cx);
        Pin::new(body).poll_frame(cx)
    }
}

/// Moves bytes; `true` once the connection has ended.
fn drive(
    driver: &mut Option<http1::Connection<ProbedIo, UpstreamBody>>,
    cx: &mut Context<'_>,
) -> bool {
    driver.take_if(|driver| Pin::new(driver).poll(cx).is_ready());
    driver.is_none()
}

/// Facts on a socket that its connection shares with it.
#[derive(Debug, Default)]
pub(super) struct SocketFlags {
    /// Makes the next read a probe.
    pub(super) probe: AtomicBool,
    /// Bytes were handed to the kernel since this was last cleared.
    pub(super) has_sent: AtomicBool,
    /// The next byte of the upstream is the first of a reply; cleared by it.
    pub(super) awaits_first: AtomicBool,
}

/// A socket. The event queue reports a closed one late; a probe asks the kernel at once.
///
/// It sends nothing after the end of its term. The clock is read right before each write, with no
/// await in between: a process that was stopped reads it again. A stop between the clock and the
/// system call remains, so the clock is read once more, and the connection ended if it was late.
#[derive(Debug)]
pub(super) struct ProbedIo {
    inner: MaybeHttpsStream<TokioIo<TcpStream>>,
    flags: Arc<SocketFlags>,
    term: Term,
}

impl ProbedIo {
    /// Makes the socket. The kernel closes it if the upstream acknowledges nothing for the time of
    /// `unacknowledged`, even while this process is stopped.
    ///
    /// Once the socket is closed, by the kernel after the end of the process too, nothing more is
    /// sent. Otherwise the kernel would repeat what the upstream has not confirmed for minutes, and
    /// the upstream's maximum request lifetime would begin then.
    ///
    /// # Errors
    /// If the kernel does not take the option.
    pub(super) fn new(
        inner: MaybeHttpsStream<TokioIo<TcpStream>>,
        term: Term,
        unacknowledged: Option<Duration>,
    ) -> io::Result<(Self, Arc<SocketFlags>)> {
        let socket = match &inner {
            MaybeHttpsStream::Http(plain) => plain.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        };
        socket.set_zero_linger()?;
        if let Some(unacknowledged) = unacknowledged {
            socket::limit_unacknowledged(socket, unacknowledged)?;
        }
        let flags = Arc::new(SocketFlags::default());
        Ok((Self { inner, flags: Arc::clone(&flags), term }, flags))
    }

    /// Fails after the end of the term.
    fn check(&self) -> io::Result<()> {
        if self.term.holds() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "this guard's term has ended"))
    }

    /// Fails after the end of the term. TLS hands a record to the kernel in pieces, so a write that
    /// fails or waits may have sent a part: it counts as sent before it begins.
    fn begin_write(&self) -> io::Result<()> {
        self.check()?;
        if matches!(self.inner, MaybeHttpsStream::Https(_)) {
            self.flags.has_sent.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let count = ready!(written)?;
        self.flags.has_sent.store(true, Ordering::Relaxed);
        self.check()?;
        Poll::Ready(Ok(count))
    }

    /// Returns `true` if a socket at rest has something to read, its end included. Under TLS that
    /// can be a session ticket, so only the session itself knows.
    fn is_disturbed(&self) -> bool {
        let MaybeHttpsStream::Http(plain) = &self.inner else { return false };
        let flags = PollFlags::IN | PollFlags::RDHUP;
        let mut polled = [PollFd::new(plain.inner(), flags)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }
}

impl Read for ProbedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.flags.probe.swap(false, Ordering::Relaxed) && self.is_disturbed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.flags.awaits_first.load(Ordering::Relaxed) {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        // The cursor does not show how much was read.
        let mut first = [0; FIRST_BYTES];
        let room = buffer.remaining().min(FIRST_BYTES);
        let mut first = ReadBuf::new(&mut first[..room]);
        ready!(Pin::new(&mut self.inner).poll_read(cx, first.unfilled()))?;
        if !first.filled().is_empty() {
            self.flags.awaits_first.store(false, Ordering::Relaxed);
            buffer.put_slice(first.filled());
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for ProbedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.written(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS sends here what it has encrypted.
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.written(written)
    }
}

#[cfg(test)]
mod tests {
    use service_kit::tls::TlsOptions;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;
    use crate::https::Https;
    use crate::https::UpstreamHttp;

    #[tokio::test]
    async fn nothing_is_sent_after_the_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let stream = MaybeHttpsStream::Http(TokioIo::new(stream));
        let (socket, _) = ProbedIo::new(stream, Term::default(), None).unwrap();
        drop(socket);
        let end = peer.read(&mut [0; 1]).await.map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset), "the kernel keeps sending");
    }

    /// Connects by TLS to a peer that reads nothing.
    async fn tls() -> (MaybeHttpsStream<TokioIo<TcpStream>>, std::net::TcpListener) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let options = TlsOptions::default().with_ca_pem(made.cert.pem().as_bytes()).unwrap();
        let https = Https::new(options, true).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepts = listener.try_clone().unwrap();
        let shake_hands = move || {
            let (mut stream, _) = accepts.accept().unwrap();
            let mut session = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            while session.is_handshaking() {
                session.complete_io(&mut stream).unwrap();
            }
            stream
        };
        let peer = std::thread::Builder::new().spawn(shake_hands).unwrap();
        let origin = format!("https://localhost:{port}").parse().unwrap();
        let stream = https
            .connector(Duration::from_secs(20), UpstreamHttp::H1)
            .oneshot(origin)
            .await
            .unwrap();
        std::mem::forget(peer.join().unwrap());
        (stream, listener)
    }

    /// TLS has a part of the record before, and hands it over.
    #[tokio::test]
    async fn a_tls_write_that_waits_counts_as_sent() {
        let (stream, _peer) = tls().await;
        let (mut socket, flags) = ProbedIo::new(stream, Term::default(), None).unwrap();
        let bytes = vec![b'x'; 1 << 16];
        let mut is_pending = async || {
            poll_fn(|cx| Poll::Ready(Pin::new(&mut socket).poll_write(cx, &bytes).is_pending()))
                .await
        };
        while !is_pending().await {}
        flags.has_sent.store(false, Ordering::Relaxed);
        is_pending().await;
        assert!(flags.has_sent.load(Ordering::Relaxed), "a part may be on its way");
    }

    #[tokio::test]
    async fn nothing_is_sent_after_the_end_of_the_term() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let term = Term::until(u64::MAX);
        let stream = MaybeHttpsStream::Http(TokioIo::new(stream));
        let (mut socket, flags) = ProbedIo::new(stream, term.clone(), None).unwrap();
        let mut write = async |bytes: &'static [u8]| {
            poll_fn(|cx| Pin::new(&mut socket).poll_write(cx, bytes)).await
        };
        assert_eq!(write(b"in time").await.unwrap(), 7);
        assert!(flags.has_sent.swap(false, Ordering::Relaxed));
        term.end();
        assert_eq!(write(b"late").await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(!flags.has_sent.load(Ordering::Relaxed));
        let mut seen = [0; 32];
        let count = peer.read(&mut seen).await.unwrap();
        assert_eq!(&seen[..count], b"in time");
        drop(socket);
        assert!(peer.read(&mut seen).await.is_err(), "more came");
    }
}

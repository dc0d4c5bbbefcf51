//! The upstream's socket, which can be probed before a connection is used again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::net::TcpStream;

/// A socket. The event queue reports a closed one late; a probe asks the kernel at once.
#[derive(Debug)]
pub(super) struct ProbedIo {
    inner: MaybeHttpsStream<TokioIo<TcpStream>>,
    probe: Arc<AtomicBool>,
}

impl ProbedIo {
    /// Makes the socket, and the flag that makes its next read a probe.
    ///
    /// Once the socket is closed, by the kernel after the end of the process too, nothing more is
    /// sent. Otherwise the kernel would repeat what the upstream has not confirmed for minutes, and
    /// the upstream's maximum request lifetime would begin then.
    ///
    /// # Errors
    /// If the kernel does not take the option.
    pub(super) fn new(
        inner: MaybeHttpsStream<TokioIo<TcpStream>>,
    ) -> io::Result<(Self, Arc<AtomicBool>)> {
        let socket = match &inner {
            MaybeHttpsStream::Http(plain) => plain.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        };
        socket.set_zero_linger()?;
        let probe = Arc::new(AtomicBool::new(false));
        Ok((Self { inner, probe: Arc::clone(&probe) }, probe))
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
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.probe.swap(false, Ordering::Relaxed) && self.is_disturbed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl Write for ProbedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn nothing_is_sent_after_the_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let (socket, _) = ProbedIo::new(MaybeHttpsStream::Http(TokioIo::new(stream))).unwrap();
        drop(socket);
        let end = peer.read(&mut [0; 1]).await.map_err(|error| error.kind());
        assert_eq!(end, Err(io::ErrorKind::ConnectionReset), "the kernel keeps sending");
    }
}

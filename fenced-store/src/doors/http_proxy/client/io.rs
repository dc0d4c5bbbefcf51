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
    pub(super) fn new(inner: MaybeHttpsStream<TokioIo<TcpStream>>) -> (Self, Arc<AtomicBool>) {
        let probe = Arc::new(AtomicBool::new(false));
        (Self { inner, probe: Arc::clone(&probe) }, probe)
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

//! TLS over a peer's socket, written to without waiting.
//!
//! rustls does no I/O: bytes are moved between its buffers and the socket here. Both stay small. A
//! read leaves nothing in it but the beginning of a record, so that whatever is not in the socket
//! was received. A write is encrypted once the socket has taken everything before it, so that a
//! client that does not read costs [`SEALED_MAX`] more than without TLS.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use rustls::Connection;
use service_kit::socket;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Bytes that are encrypted before the socket has to take them.
const SEALED_MAX: usize = 64 * 1024;
/// Maximum size of one read, in bytes.
const READ: usize = 16 * 1024;

thread_local! {
    /// Encrypted bytes between a socket and rustls, which itself reads 4 KiB at a time.
    static ENCRYPTED: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// State of TLS, which both halves use.
#[derive(Debug)]
pub(super) struct TlsSession {
    tls: Connection,
    /// Bytes of the writer that are encrypted, and not all in the socket.
    sealed: usize,
}

impl TlsSession {
    pub(super) fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(SEALED_MAX));
        Self { tls, sealed: 0 }
    }

    /// Writes encrypted bytes to the socket.
    ///
    /// # Errors
    /// `WouldBlock` if some remain, and the socket's.
    fn push(&mut self, tcp: &TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Unwaiting(tcp)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Decrypts bytes of the socket, and appends the plain ones.
    fn open(&mut self, mut encrypted: &[u8], plain: &mut BytesMut) -> io::Result<()> {
        while !encrypted.is_empty() && self.tls.read_tls(&mut encrypted)? > 0 {
            self.tls.process_new_packets().map_err(io::Error::other)?;
            self.take_plain(plain)?;
        }
        Ok(())
    }

    /// Appends what was decrypted; returns `true` if the client has ended its direction.
    fn take_plain(&mut self, plain: &mut BytesMut) -> io::Result<bool> {
        let mut reader = self.tls.reader();
        loop {
            let chunk = match reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                chunk => chunk?,
            };
            let len = chunk.len();
            if len == 0 {
                return Ok(true);
            }
            plain.extend_from_slice(chunk);
            reader.consume(len);
        }
    }
}

/// A socket that takes what it can at once.
struct Unwaiting<'a>(&'a TcpStream);

impl io::Write for Unwaiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The half that receives.
#[derive(Debug)]
pub(crate) struct TlsReader {
    tcp: OwnedReadHalf,
    session: Rc<RefCell<TlsSession>>,
}

impl TlsReader {
    pub(super) fn new(tcp: OwnedReadHalf, session: Rc<RefCell<TlsSession>>) -> Self {
        Self { tcp, session }
    }

    /// As [`super::ClientReader::read_buf`].
    pub(super) async fn read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read_buf(cx, buf)).await
    }

    /// As [`super::ClientReader::try_read_buf`].
    pub(super) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        // The next read that waits sets the waker again.
        match self.poll_read_buf(&mut Context::from_waker(Waker::noop()), buf) {
            Poll::Ready(read) => read,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// As [`super::ClientReader::poll_read_buf`].
    pub(super) fn poll_read_buf(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        let session = &mut *self.session.borrow_mut();
        let before = buf.len();
        // The handshake may have read the first commands.
        let mut is_ended = session.take_plain(buf)?;
        while buf.len() == before && !is_ended {
            let opened = ENCRYPTED.with_borrow_mut(|encrypted| {
                let mut read = ReadBuf::new(encrypted);
                ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut read))?;
                is_ended = read.filled().is_empty();
                Poll::Ready(session.open(read.filled(), buf))
            });
            let opened = ready!(opened);
            // An alert or an update of keys; what the socket does not take goes with the next
            // bytes.
            let _ = session.push(self.tcp.as_ref());
            opened?;
            is_ended |= buf.len() == before && session.take_plain(buf)?;
        }
        Poll::Ready(Ok(buf.len() - before))
    }
}

/// The half that sends.
#[derive(Debug)]
pub(crate) struct TlsWriter {
    tcp: OwnedWriteHalf,
    session: Rc<RefCell<TlsSession>>,
}

impl TlsWriter {
    pub(super) fn new(tcp: OwnedWriteHalf, session: Rc<RefCell<TlsSession>>) -> Self {
        Self { tcp, session }
    }

    /// The connection under it.
    pub(super) fn tcp(&self) -> &TcpStream {
        self.tcp.as_ref()
    }

    /// Encrypts bytes and writes them. They count as written once the socket has them all; until
    /// then the same bytes must come first in each call.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has not taken them yet, and the socket's.
    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let session = &mut *self.session.borrow_mut();
        if session.sealed == 0 {
            session.sealed = session.tls.writer().write_vectored(slices)?;
        }
        session.push(self.tcp.as_ref())?;
        Ok(std::mem::take(&mut session.sealed))
    }

    /// Announces that nothing more is sent.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take all of it now, and the socket's.
    pub(super) fn try_end(&self) -> io::Result<()> {
        let session = &mut *self.session.borrow_mut();
        session.tls.send_close_notify();
        session.push(self.tcp.as_ref())
    }

    /// As [`super::ClientWriter::finish`].
    pub(super) async fn finish(&self) {
        while let Err(error) = self.try_end()
            && error.kind() == io::ErrorKind::WouldBlock
            && self.tcp.writable().await.is_ok()
        {}
        socket::finish_sending(self.tcp.as_ref());
    }
}

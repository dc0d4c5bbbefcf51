//! The socket of a client, plain or TLS, and its two halves; or that of the PostgreSQL behind a
//! port.
//!
//! The halves of a plain connection are tokio's own: TLS costs it one branch a call.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use postgres_link::PostgresSocket;
use rustls::Connection;
use service_kit::socket;
use service_kit::tasks::Tasks;
use service_kit::tls::ServerTls;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use tls::{TlsReader, TlsSession, TlsWriter};
use tokio_util::io::poll_read_buf;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

mod tls;

/// A socket that is written to without waiting.
pub(crate) trait Sink {
    /// Writes the beginning of these bytes and returns its length. Bytes that were refused come
    /// first in the next call too.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing now, and the socket's.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// As [`Sink::try_write`], for several pieces.
    ///
    /// # Errors
    /// Those of [`Sink::try_write`].
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Sink for OwnedWriteHalf {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        OwnedWriteHalf::try_write(self, bytes)
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        OwnedWriteHalf::try_write_vectored(self, slices)
    }
}

/// Most bytes that one read brings, however large the buffer: what is held of a client grows by no
/// more beyond a limit.
pub(crate) const READ_MAX: usize = 64 * 1024;

/// Pause of accepting when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts one connection of a client.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                socket::tune_accepted(&stream);
                return stream;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept; check the limit of open files (ulimit -n)");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection that is ready for commands.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Plain(TcpStream),
    /// Its TLS handshake is complete.
    Tls(TcpStream, Box<Connection>),
}

impl ClientSocket {
    /// Makes a new connection ready for commands.
    ///
    /// A TLS handshake is computed on the process' other threads: a thousand clients that connect
    /// at once do not delay those that are connected.
    ///
    /// # Errors
    /// The socket's, and those of the handshake.
    pub(crate) async fn prepared(
        stream: TcpStream,
        tls: Option<ServerTls>,
        tasks: &Tasks,
        stop: &CancellationToken,
    ) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(stream)) };
        // A socket belongs to the event queue of one runtime.
        let stream = stream.into_std()?;
        let handshake = tasks.spawn(async move {
            let (stream, session) = tls.accept(TcpStream::from_std(stream)?).await?.into_inner();
            io::Result::Ok((stream.into_std()?, session))
        });
        let done = tokio::select! {
            done = AbortOnDropHandle::new(handshake) => done.map_err(io::Error::other)?,
            () = stop.cancelled() => return Err(io::ErrorKind::ConnectionAborted.into()),
        };
        let (stream, session) = done?;
        let stream = TcpStream::from_std(stream)?;
        // Before its first event the socket takes nothing, and the handshake may have read a QUIT,
        // whose reply would be lost.
        stream.writable().await?;
        Ok(Self::Tls(stream, Box::new(session.into())))
    }

    /// The socket of a connection to a server.
    pub(crate) fn of_server(socket: PostgresSocket) -> Self {
        match socket {
            PostgresSocket::Left(tcp) => Self::Plain(tcp),
            PostgresSocket::Right(stream) => {
                let (tcp, session) = stream.into_inner();
                Self::Tls(tcp, Box::new(session.into()))
            }
        }
    }

    /// The connection under it.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) | Self::Tls(tcp, _) => tcp,
        }
    }

    pub(crate) fn into_split(self) -> (ClientReader, ClientWriter) {
        match self {
            Self::Plain(tcp) => {
                let (reader, writer) = tcp.into_split();
                (ClientReader::Plain(reader), ClientWriter::Plain(writer))
            }
            Self::Tls(tcp, connection) => {
                let (reader, writer) = tcp.into_split();
                let session = Rc::new(RefCell::new(TlsSession::new(*connection)));
                let reader = TlsReader::new(reader, Rc::clone(&session));
                (ClientReader::Tls(reader), ClientWriter::Tls(TlsWriter::new(writer, session)))
            }
        }
    }
}

/// The half that receives.
#[derive(Debug)]
pub(crate) enum ClientReader {
    Plain(OwnedReadHalf),
    Tls(TlsReader),
}

impl ClientReader {
    /// Appends what has arrived, at most [`READ_MAX`] bytes; 0 when the client sends no more.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The socket's, and bytes that are no TLS: the connection must not be used again.
    pub(crate) async fn read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read_buf(&mut buf.limit(READ_MAX)).await,
            Self::Tls(reader) => reader.read_buf(buf).await,
        }
    }

    /// Appends what has arrived, at most what the buffer has room for without TLS; no bytes when
    /// the client sends no more.
    ///
    /// # Errors
    /// Those of [`ClientReader::read_buf`].
    pub(crate) fn poll_read_buf(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(reader) => poll_read_buf(Pin::new(reader), cx, buf),
            Self::Tls(reader) => reader.poll_read_buf(cx, buf),
        }
    }

    /// Appends what has arrived by now, at most [`READ_MAX`] bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing, and those of [`ClientReader::read_buf`].
    pub(crate) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.try_read_buf(&mut buf.limit(READ_MAX)),
            Self::Tls(reader) => reader.try_read_buf(buf),
        }
    }
}

/// The half that sends.
#[derive(Debug)]
pub(crate) enum ClientWriter {
    Plain(OwnedWriteHalf),
    Tls(TlsWriter),
}

impl ClientWriter {
    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.tcp().writable().await
    }

    /// Registers for the socket to take more, and returns `Ready` if it may take some now.
    pub(crate) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_write_ready(cx)
    }

    /// Waits until the connection is broken: reset by its client, or given up by the kernel. It
    /// takes no read to notice that, and a client that only sends no more has not broken it.
    pub(crate) async fn disconnected(&self) {
        // Without its event queue the thread is ending.
        let _ = self.tcp().ready(Interest::ERROR).await;
    }

    /// The connection under it.
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(writer) => writer.as_ref(),
            Self::Tls(writer) => writer.tcp(),
        }
    }

    /// Announces the end as far as the socket takes it now; for a connection that is dropped.
    pub(crate) fn say_end(&self) {
        if let Self::Tls(writer) = self {
            // A client that does not read gets no end.
            let _ = writer.try_end();
        }
    }

    /// Ends the sending direction, once everything was written. It waits for a client that does
    /// not read.
    pub(crate) async fn finish(&self) {
        match self {
            Self::Plain(writer) => socket::finish_sending(writer.as_ref()),
            Self::Tls(writer) => writer.finish().await,
        }
    }
}

impl Sink for ClientWriter {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(writer) => writer.try_write(bytes),
            Self::Tls(writer) => writer.try_write_vectored(&[IoSlice::new(bytes)]),
        }
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(writer) => writer.try_write_vectored(slices),
            Self::Tls(writer) => writer.try_write_vectored(slices),
        }
    }
}

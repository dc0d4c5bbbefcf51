//! The socket of a client, plain or TLS, and its two halves.
//!
//! The halves of a plain connection are tokio's own: TLS costs it one branch a call.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::rc::Rc;

use bytes::BytesMut;
use rustls::ServerConnection;
use service_kit::socket;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::out::Sink;
use tls::{TlsReader, TlsSession, TlsWriter};

mod tls;

/// A connection that is ready for commands.
#[derive(Debug)]
pub(super) enum ClientSocket {
    Plain(TcpStream),
    /// Its TLS handshake is complete.
    Tls(TcpStream, Box<ServerConnection>),
}

impl ClientSocket {
    /// The connection under it.
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) | Self::Tls(tcp, _) => tcp,
        }
    }

    pub(super) fn into_split(self) -> (ClientReader, ClientWriter) {
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
pub(super) enum ClientReader {
    Plain(OwnedReadHalf),
    Tls(TlsReader),
}

impl ClientReader {
    /// Appends what has arrived; 0 when the client sends no more. Cancel-safe.
    ///
    /// # Errors
    /// The socket's, and bytes that are no TLS: the connection must not be used again.
    pub(super) async fn read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read_buf(buf).await,
            Self::Tls(reader) => reader.read_buf(buf).await,
        }
    }

    /// Appends what has arrived by now.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing, and those of [`ClientReader::read_buf`].
    pub(super) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.try_read_buf(buf),
            Self::Tls(reader) => reader.try_read_buf(buf),
        }
    }
}

/// The half that sends.
#[derive(Debug)]
pub(super) enum ClientWriter {
    Plain(OwnedWriteHalf),
    Tls(TlsWriter),
}

impl ClientWriter {
    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// The socket's.
    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Plain(writer) => writer.writable().await,
            Self::Tls(writer) => writer.writable().await,
        }
    }

    /// Announces the end as far as the socket takes it now; for a connection that is dropped.
    pub(super) fn say_end(&self) {
        if let Self::Tls(writer) = self {
            // A client that does not read gets no end.
            let _ = writer.try_end();
        }
    }

    /// Ends the sending direction, once everything was written. It waits for a client that does
    /// not read.
    pub(super) async fn finish(&self) {
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

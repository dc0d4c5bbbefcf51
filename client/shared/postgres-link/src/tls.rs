//! A byte stream to a server: plain, or over TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use service_kit::tls::{TlsClient, TlsStream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

/// The message that asks a server for TLS: its length, and 1234 and 5679 as the protocol's version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// A byte stream to a server, before any startup message.
#[derive(Debug)]
pub enum PostgresSocket {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS; the server's certificate was verified for its name.
    Tls(Box<TlsStream<TcpStream>>),
}

impl PostgresSocket {
    /// Asks the server for TLS, and speaks it.
    pub(crate) async fn over_tls(
        tls: &TlsClient,
        host: &str,
        mut stream: TcpStream,
    ) -> io::Result<Self> {
        stream.write_all(&SSL_REQUEST).await?;
        // One byte and no more: what an attacker sends behind it must not pass for the server's.
        match stream.read_u8().await? {
            b'S' => Ok(Self::Tls(Box::new(tls.connect(host, stream).await?))),
            b'N' => Err(io::Error::other("the server does not speak TLS (its setting ssl is off)")),
            _ => Err(io::Error::other("what answers there is no PostgreSQL")),
        }
    }

    /// The TCP connection below.
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for PostgresSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for PostgresSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

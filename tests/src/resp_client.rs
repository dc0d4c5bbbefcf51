//! A raw client of Redis' protocol (RESP2 and RESP3): bytes out, one reply at a time back. It does
//! nothing by itself, so that a test decides what is sent, when it is read, and what is left out.

use std::fmt;
use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::tls_client::TlsClient;
use crate::wait::soon;

use crate::resp_value;
pub use crate::resp_value::{Resp, request};

/// One connection.
#[derive(Debug)]
pub struct RespClient {
    writer: RespWriter,
    reader: RespReader,
}

/// The half of a connection that sends, plain or TLS.
pub struct RespWriter(Box<dyn AsyncWrite + Send + Sync + Unpin>);

/// The half of a connection that receives, plain or TLS.
pub struct RespReader {
    stream: Box<dyn AsyncRead + Send + Sync + Unpin>,
    buffer: BytesMut,
}

impl RespWriter {
    /// Writes bytes as they are.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }
}

impl fmt::Debug for RespWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespWriter").finish_non_exhaustive()
    }
}

impl fmt::Debug for RespReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespReader").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl RespReader {
    /// The next reply; cancel-safe: what was read so far is kept.
    ///
    /// # Errors
    /// `UnexpectedEof` where the connection was closed, `InvalidData` where the bytes are no reply.
    pub async fn next(&mut self) -> io::Result<Resp> {
        loop {
            if let Some((reply, len)) = resp_value::parse(&self.buffer)? {
                self.buffer.advance(len);
                return Ok(reply);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl RespClient {
    /// Connects to `127.0.0.1:PORT`.
    ///
    /// # Panics
    /// If no process listens there.
    pub async fn connect(address: &str) -> Self {
        Self::try_connect(address).await.unwrap_or_else(|error| panic!("{address}: {error}"))
    }

    /// Connects, or says why not.
    ///
    /// # Errors
    /// The error of the connection attempt.
    pub async fn try_connect(address: &str) -> io::Result<Self> {
        let (reader, writer) = connect(address).await?.into_split();
        Ok(Self::over(reader, writer))
    }

    /// Connects over TLS, or says why not.
    ///
    /// # Errors
    /// The error of the connection attempt or the handshake.
    pub async fn try_tls(address: &str, tls: &TlsClient) -> io::Result<Self> {
        let stream = connect(address).await?;
        let stream = soon("a handshake", tls.connect(stream)).await?;
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self::over(reader, writer))
    }

    fn over(
        reader: impl AsyncRead + Send + Sync + Unpin + 'static,
        writer: impl AsyncWrite + Send + Sync + Unpin + 'static,
    ) -> Self {
        let reader = RespReader { stream: Box::new(reader), buffer: BytesMut::new() };
        Self { writer: RespWriter(Box::new(writer)), reader }
    }

    /// Both halves, to write and to hear at the same time.
    pub fn split(self) -> (RespWriter, RespReader) {
        (self.writer, self.reader)
    }

    /// Connects and presents a credential with AUTH, which must be accepted.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn fenced(address: &str, credential: &str) -> Self {
        let mut client = Self::connect(address).await;
        client.authenticate(credential).await;
        client
    }

    /// Presents a credential with AUTH, which must be accepted.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn authenticate(&mut self, credential: &str) {
        let reply = self.call(&["AUTH", "fence", credential]).await;
        assert_eq!(reply, Resp::simple("OK"), "AUTH {credential}");
    }

    /// Writes bytes as they are.
    ///
    /// # Panics
    /// If the connection is broken, or takes nothing for long.
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        self.try_send_raw(bytes).await.expect("the connection takes bytes");
    }

    /// Writes bytes as they are, or says why not.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn try_send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        soon("the connection to take bytes", self.writer.write_all(bytes)).await
    }

    /// Writes one command, and reads nothing.
    ///
    /// # Panics
    /// If the connection is broken.
    pub async fn send(&mut self, words: &[&str]) {
        self.send_raw(&request(words)).await;
    }

    /// The next reply (or push).
    ///
    /// # Panics
    /// If none comes, the connection is closed, or the bytes are no reply.
    pub async fn reply(&mut self) -> Resp {
        self.try_reply().await.expect("a reply")
    }

    /// The next reply; an error where the connection was closed instead.
    ///
    /// # Errors
    /// `UnexpectedEof` where it was closed, `InvalidData` where the bytes are no reply.
    ///
    /// # Panics
    /// If nothing comes for long.
    pub async fn try_reply(&mut self) -> io::Result<Resp> {
        soon("a reply", self.next()).await
    }

    /// As `try_reply`, and cancel-safe: what was read so far is kept.
    ///
    /// # Errors
    /// As `try_reply`.
    pub async fn next(&mut self) -> io::Result<Resp> {
        self.reader.next().await
    }

    /// Sends one command and reads one reply.
    ///
    /// # Panics
    /// If the connection is broken.
    pub async fn call(&mut self, words: &[&str]) -> Resp {
        self.send(words).await;
        let reply = self.try_reply().await;
        reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends one command; the reply, or how the connection ended.
    ///
    /// # Errors
    /// If the connection is broken or breaks.
    pub async fn try_call(&mut self, words: &[&str]) -> io::Result<Resp> {
        self.try_send_raw(&request(words)).await?;
        self.try_reply().await
    }

    /// Sends all commands in one piece, and reads as many replies.
    ///
    /// # Panics
    /// If the connection is broken.
    pub async fn pipeline(&mut self, commands: &[&[&str]]) -> Vec<Resp> {
        let bytes: Vec<u8> = commands.iter().flat_map(|words| request(words)).collect();
        self.send_raw(&bytes).await;
        let mut replies = Vec::new();
        for _ in commands {
            replies.push(self.reply().await);
        }
        replies
    }

    /// Everything that still comes until the other side closes.
    ///
    /// # Panics
    /// If it is not closed.
    pub async fn until_closed(&mut self) -> Vec<Resp> {
        let mut replies = Vec::new();
        while let Ok(reply) = self.try_reply().await {
            replies.push(reply);
        }
        replies
    }

    /// Sends no more, and still reads.
    ///
    /// # Panics
    /// If the connection is broken.
    pub async fn finish_sending(&mut self) {
        self.writer.0.shutdown().await.expect("a half-closed connection");
    }

    /// Reads at most some kilobytes, for the replies to come; `false` at the end of the connection.
    ///
    /// # Panics
    /// If nothing comes for long, or the connection breaks.
    pub async fn receive_some(&mut self) -> bool {
        let RespReader { stream, buffer } = &mut self.reader;
        buffer.reserve(64 << 10);
        soon("some bytes", stream.read_buf(buffer)).await.expect("no broken connection") > 0
    }

    /// `true` if anything can be read within `time_ms`: for what must *not* come.
    pub async fn receives_within(&mut self, time_ms: u64) -> bool {
        let time = std::time::Duration::from_millis(time_ms);
        let RespReader { stream, buffer } = &mut self.reader;
        !buffer.is_empty() || tokio::time::timeout(time, stream.read_buf(buffer)).await.is_ok()
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = soon("a connection", TcpStream::connect(address)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

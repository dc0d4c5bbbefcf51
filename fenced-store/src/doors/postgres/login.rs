//! A client while it logs in: its socket, and the ways in which a login ends.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::cancel::CancelKey;
use super::frames;
use super::refusal::{Refusal, sqlstate};
use super::server::ServerSession;
use super::startup::PACKET_MAX;
use crate::doors::tcp::client_socket::{ClientReader, ClientWriter, Sink as _};
use crate::verdict::Fence;

/// ReadyForQuery of a session without a transaction.
pub(super) const READY: &[u8] = b"Z\0\0\0\x05I";

/// End of a client before it was admitted.
pub(super) enum Early {
    /// Its socket failed, or it left.
    Gone,
    /// It is refused.
    Refused(Refusal),
}

impl From<io::Error> for Early {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<Refusal> for Early {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Bounds a login, a hand-over included.
pub(super) async fn within<T>(
    limit: Duration,
    login: impl Future<Output = Result<T, Early>>,
) -> Result<T, Early> {
    tokio::time::timeout(limit, login).await.unwrap_or_else(|_| {
        let text = "the login did not complete in time";
        let hint = "Connect again later.";
        Err(Refusal::new(sqlstate::NOT_AUTHORIZED, text, "nothing was executed", hint).into())
    })
}

/// A client's socket while it logs in.
pub(super) struct Client {
    pub(super) reader: ClientReader,
    pub(super) writer: ClientWriter,
    /// Bytes that were received and not read.
    pub(super) inbox: BytesMut,
}

impl Client {
    /// Reads a frame; its tag is in it.
    pub(super) async fn frame(&mut self, max: usize) -> Result<Bytes, Early> {
        loop {
            let header = frames::header(&self.inbox)
                .map_err(|bad| Refusal::protocol(format!("invalid message length {}", bad.len)))?;
            if let Some((_, len)) = header {
                if len > max {
                    return Err(Refusal::protocol("the password message is too long").into());
                }
                if self.inbox.len() >= len {
                    return Ok(self.inbox.split_to(len).freeze());
                }
            }
            if self.reader.read_buf(&mut self.inbox).await? == 0 {
                return Err(Early::Gone);
            }
        }
    }

    /// Reads a packet without a tag, behind its length.
    pub(super) async fn packet(&mut self) -> Result<Bytes, Early> {
        loop {
            if let Some(len) = self.inbox.first_chunk() {
                let len = packet_len(i32::from_be_bytes(*len))?;
                if self.inbox.len() >= len {
                    let packet = self.inbox.split_to(len).freeze();
                    return Ok(packet.slice(4..));
                }
            }
            if self.reader.read_buf(&mut self.inbox).await? == 0 {
                return Err(Early::Gone);
            }
        }
    }
}

/// Checks the length of a packet without a tag.
pub(super) fn packet_len(len: i32) -> Result<usize, Refusal> {
    let refuse = || Refusal::protocol(format!("invalid length of startup packet: {len}"));
    usize::try_from(len).ok().filter(|len| (8..=PACKET_MAX).contains(len)).ok_or_else(refuse)
}

/// Writes all of the bytes.
pub(super) async fn write_all(writer: &ClientWriter, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match writer.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => writer.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A session at the server that is registered under its tokens.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) server: ServerSession,
    pub(super) fences: Vec<Fence>,
    pub(super) key: CancelKey,
}

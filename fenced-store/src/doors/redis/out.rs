//! Bytes to be written to a socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};

use crate::doors::tcp::client_socket::Sink;

/// Size from which a piece is kept as a chunk of its own instead of being copied.
const LARGE: usize = 16 * 1024;
/// Chunks of one system call.
const SLICES: usize = 16;

/// Bytes in order: small pieces gathered, large ones kept as they are.
#[derive(Debug, Default)]
pub(super) struct Out {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl Out {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a copy.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends the bytes themselves if they are large.
    pub(super) fn give(&mut self, bytes: Bytes) {
        if bytes.len() < LARGE {
            return self.copy(&bytes);
        }
        self.len += bytes.len();
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        self.chunks.push_back(bytes);
    }

    /// Returns `true` if `len` bytes are better given than copied.
    pub(super) fn is_large(len: usize) -> bool {
        len >= LARGE
    }

    /// Writes as much as the socket accepts now; `true` when nothing is left.
    ///
    /// # Errors
    /// The socket's; it must not be used again.
    pub(super) fn write_to(&mut self, socket: &impl Sink) -> io::Result<bool> {
        while self.len > 0 {
            let written = if self.chunks.is_empty() {
                socket.try_write(&self.tail)
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let pieces = self.chunks.iter().map(|chunk| &chunk[..]).chain([&self.tail[..]]);
                let mut count = 0;
                for (slot, piece) in slices.iter_mut().zip(pieces) {
                    *slot = IoSlice::new(piece);
                    count += 1;
                }
                socket.try_write_vectored(&slices[..count])
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn advance(&mut self, mut count: usize) {
        self.len -= count;
        while count > 0 {
            let Some(chunk) = self.chunks.front_mut() else {
                self.tail.advance(count);
                break;
            };
            let part = count.min(chunk.len());
            chunk.advance(part);
            count -= part;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        if self.tail.is_empty() {
            // Reuses room at the front, and releases an exceptional size.
            if self.tail.capacity() > 4 * LARGE {
                self.tail = BytesMut::new();
            } else {
                self.tail.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn bytes_leave_in_their_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let (_read, write) = stream.into_split();
        let mut out = Out::default();
        let mut expected = Vec::new();
        for round in 0..200_u32 {
            let size = if round % 3 == 0 { LARGE + round as usize } else { 100 };
            let piece = vec![round as u8; size];
            expected.extend_from_slice(&piece);
            if round % 2 == 0 { out.give(piece.into()) } else { out.copy(&piece) }
        }
        assert_eq!(out.len(), expected.len());
        let mut received = vec![0; expected.len()];
        let reader = peer.read_exact(&mut received);
        let writer = async {
            while !out.write_to(&write).unwrap() {
                write.writable().await.unwrap();
            }
        };
        let (read, ()) = tokio::join!(reader, writer);
        read.unwrap();
        assert!(received == expected && out.is_empty());
    }
}

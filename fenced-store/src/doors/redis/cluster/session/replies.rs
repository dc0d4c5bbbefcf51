//! Writing of replies. Meanwhile further commands are received: a client may have to send all of
//! them before it reads a reply.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut as _, BytesMut};
use tokio::io::AsyncWrite as _;
use tokio_util::io::poll_read_buf;

use super::{ClusterSession, ClusterSocket, FLUSH, READ};
use crate::doors::redis::backlog::{self, BUFFERS_FULL};
use crate::doors::redis::resp::encode;
use crate::doors::redis::session::Flow;
use crate::doors::tcp::client_socket::READ_MAX;

/// Result of one step.
enum Moved {
    Written(io::Result<usize>),
    Flushed(io::Result<()>),
    Received(io::Result<usize>),
    /// The client has read nothing for too long, and no more of its commands can be received.
    Nothing,
    Evicted,
}

impl ClusterSession {
    /// Writes the replies, and receives commands into `buf` where the client does not read. Stops
    /// if other clients need the memory.
    pub(super) async fn flush(&mut self, buf: &mut BytesMut) -> Flow {
        let mut written = 0;
        let mut receives = true;
        let patience = self.port.context.settings.silence.command;
        let flow = loop {
            let limit = backlog::limit(&self.identity, &self.port.budget);
            let is_full = !self.is_cut && buf.len() >= limit;
            let into = (receives && !is_full).then_some(&mut *buf);
            let moved = tokio::select! {
                biased;
                moved = step(&mut self.stream, &self.out[written..], into) => moved,
                () = self.evicted.notified() => Moved::Evicted,
                () = tokio::time::sleep(patience), if is_full => Moved::Nothing,
            };
            match moved {
                Moved::Flushed(Ok(())) => break Flow::Continue,
                Moved::Written(Ok(bytes @ 1..)) => written += bytes,
                Moved::Received(Ok(0)) => receives = false,
                Moved::Received(Ok(_)) if self.is_cut => buf.clear(),
                Moved::Received(Ok(bytes)) => {
                    self.charge.progress(bytes);
                    if !self.charge.set(buf.len() + self.out.len()) {
                        self.cut(BUFFERS_FULL, buf);
                    }
                }
                Moved::Nothing => {
                    let reason = format!("no reply was read for {} ms", patience.as_millis());
                    let unread = self.out.len() - written;
                    let budget = &self.port.budget;
                    let line = backlog::error(&reason, unread, buf.len(), &self.identity, budget);
                    self.cut(&line, buf);
                }
                Moved::Evicted => {
                    self.log_cut(BUFFERS_FULL);
                    break Flow::Close;
                }
                Moved::Written(_) | Moved::Flushed(_) | Moved::Received(_) => break Flow::Close,
            }
        };
        match self.out.capacity() > FLUSH {
            true => self.out = BytesMut::new(),
            false => self.out.clear(),
        }
        if self.is_cut { Flow::Close } else { flow }
    }

    fn log_cut(&self, reason: &str) {
        backlog::log_cut(&self.identity, self.out.len(), reason);
    }

    /// Ends the connection with an error behind the replies to all commands that were served. The
    /// other commands are dropped.
    fn cut(&mut self, line: &str, buf: &mut BytesMut) {
        self.log_cut(line);
        encode::error(&mut self.out, line);
        *buf = BytesMut::new();
        self.charge.restart();
        // An eviction ends the flush.
        let _ = self.charge.set(self.out.len());
        self.is_cut = true;
    }
}

/// Writes the beginning of `bytes`, or receives into `buf` if the socket takes nothing. Once there
/// are no bytes left, flushes the socket.
async fn step(socket: &mut ClusterSocket, bytes: &[u8], mut into: Option<&mut BytesMut>) -> Moved {
    poll_fn(|cx: &mut Context<'_>| {
        let moved = match bytes.is_empty() {
            true => Pin::new(&mut *socket).poll_flush(cx).map(Moved::Flushed),
            false => Pin::new(&mut *socket).poll_write(cx, bytes).map(Moved::Written),
        };
        let (Poll::Pending, Some(buf)) = (&moved, &mut into) else { return moved };
        buf.reserve(READ);
        poll_read_buf(Pin::new(&mut *socket), cx, &mut buf.limit(READ_MAX)).map(Moved::Received)
    })
    .await
}

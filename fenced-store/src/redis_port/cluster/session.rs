//! The port's clients before a cluster: one task each, one command after the other.
//!
//! A command is answered before the next one is looked at, so replies are in order by themselves
//! and a client that does not read is not served: what is held for it is its input up to one
//! command, and the replies of that command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::super::commands::KeyUse;
use super::super::resp::request::{Parsed, RequestLimits, RequestParser};
use super::super::resp::{Protocol, encode};
use super::super::tokens::HeldTokens;
use super::Cluster;
use crate::service::Guard;

mod budget;
mod handle;
mod local;

use budget::{Charge, FREE};

/// From so many bytes of replies on they are written before the next command is looked at.
const FLUSH: usize = 64 * 1024;
/// What one read takes at least.
const READ: usize = 16 * 1024;

/// Limits of the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of one command.
    pub(crate) max_command_bytes: usize,
    /// What is held for all clients together beyond 64 KiB for each, in bytes.
    pub(crate) max_buffer_bytes: usize,
    /// Connections at once.
    pub(crate) max_connections: usize,
}

/// The port before a cluster.
#[derive(Debug)]
pub(crate) struct ClusterPort {
    cluster: Cluster,
    guard: Arc<Guard>,
    limits: Limits,
    used: AtomicUsize,
    next_id: AtomicU64,
}

impl ClusterPort {
    /// A port that is not served yet.
    pub(crate) fn new(cluster: Cluster, guard: Arc<Guard>, limits: Limits) -> Arc<Self> {
        let (used, next_id) = (AtomicUsize::new(0), AtomicU64::new(1));
        Arc::new(Self { cluster, guard, limits, used, next_id })
    }

    /// Serves clients until the kit's tasks begin to shut down; what was begun is finished.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let tasks = self.guard.kit.tasks.clone();
        let stop = tasks.shutdown_token();
        let places = Arc::new(Semaphore::new(self.limits.max_connections));
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "the Redis port cannot accept a connection");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                // A fresh socket takes this much without waiting.
                let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
                continue;
            };
            let (port, stop) = (Arc::clone(&self), stop.clone());
            tasks.spawn(async move {
                let _ = stream.set_nodelay(true);
                Session::new(port, stream).serve(&stop).await;
                drop(place);
            });
        }
    }
}

/// Whether a client is served any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Serve,
    Close,
}

/// One client.
#[derive(Debug)]
struct Session {
    port: Arc<ClusterPort>,
    stream: TcpStream,
    charge: Charge,
    out: BytesMut,
    state: State,
}

/// What a client has told of itself.
#[derive(Debug)]
struct State {
    id: u64,
    name: Bytes,
    protocol: Protocol,
    tokens: HeldTokens,
    keys: Vec<KeyUse>,
}

impl Session {
    fn new(port: Arc<ClusterPort>, stream: TcpStream) -> Self {
        let state = State {
            id: port.next_id.fetch_add(1, Ordering::Relaxed),
            name: Bytes::new(),
            protocol: Protocol::Resp2,
            tokens: HeldTokens::default(),
            keys: Vec::new(),
        };
        Self { charge: Charge::new(Arc::clone(&port)), port, stream, out: BytesMut::new(), state }
    }

    async fn serve(mut self, stop: &CancellationToken) {
        let limits = RequestLimits {
            max_command_bytes: self.port.limits.max_command_bytes,
            ..RequestLimits::default()
        };
        let mut parser = RequestParser::new(limits);
        let mut buf = BytesMut::new();
        loop {
            let next = self.serve_buffered(&mut parser, &mut buf).await;
            if self.flush().await == Next::Close || next == Next::Close {
                return;
            }
            if buf.capacity() - buf.len() < READ / 4 {
                buf.reserve(READ);
            }
            tokio::select! {
                () = stop.cancelled() => return,
                read = self.stream.read_buf(&mut buf) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
            }
            if !self.charge.set(buf.len()) {
                encode::error(&mut self.out, BUFFERS_FULL);
                self.flush().await;
                return;
            }
        }
    }

    /// Answers the commands that are there as a whole.
    async fn serve_buffered(&mut self, parser: &mut RequestParser, buf: &mut BytesMut) -> Next {
        while !buf.is_empty() {
            match parser.parse(buf) {
                Ok(Parsed::Incomplete { at_least }) => {
                    buf.reserve(at_least.saturating_sub(buf.len()).min(4 * READ));
                    break;
                }
                Ok(Parsed::Blank { len }) => buf.advance(len),
                Ok(Parsed::Complete { len, .. }) => {
                    let command = parser.command(buf);
                    let next = self.state.answer(&self.port, command, &mut self.out).await;
                    buf.advance(len);
                    if next == Next::Close {
                        return Next::Close;
                    }
                    if self.out.len() >= FLUSH && self.flush().await == Next::Close {
                        return Next::Close;
                    }
                }
                Err(error) => {
                    encode::error(&mut self.out, &format!("ERR {error}"));
                    return Next::Close;
                }
            }
        }
        // What was answered is not held any more.
        let _ = self.charge.set(buf.len());
        if buf.is_empty() && buf.capacity() > FREE {
            *buf = BytesMut::new();
        }
        Next::Serve
    }

    async fn flush(&mut self) -> Next {
        if self.out.is_empty() {
            return Next::Serve;
        }
        let written = self.stream.write_all(&self.out).await;
        match self.out.capacity() > FLUSH {
            true => self.out = BytesMut::new(),
            false => self.out.clear(),
        }
        if written.is_ok() { Next::Serve } else { Next::Close }
    }
}

const BUFFERS_FULL: &str = "UNAVAILABLE the guard's buffers are full (--max-redis-buffer-bytes); \
                            nothing of this command was sent. Try again later, or send smaller \
                            commands";

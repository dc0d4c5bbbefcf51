//! The port's clients before a cluster: one task each, one command after the other.
//!
//! A command is answered before the next one is looked at, so replies are in order by themselves
//! and a client that does not read is not served: what is held for it is its input up to one
//! command, and the replies of that command.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use service_kit::socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::super::budget::{Budget, Charge, FREE};
use super::super::commands::KeyUse;
use super::super::patience::{Awaited, Patience};
use super::super::resp::request::{Parsed, RequestLimits, RequestParser};
use super::super::resp::{Protocol, ProtocolError, encode};
use super::super::tokens::HeldTokens;
use super::super::{LINGER, PortSettings, stranger};
use super::Cluster;
use crate::service::Guard;

mod handle;
mod local;

/// From so many bytes of replies on they are written before the next command is looked at.
const FLUSH: usize = 64 * 1024;
/// What one read takes at least.
const READ: usize = 16 * 1024;
/// Keys of a command for which memory is kept for the next one.
const KEPT_KEYS: usize = 1024;

/// The port before a cluster.
#[derive(Debug)]
pub(crate) struct ClusterPort {
    cluster: Cluster,
    guard: Arc<Guard>,
    settings: PortSettings,
    budget: Arc<Budget>,
    limits_strangers: bool,
    next_id: AtomicU64,
}

impl ClusterPort {
    /// A port that is not served yet.
    pub(crate) fn new(cluster: Cluster, guard: Arc<Guard>, settings: PortSettings) -> Arc<Self> {
        let budget = Budget::new(settings.max_buffer_bytes, settings.max_command_bytes);
        let limits_strangers = stranger::are_limited(&guard);
        let next_id = AtomicU64::new(1);
        Arc::new(Self { cluster, guard, settings, budget, limits_strangers, next_id })
    }

    /// Serves clients until the kit's tasks begin to shut down; what was begun is finished.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let tasks = self.guard.kit.tasks.clone();
        let stop = tasks.shutdown_token();
        let places = Arc::new(Semaphore::new(self.settings.max_connections));
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
                socket::tune_accepted(&stream);
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
    /// Another client's bytes took the place of this one's.
    evicted: Arc<Notify>,
    patience: Patience,
    out: BytesMut,
    state: State,
}

/// What a client has told of itself.
#[derive(Debug)]
struct State {
    id: u64,
    /// The client's address, and the guard's.
    addresses: [Option<SocketAddr>; 2],
    name: Bytes,
    protocol: Protocol,
    tokens: HeldTokens,
    /// The refusal of its tokens, with which the connection ends.
    fenced: Option<String>,
    /// It has presented a genuine token.
    is_known: bool,
    /// It has presented what the port asks its clients for: the password or a credential.
    is_admitted: bool,
    keys: Vec<KeyUse>,
}

impl Session {
    fn new(port: Arc<ClusterPort>, stream: TcpStream) -> Self {
        let state = State {
            addresses: [stream.peer_addr().ok(), stream.local_addr().ok()],
            id: port.next_id.fetch_add(1, Ordering::Relaxed),
            name: Bytes::new(),
            protocol: Protocol::Resp2,
            tokens: HeldTokens::default(),
            fenced: None,
            is_known: false,
            is_admitted: port.settings.password.is_none(),
            keys: Vec::new(),
        };
        let evicted = Arc::new(Notify::new());
        let charge = Charge::new(&port.budget, &evicted);
        let patience = Patience::new(port.settings.silence);
        Self { charge, evicted, patience, port, stream, out: BytesMut::new(), state }
    }

    async fn serve(mut self, stop: &CancellationToken) {
        let limits = RequestLimits {
            max_command_bytes: self.port.settings.max_command_bytes,
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
            if self.state.fenced.is_some() && buf.is_empty() {
                tokio::task::yield_now().await;
                match self.stream.try_read_buf(&mut buf) {
                    // The rest of a pipeline.
                    Ok(1..) => continue,
                    _ => return self.finish(stop).await,
                }
            }
            let awaited = match (buf.len(), self.is_stranger()) {
                (0, true) => Awaited::Introduction,
                (0, false) => Awaited::Command,
                (len, _) => Awaited::Rest(len),
            };
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                read = self.stream.read_buf(&mut buf) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(bytes) => {
                        self.charge.progress(bytes);
                        let fits = self.charge.set(buf.len() + parser.held_bytes());
                        (!fits).then(|| BUFFERS_FULL.to_owned())
                    }
                },
                () = self.evicted.notified() => Some(BUFFERS_FULL.to_owned()),
                reason = self.patience.ends(awaited) => Some(reason),
            };
            if let Some(line) = ended {
                encode::error(&mut self.out, &line);
                self.flush().await;
                return;
            }
        }
    }

    /// Ends a connection whose token was refused: the client reads the error, then the end.
    async fn finish(mut self, stop: &CancellationToken) {
        let mut rest = [0; 4096];
        let until_closed = async {
            // A client that is gone needs no end.
            let _ = self.stream.shutdown().await;
            while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
        };
        tokio::select! {
            _ = tokio::time::timeout(LINGER, until_closed) => {}
            () = stop.cancelled() => {}
        }
    }

    fn is_stranger(&self) -> bool {
        !self.state.is_admitted || (!self.state.is_known && self.port.limits_strangers)
    }

    /// A client without a token may send little, where every key needs one.
    fn within_strangers_limits(
        &self,
        parser: &RequestParser,
        buf: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.is_stranger() {
            return Ok(());
        }
        let policy = &self.port.guard.fencing;
        stranger::check(parser.begun(buf), |credential| {
            HeldTokens::genuine(credential, policy).is_ok()
        })
    }

    /// Answers the commands that are there as a whole.
    async fn serve_buffered(&mut self, parser: &mut RequestParser, buf: &mut BytesMut) -> Next {
        while !buf.is_empty() {
            let parsed = parser.parse(buf).and_then(|parsed| {
                self.within_strangers_limits(parser, buf)?;
                Ok(parsed)
            });
            match parsed {
                Ok(Parsed::Incomplete { at_least }) => {
                    buf.reserve(at_least.saturating_sub(buf.len()).min(4 * READ));
                    break;
                }
                Ok(Parsed::Blank { len }) => buf.advance(len),
                Ok(Parsed::Complete { len, .. }) => {
                    self.patience.renew();
                    let command = parser.command(buf);
                    let next = self.state.answer(&self.port, command, &mut self.out).await;
                    buf.advance(len);
                    if next == Next::Close {
                        return Next::Close;
                    }
                    if self.out.len() >= FLUSH {
                        // A client that does not read its replies holds them.
                        if !self.charge.set(buf.len() + self.out.len()) {
                            return Next::Close;
                        }
                        if self.flush().await == Next::Close {
                            return Next::Close;
                        }
                    }
                }
                Err(error) => {
                    encode::error(&mut self.out, &format!("ERR {error}"));
                    return Next::Close;
                }
            }
        }
        if buf.is_empty() {
            parser.shrink();
        }
        if buf.len() < READ && buf.capacity() > FREE {
            *buf = BytesMut::from(&buf[..]);
        }
        self.state.keys.clear();
        self.state.keys.shrink_to(KEPT_KEYS);
        // Where it was evicted, the wait that follows says so.
        let _ = self.charge.set(buf.len() + parser.held_bytes());
        Next::Serve
    }

    /// Writes the replies, until others need the memory and the client reads none of them.
    async fn flush(&mut self) -> Next {
        let is_written = tokio::select! {
            written = self.stream.write_all(&self.out) => written.is_ok(),
            () = self.evicted.notified() => false,
        };
        match self.out.capacity() > FLUSH {
            true => self.out = BytesMut::new(),
            false => self.out.clear(),
        }
        if is_written { Next::Serve } else { Next::Close }
    }
}

const BUFFERS_FULL: &str = "UNAVAILABLE the guard's buffers are full (--max-redis-buffer-bytes); \
                            nothing of this command was sent. Try again later, or send smaller \
                            commands";

//! The port's clients before a cluster: one task each, one command after the other.
//!
//! A command is answered before the next one is parsed, so replies are in order by themselves and a
//! client that does not read is not served: its memory is its input, within the limit of
//! [`super::super::backlog`], and the replies of one command.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use futures_util::FutureExt as _;
use service_kit::tls::ServerTlsStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use super::super::PortSettings;
use super::super::backlog::BUFFERS_FULL;
use super::super::budget::{Budget, Charge, FREE};
use super::super::commands::KeyUse;
use super::super::patience::{Awaited, Patience};
use super::super::resp::request::{Parsed, RequestLimits, RequestParser};
use super::super::resp::{Protocol, encode};
use super::super::session::{Flow, Identity, PortContext};
use super::Cluster;
use crate::doors::tcp::client_socket;
use crate::doors::tcp::front::LINGER;
use crate::guard::Guard;

mod handle;
mod local;
mod replies;

/// Replies of at least this size, in bytes, are written before the next command is parsed.
const FLUSH: usize = 64 * 1024;
/// Least free space in the buffer before a read, in bytes.
const READ: usize = 16 * 1024;
/// Keys of a command for which memory is kept for the next one.
const KEPT_KEYS: usize = 1024;

/// The port before a cluster.
#[derive(Debug)]
pub(crate) struct ClusterPort {
    cluster: Cluster,
    pub(crate) context: Arc<PortContext>,
    budget: Arc<Budget>,
}

impl ClusterPort {
    /// A port that is not served yet.
    pub(crate) fn new(cluster: Cluster, guard: Arc<Guard>, settings: PortSettings) -> Arc<Self> {
        let budget = Budget::new(settings.max_buffer_bytes, settings.max_command_bytes);
        Arc::new(Self { cluster, context: PortContext::new(guard, settings), budget })
    }

    /// Serves clients until the kit's tasks begin to shut down; begun commands are completed.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let PortContext { guard, settings, .. } = &*self.context;
        let tasks = guard.kit.tasks.clone();
        let stop = tasks.shutdown_token();
        let places = Arc::new(Semaphore::new(settings.front.max_connections));
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => return,
                stream = client_socket::accept(&listener) => stream,
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                if settings.front.tls.is_none() {
                    // A new socket takes this much without waiting.
                    let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
                }
                continue;
            };
            let port = Arc::clone(&self);
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    stream = port.prepared(stream) => match stream {
                        Ok(stream) => ClusterSession::new(port, stream).serve(&stop).await,
                        Err(error) => tracing::debug!(%error, "no TLS with a client of the Redis port"),
                    },
                    () = stop.cancelled() => {}
                }
                drop(place);
            });
        }
    }

    /// Makes a new connection ready for commands.
    async fn prepared(&self, stream: TcpStream) -> io::Result<ClusterSocket> {
        match &self.context.settings.front.tls {
            None => Ok(Either::Left(stream)),
            Some(tls) => Ok(Either::Right(Box::new(tls.accept(stream).await?))),
        }
    }
}

/// A client's socket, plain or TLS.
type ClusterSocket = Either<TcpStream, Box<ServerTlsStream>>;

/// One client of the cluster.
#[derive(Debug)]
struct ClusterSession {
    port: Arc<ClusterPort>,
    stream: ClusterSocket,
    charge: Charge,
    /// Notified when the bytes of another client need the memory of this one.
    evicted: Arc<Notify>,
    patience: Patience,
    /// Replies that are not written yet.
    out: BytesMut,
    identity: Identity,
    protocol: Protocol,
    /// Refusal of the session's tokens, with which the connection ends.
    fenced: Option<String>,
    /// The client was sent the reason why it is disconnected: its share of the buffers is full.
    is_cut: bool,
    keys: Vec<KeyUse>,
    /// Memory for the name of a key's lock.
    scratch: String,
}

impl ClusterSession {
    fn new(port: Arc<ClusterPort>, stream: ClusterSocket) -> Self {
        let evicted = Arc::new(Notify::new());
        let tcp = match &stream {
            Either::Left(tcp) => tcp,
            Either::Right(tls) => tls.get_ref().0,
        };
        Self {
            charge: Charge::new(&port.budget, &evicted),
            evicted,
            patience: Patience::new(port.context.settings.silence),
            identity: Identity::new(&port.context, tcp),
            port,
            stream,
            out: BytesMut::new(),
            protocol: Protocol::Resp2,
            fenced: None,
            is_cut: false,
            keys: Vec::new(),
            scratch: String::new(),
        }
    }

    async fn serve(mut self, stop: &CancellationToken) {
        self.serve_all(stop).await;
        if let Either::Right(stream) = &mut self.stream {
            // A client that does not read gets no end.
            let _ = stream.shutdown().now_or_never();
        }
    }

    async fn serve_all(&mut self, stop: &CancellationToken) {
        let limits = RequestLimits {
            max_command_bytes: self.port.context.settings.max_command_bytes,
            ..RequestLimits::default()
        };
        let mut parser = RequestParser::new(limits);
        let mut buf = BytesMut::new();
        loop {
            let next = self.serve_buffered(&mut parser, &mut buf).await;
            let served = buf.len();
            let flushed = self.flush(&mut buf).await;
            if self.is_cut {
                return self.finish(stop).await;
            }
            if flushed == Flow::Close || next == Flow::Close {
                return;
            }
            if buf.len() > served {
                continue;
            }
            if buf.capacity() - buf.len() < READ / 4 {
                buf.reserve(READ);
            }
            if self.fenced.is_some() && buf.is_empty() {
                tokio::task::yield_now().await;
                match self.stream.read_buf(&mut buf).now_or_never() {
                    // The rest of a pipeline.
                    Some(Ok(1..)) => continue,
                    _ => return self.finish(stop).await,
                }
            }
            let awaited = match (buf.len(), self.identity.is_stranger()) {
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
                self.flush(&mut buf).await;
                return;
            }
        }
    }

    /// Ends a connection whose token was refused: the client reads the error, then the end of the
    /// stream.
    async fn finish(&mut self, stop: &CancellationToken) {
        let mut rest = [0; 4096];
        let until_closed = async {
            // A client that has disconnected needs no end.
            let _ = self.stream.shutdown().await;
            while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
        };
        tokio::select! {
            _ = tokio::time::timeout(LINGER, until_closed) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Replies to the commands that were read whole.
    async fn serve_buffered(&mut self, parser: &mut RequestParser, buf: &mut BytesMut) -> Flow {
        while !buf.is_empty() {
            let parsed = parser.parse(buf).and_then(|parsed| {
                self.identity.check_limits(parser, buf)?;
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
                    let next = self.answer(command).await;
                    buf.advance(len);
                    if next == Flow::Close {
                        return Flow::Close;
                    }
                    if self.out.len() >= FLUSH {
                        // Unread replies count against the client's budget.
                        if !self.charge.set(buf.len() + self.out.len()) {
                            return Flow::Close;
                        }
                        if self.flush(buf).await == Flow::Close {
                            return Flow::Close;
                        }
                    }
                }
                Err(error) => {
                    encode::error(&mut self.out, &format!("ERR {error}"));
                    return Flow::Close;
                }
            }
        }
        if buf.is_empty() {
            parser.shrink();
        }
        if buf.len() < READ && buf.capacity() > FREE {
            *buf = BytesMut::from(&buf[..]);
        }
        self.keys.clear();
        self.keys.shrink_to(KEPT_KEYS);
        // An eviction shows in the next wait.
        let _ = self.charge.set(buf.len() + parser.held_bytes());
        Flow::Continue
    }
}

//! An admitted client: bytes between it and its session at the server.
//!
//! One task moves both directions. Bytes are read into a buffer of the thread and written on at
//! once; only what a socket does not take is kept, and then nothing more is read for it. So an idle
//! client has no buffer, and a slow one holds back its peer.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use super::PortThread;
use super::cancel::CancelKey;
use super::frames::BadLength;
use super::login::{Admitted, Client};
use super::refusal::{self, Refusal, sqlstate};
use super::server::ServerError;
use super::traffic::Traffic;
use crate::doors::tcp::client_socket::{ClientReader, ClientWriter, Sink};
use crate::verdict::{Fence, Mark};

/// Size of one read.
const READ: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<(BytesMut, BytesMut)> =
        RefCell::new((BytesMut::with_capacity(READ), BytesMut::with_capacity(READ)));
}

/// End of a client.
#[derive(Debug)]
pub(super) enum RelayEnd {
    /// The client left, or took nothing.
    Left,
    /// This error is its last frame.
    Refused(Bytes),
}

/// End of the exchange of bytes.
enum Stopped {
    Client,
    Server,
    /// Shutdown found nothing under way.
    Drained,
    ClientFrame(BadLength),
    ServerFrame,
}

/// A client and its session.
#[derive(Debug)]
pub(super) struct Relay {
    thread: Rc<PortThread>,
    from_client: ClientReader,
    to_client: ClientWriter,
    from_server: ClientReader,
    to_server: ClientWriter,
    /// Bytes that the server's socket has not taken.
    for_server: BytesMut,
    /// Bytes that the client's socket has not taken.
    for_client: BytesMut,
    traffic: Traffic,
    fences: Vec<Fence>,
    _key: CancelKey,
}

impl Relay {
    pub(super) fn new(thread: Rc<PortThread>, client: Client, admitted: Admitted) -> Self {
        let Client { reader, writer, inbox } = client;
        let Admitted { server, fences, key } = admitted;
        let (from_server, to_server, early) = server.into_parts();
        let mut traffic = Traffic::new();
        let mut for_client = BytesMut::new();
        // The first exchange reports a bad length too: the scanner stays where it is.
        let _ = traffic.sent(&inbox);
        let _ = traffic.received(&early, &mut for_client);
        Self {
            thread,
            from_client: reader,
            to_client: writer,
            from_server,
            to_server,
            // The login's buffer is given back, unless it has bytes left.
            for_server: if inbox.is_empty() { BytesMut::new() } else { inbox },
            for_client,
            traffic,
            fences,
            _key: key,
        }
    }

    /// Relays until one side ends, or shutdown finds the session idle.
    pub(super) async fn run(&mut self, stop: &CancellationToken) -> RelayEnd {
        let mut stops = false;
        let stopped = loop {
            tokio::select! {
                biased;
                stopped = poll_fn(|cx| self.poll_relay(cx, stops)) => break stopped,
                () = stop.cancelled(), if !stops => stops = true,
            }
        };
        // Boxed: it is large, and needed once.
        Box::pin(self.end(stopped)).await
    }

    /// Returns the client's socket, and closes the session at the server.
    pub(super) fn into_client(self) -> ClientWriter {
        self.to_client
    }

    /// Returns the last frame for the client.
    async fn end(&self, stopped: Stopped) -> RelayEnd {
        let refusal = match stopped {
            Stopped::Client => return RelayEnd::Left,
            Stopped::Drained => Refusal::new(
                sqlstate::SHUTDOWN,
                "the guard is shutting down",
                "no statement was under way",
                "Connect again.",
            ),
            Stopped::ClientFrame(bad) => Refusal::protocol(format!(
                "invalid length {} of a message of kind {:?}",
                bad.len,
                char::from(bad.tag)
            )),
            Stopped::ServerFrame => self.lost("the server sent a message without a length"),
            Stopped::Server => match (self.preempted().await, self.traffic.fatal()) {
                (Some(refusal), _) => refusal,
                (None, Some(fatal)) => Refusal::OfServer(fatal.clone()),
                (None, None) => self.lost("the server closed the connection"),
            },
        };
        // Inside a cut frame the client would read an error as data.
        match self.traffic.is_at_boundary() && self.for_client.is_empty() {
            true => RelayEnd::Refused(refusal.frame()),
            false => RelayEnd::Left,
        }
    }

    fn lost(&self, message: &str) -> Refusal {
        let outcome = refusal::outcome(self.traffic.is_unknown());
        let hint = "Connect again, and read what a statement with an unknown outcome has done.";
        Refusal::new(sqlstate::CONNECTION, message, outcome, hint)
    }

    /// Returns the error of a session that a higher token has ended.
    async fn preempted(&self) -> Option<Refusal> {
        let port = &self.thread.port;
        for fence in &self.fences {
            // Where the mark cannot be read, the client gets the server's own error.
            let Some(mark) = self.newer(fence).await.ok().flatten() else { continue };
            let is_unknown = self.traffic.is_unknown();
            let refusal = Refusal::preempted(fence, mark.token, is_unknown);
            port.counters.preempted.inc();
            port.record_preempted(fence, mark);
            return Some(refusal);
        }
        None
    }

    /// Returns a mark above the session's token. Seals and floors end sessions before they commit.
    async fn newer(&self, fence: &Fence) -> Result<Option<Mark>, ServerError> {
        let registry = &self.thread.registry;
        let is_newer = |mark: &Mark| mark.token > fence.presented.token;
        let found = registry.bound(&fence.lock).await?.filter(is_newer);
        if found.is_some() || self.traffic.fatal().is_none() {
            return Ok(found);
        }
        registry.await_seal(&fence.lock).await?;
        Ok(registry.bound(&fence.lock).await?.filter(is_newer))
    }

    /// Moves bytes while any can be moved.
    fn poll_relay(&mut self, cx: &mut Context<'_>, stops: bool) -> Poll<Stopped> {
        SCRATCH.with_borrow_mut(|(read, out)| {
            loop {
                let up = self.poll_up(cx, read);
                if let Poll::Ready(Err(stopped)) = up {
                    return Poll::Ready(stopped);
                }
                let down = self.poll_down(cx, read, out);
                if let Poll::Ready(Err(stopped)) = down {
                    return Poll::Ready(stopped);
                }
                if up.is_pending() && down.is_pending() {
                    let is_at_rest = self.traffic.is_idle() && self.for_client.is_empty();
                    if stops && is_at_rest {
                        return Poll::Ready(Stopped::Drained);
                    }
                    return Poll::Pending;
                }
            }
        })
    }

    /// Moves bytes of the client to the server.
    fn poll_up(&mut self, cx: &mut Context<'_>, read: &mut BytesMut) -> Poll<Result<(), Stopped>> {
        if !self.for_server.is_empty() {
            let sent = match ready!(self.to_server.poll_writable(cx)) {
                Ok(()) => ready!(write(&self.to_server, &mut self.for_server, cx)),
                failed => failed,
            };
            return self.sent(&sent);
        }
        read.clear();
        let count = ready!(self.from_client.poll_read_buf(cx, read));
        match count {
            Ok(0) | Err(_) => return Poll::Ready(Err(Stopped::Client)),
            Ok(_) => {}
        }
        let scanned = self.traffic.sent(read);
        if let Err(bad) = scanned {
            return Poll::Ready(Err(Stopped::ClientFrame(bad)));
        }
        let sent = send(&self.to_server, read, &mut self.for_server);
        self.sent(&sent)
    }

    /// A server that takes nothing more may have sent the reason, which is still to be read.
    fn sent(&mut self, sent: &io::Result<()>) -> Poll<Result<(), Stopped>> {
        if sent.is_err() {
            self.for_server = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Moves bytes of the server to the client.
    fn poll_down(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut BytesMut,
        out: &mut BytesMut,
    ) -> Poll<Result<(), Stopped>> {
        if !self.for_client.is_empty() {
            ready!(self.to_client.poll_writable(cx)).map_err(|_| Stopped::Client)?;
            return write(&self.to_client, &mut self.for_client, cx).map_err(|_| Stopped::Client);
        }
        read.clear();
        let count = ready!(self.from_server.poll_read_buf(cx, read));
        match count {
            Ok(0) | Err(_) => return Poll::Ready(Err(Stopped::Server)),
            Ok(_) => {}
        }
        out.clear();
        if self.traffic.received(read, out).is_err() {
            return Poll::Ready(Err(Stopped::ServerFrame));
        }
        let sent = send(&self.to_client, out, &mut self.for_client);
        Poll::Ready(sent.map_err(|_| Stopped::Client))
    }
}

/// Writes bytes, and keeps those that the socket does not take.
fn send(socket: &impl Sink, bytes: &[u8], kept: &mut BytesMut) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match socket.try_write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                kept.extend_from_slice(rest);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes kept bytes; their memory is given back once all are written.
fn write(socket: &impl Sink, kept: &mut BytesMut, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    match socket.try_write(kept) {
        Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        Ok(count) => {
            kept.advance(count);
            if kept.is_empty() {
                *kept = BytesMut::new();
            }
            Poll::Ready(Ok(()))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            // The readiness was used up; the next poll registers again.
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        Err(error) => Poll::Ready(Err(error)),
    }
}

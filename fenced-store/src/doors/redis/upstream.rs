//! One connection to Redis that carries the commands of one client, or of many with the same
//! tokens.
//!
//! It was registered under its tokens before it exists here (see [`connect`]), so a command on it
//! takes effect before a higher token is admitted, or never. Commands are sent unchanged; replies
//! are split and delivered as they arrive.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::budget::{Budget, FixedCharge};
use super::commands::names::Listing;
use super::out::Out;
use super::outbox::Outbox;
use super::resp::Protocol;
use super::script_denial::{ScriptDenials, ScriptName};

mod barrier;
pub(super) mod connect;
mod error_lines;
mod reader;

use barrier::Barrier;

/// Number of unsent bytes at which clients have to wait before they send more.
const FULL: usize = 4 << 20;
/// Time that Redis may leave a probe without reply.
const PROBE: Duration = Duration::from_secs(5);
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// A usable connection, until it breaks.
#[derive(Debug)]
pub(super) struct Upstream {
    socket: OwnedWriteHalf,
    state: RefCell<UpstreamState>,
    /// There are bytes to write, or the connection broke.
    work: Notify,
    /// There is room again, or the connection broke.
    pub(super) room: Notify,
    /// The client of an own connection.
    owner: Option<Rc<Outbox>>,
    /// Replacements for Redis' refusals of scripts, on an own connection.
    denials: Option<ScriptDenials>,
    /// The connection is to be closed.
    closing: Notify,
    /// Number of reads.
    reads: Cell<u64>,
    /// Number of checks in a row that found the connection unused.
    idle_checks: Cell<u32>,
}

#[derive(Debug)]
struct UpstreamState {
    out: Out,
    charge: FixedCharge,
    waiting: VecDeque<Waiting>,
    broken: Option<Rc<str>>,
    barrier: Barrier,
    /// Number of awaited barriers.
    barriers: usize,
    /// Redis is in RESP2's subscriber mode, in which every reply is a message.
    subscribed: bool,
}

impl UpstreamState {
    /// Charges the unsent bytes to the budget. Senders wait while there are too many ([`FULL`]);
    /// bytes that they hold meanwhile are their own charge.
    fn settle(&mut self) {
        self.charge.set(self.out.len());
    }
}

/// Next thing expected of Redis.
#[derive(Debug)]
enum Waiting {
    /// A reply to this client.
    Reply {
        outbox: Rc<Outbox>,
        /// Reply in place of Redis' own.
        instead: Option<Instead>,
    },
    /// The end of the replies to a subscription of the owner.
    Barrier,
    /// The reply to a command of the guard's own.
    Probe,
}

/// Reply to a client in place of Redis'.
#[derive(Clone, Debug)]
pub(super) enum Instead {
    /// These bytes.
    Reply(Bytes),
    /// Redis' reply to this script, or to the EXEC of a transaction with scripts, in which errors
    /// are replaced.
    Script(ScriptName),
    /// The reply made from the names in so many replies.
    Names { listing: Listing, replies: u32, protocol: Protocol },
}

/// Bytes of a command, to be copied or moved.
pub(super) enum Raw<'a> {
    Copy(&'a [u8]),
    Give(Bytes),
}

impl Upstream {
    /// Starts serving a connection that was set up; with `owner` it is one client's own. `on_end`
    /// runs when it ends, for any reason.
    pub(super) fn start(
        stream: TcpStream,
        (owner, denials): (Option<Rc<Outbox>>, Option<ScriptDenials>),
        budget: &Arc<Budget>,
        on_end: impl FnOnce() + 'static,
    ) -> Rc<Self> {
        let (reader, socket) = stream.into_split();
        let upstream = Rc::new(Self {
            socket,
            state: RefCell::new(UpstreamState {
                out: Out::default(),
                charge: FixedCharge::new(budget),
                waiting: VecDeque::new(),
                broken: None,
                barrier: Barrier::new(),
                barriers: 0,
                subscribed: false,
            }),
            work: Notify::new(),
            room: Notify::new(),
            owner,
            denials,
            closing: Notify::new(),
            reads: Cell::new(0),
            idle_checks: Cell::new(0),
        });
        spawn_local(Rc::clone(&upstream).write_loop());
        let served = Rc::clone(&upstream);
        spawn_local(async move {
            served.read_loop(reader).await;
            on_end();
        });
        upstream
    }

    /// Queues a command of `outbox`, which is sent by the next [`Upstream::kick`]. Callable only
    /// while [`Upstream::broken`] is `None`.
    pub(super) fn send(&self, outbox: &Rc<Outbox>, raw: Raw<'_>, instead: Option<Instead>) {
        let mut state = self.state.borrow_mut();
        match raw {
            Raw::Copy(bytes) => state.out.copy(bytes),
            Raw::Give(bytes) => state.out.give(bytes),
        }
        state.settle();
        outbox.expect();
        self.idle_checks.set(0);
        state.waiting.push_back(Waiting::Reply { outbox: Rc::clone(outbox), instead });
    }

    /// Queues a command of the guard's own, whose short reply is dropped.
    pub(super) fn send_own(&self, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        state.out.copy(bytes);
        state.waiting.push_back(Waiting::Probe);
    }

    /// Queues a command of the owner whose number of replies is unknown: a subscription, or any
    /// command in RESP2's subscriber mode. It counts as one expected reply until all of its replies
    /// were delivered.
    pub(super) fn send_to_subscriber(&self, raw: Bytes) {
        let Some(owner) = &self.owner else { return };
        let state = &mut *self.state.borrow_mut();
        state.out.give(raw);
        state.out.copy(&state.barrier.command());
        state.settle();
        owner.expect();
        state.barriers += 1;
        state.waiting.push_back(Waiting::Barrier);
    }

    /// Sends the queued commands: at once if the client `is_alone`; otherwise with those of other
    /// clients when it is the writer's turn, so that Redis is woken once for all clients of a turn.
    pub(super) fn kick(&self, is_alone: bool) {
        let state = &mut *self.state.borrow_mut();
        if state.out.is_empty() || state.broken.is_some() {
            return;
        }
        if !(is_alone && matches!(state.out.write_to(&self.socket), Ok(true))) {
            self.work.notify_one();
        }
        state.settle();
    }

    /// Returns `true` if the owner is in RESP2's subscriber mode, or may be: a subscription is
    /// under way.
    pub(super) fn is_subscribed(&self) -> bool {
        let state = self.state.borrow();
        state.subscribed || state.barriers > 0
    }

    /// Returns `true` if it is one client's own.
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns the reason why it broke, if it did.
    pub(super) fn broken(&self) -> Option<Rc<str>> {
        self.state.borrow().broken.clone()
    }

    /// Returns `true` if it broke.
    pub(super) fn is_broken(&self) -> bool {
        self.state.borrow().broken.is_some()
    }

    /// Returns `true` if no client waits for a reply on it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.state.borrow().waiting.is_empty()
    }

    /// Returns `true` if it was not used since the check before the last; this call is a check.
    pub(super) fn is_idle(&self) -> bool {
        let checks = self.idle_checks.get() + 1;
        self.idle_checks.set(checks);
        checks > 2 && self.state.borrow().waiting.is_empty()
    }

    /// Returns `true` if senders have to wait for [`Upstream::room`].
    pub(super) fn is_full(&self) -> bool {
        let state = self.state.borrow();
        state.out.len() > FULL && state.broken.is_none()
    }

    /// Closes a shared connection unless Redis sends something on it in time. Shared connections
    /// reply at once: no blocking command is sent on them.
    pub(super) fn probe(self: &Rc<Self>) {
        if self.is_broken() {
            return;
        }
        self.send_own(PING);
        self.work.notify_one();
        let upstream = Rc::clone(self);
        let reads = self.reads.get();
        spawn_local(async move {
            tokio::time::sleep(PROBE).await;
            if upstream.reads.get() == reads {
                let seconds = PROBE.as_secs();
                upstream.close_for(&format!("Redis sent nothing for {seconds} s"));
            }
        });
    }

    /// Closes the connection. From now on it counts as broken: nothing more is sent on it or
    /// delivered from it.
    pub(super) fn close(&self) {
        self.close_for("closed");
    }

    fn close_for(&self, why: &str) {
        self.state.borrow_mut().broken.get_or_insert_with(|| why.into());
        self.closing.notify_one();
    }

    fn break_off(&self, why: &str) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.broken.get_or_insert_with(|| why.into());
            state.out = Out::default();
            state.settle();
            std::mem::take(&mut state.waiting)
        };
        for waiting in waiting {
            if let Waiting::Reply { outbox, .. } = waiting {
                outbox.wake.notify_one();
            }
        }
        if let Some(owner) = &self.owner {
            owner.wake.notify_one();
        }
        self.room.notify_waiters();
        self.work.notify_one();
    }

    async fn write_loop(self: Rc<Self>) {
        loop {
            self.work.notified().await;
            loop {
                let written = {
                    let mut state = self.state.borrow_mut();
                    if state.broken.is_some() {
                        return;
                    }
                    let written = state.out.write_to(&self.socket);
                    state.settle();
                    written
                };
                match written {
                    Ok(true) => break,
                    // An error shows in the next write; a break wakes this too.
                    Ok(false) => tokio::select! {
                        _ = self.socket.writable() => {}
                        () = self.work.notified() => {}
                    },
                    // The reader notices too, after it has read every last reply.
                    Err(_) => return,
                }
                if !self.is_full() {
                    self.room.notify_waiters();
                }
            }
            self.room.notify_waiters();
        }
    }
}

//! Replies to one client, in the order of its commands.
//!
//! The reply to a forwarded command is *expected*: it arrives from an upstream connection later. A
//! reply by the guard itself waits behind the expected replies of earlier commands. A client has
//! commands on one upstream connection at a time, so replies need no numbers.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use super::budget::{Budget, Charge};
use super::out::Out;
use super::resp::encode;
use crate::doors::tcp::client_socket::ClientWriter;

/// Most replies due to one client; commands beyond that wait unread.
const QUEUED_MAX: u64 = 512;
/// Memory of a queued reply by the guard beside its bytes.
const LOCAL_BYTES: usize = 128;

/// Number of replies that the clients of one thread expect.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight(Rc<Cell<u64>>);

impl InFlight {
    fn add(&self, count: u64) {
        self.0.set(self.0.get() + count);
    }

    fn remove(&self, count: u64) {
        self.0.set(self.0.get() - count);
    }
}

/// Replies to one client.
#[derive(Debug)]
pub(super) struct Outbox {
    socket: ClientWriter,
    in_flight: InFlight,
    /// Unread bytes from which on the client is not served until it reads, or until more bytes of
    /// its commands wait.
    high_water: usize,
    inner: RefCell<OutboxState>,
    /// Bytes of the client's commands that wait to be served.
    backlog: Cell<usize>,
    /// Wakes the client's task after a change that it may wait for.
    pub(super) wake: Arc<Notify>,
    /// Wakes an own upstream connection that waits for this client to read.
    pub(super) drained: Notify,
}

#[derive(Debug)]
struct OutboxState {
    out: Out,
    charge: Charge,
    /// Bytes that the client's socket has taken since the connection began.
    written: u64,
    /// Commands forwarded since the connection began.
    sent: u64,
    /// Of these, commands whose reply is complete.
    done: u64,
    /// Replies by the guard, each behind the forwarded command of its number.
    local: VecDeque<(u64, Bytes)>,
    /// Memory of these, in bytes.
    local_bytes: usize,
    /// A reply that is changed once it is whole.
    held: BytesMut,
    /// The held reply exceeded the budget and was dropped.
    is_held_lost: bool,
    /// The client's task waits until no reply is expected, or there is room.
    waits: bool,
    queued_for_flush: bool,
    /// A reply or a message was added in part; the rest of it must follow.
    is_open: bool,
    end: Option<End>,
}

/// Reason why a client can be served no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client has disconnected.
    Gone,
    /// A reply was cut off in its middle.
    Cut,
    /// The client did not read, and the guard may hold no more for it.
    TooSlow,
}

impl Outbox {
    pub(super) fn new(socket: ClientWriter, budget: &Arc<Budget>, in_flight: InFlight) -> Rc<Self> {
        let wake = Arc::new(Notify::new());
        Rc::new(Self {
            socket,
            in_flight,
            high_water: budget.high_water(),
            inner: RefCell::new(OutboxState {
                out: Out::default(),
                charge: Charge::new(budget, &wake),
                written: 0,
                sent: 0,
                done: 0,
                local: VecDeque::new(),
                local_bytes: 0,
                held: BytesMut::new(),
                is_held_lost: false,
                waits: false,
                queued_for_flush: false,
                is_open: false,
                end: None,
            }),
            backlog: Cell::new(0),
            wake,
            drained: Notify::new(),
        })
    }

    /// Records that a command of this client was forwarded.
    pub(super) fn expect(&self) {
        self.inner.borrow_mut().sent += 1;
        self.in_flight.add(1);
    }

    /// `true` if no other client of the thread expects a reply.
    pub(super) fn is_alone(&self) -> bool {
        self.in_flight.0.get() == self.expected()
    }

    /// Number of expected replies.
    pub(super) fn expected(&self) -> u64 {
        let inner = self.inner.borrow();
        inner.sent - inner.done
    }

    /// `true` if no more commands of the client are served until replies are complete and read.
    ///
    /// A client may write all of its commands before it reads a reply. So beyond the high water
    /// mark as many bytes of replies may wait as bytes of its commands, `backlog`: whichever of
    /// both is smaller bounds the other.
    pub(super) fn is_full(&self, backlog: usize) -> bool {
        let inner = self.inner.borrow();
        let queued = inner.sent - inner.done + inner.local.len() as u64;
        queued >= QUEUED_MAX || inner.out.len() + inner.local_bytes >= self.high_water.max(backlog)
    }

    /// Records how many bytes of the client's commands wait, by which an own upstream connection
    /// decides if it delivers more.
    pub(super) fn set_backlog(&self, bytes: usize) {
        if self.backlog.replace(bytes) < bytes {
            self.drained.notify_one();
        }
    }

    /// `true` if an own upstream connection delivers nothing more until the client reads.
    pub(super) fn holds_up(&self) -> bool {
        self.unread() > self.high_water.max(self.backlog.get())
    }

    /// `true` if the client leaves many replies unread: it may have to send all of its commands
    /// before it reads.
    pub(super) fn is_unread(&self) -> bool {
        self.unread() >= self.high_water
    }

    /// Bytes that the client has not read yet.
    pub(super) fn unread(&self) -> usize {
        self.inner.borrow().out.len()
    }

    /// Bytes that the client's socket has taken since the connection began.
    pub(super) fn written(&self) -> u64 {
        self.inner.borrow().written
    }

    pub(super) fn end(&self) -> Option<End> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.charge.is_evicted() {
            inner.end.get_or_insert(End::TooSlow);
        }
        inner.end
    }

    /// Requests a wake-up for the time when no reply is expected any more.
    pub(super) fn wait(&self) {
        self.inner.borrow_mut().waits = true;
    }

    /// Adds a part of a reply or of a push message; `ends` with the last part.
    pub(super) fn copy(&self, bytes: &[u8], ends: bool) {
        self.add(|out| out.copy(bytes), ends);
    }

    /// Adds a part like `copy`, but without copying large ones.
    pub(super) fn give(&self, bytes: Bytes, ends: bool) {
        self.add(|out| out.give(bytes), ends);
    }

    fn add(&self, add: impl FnOnce(&mut Out), ends: bool) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.end.is_some() {
            return;
        }
        add(&mut inner.out);
        inner.is_open = !ends;
        inner.release_local();
        self.settle(inner);
        self.end_wait(inner);
    }

    /// Holds a part of the next expected reply. One that exceeds the budget is dropped: its client
    /// has received nothing of it, and can receive an error in its place.
    pub(super) fn hold(&self, bytes: &[u8]) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.end.is_some() || inner.is_held_lost {
            return;
        }
        inner.held.extend_from_slice(bytes);
        if !inner.is_within_budget() {
            inner.held = BytesMut::new();
            inner.is_held_lost = true;
            inner.charge.restart();
            self.settle(inner);
        }
    }

    /// Adds what `make` returns for the held reply, or the error `too_large`.
    pub(super) fn pass_held(&self, make: impl FnOnce(Bytes) -> Bytes, too_large: &str) {
        let (held, is_lost) = {
            let inner = &mut *self.inner.borrow_mut();
            (std::mem::take(&mut inner.held), std::mem::take(&mut inner.is_held_lost))
        };
        if is_lost {
            let mut error = BytesMut::new();
            encode::error(&mut error, too_large);
            self.copy(&error, true);
        } else {
            self.give(make(held.freeze()), true);
        }
    }

    /// Records that the next expected reply is complete.
    pub(super) fn done(&self) {
        let inner = &mut *self.inner.borrow_mut();
        inner.done += 1;
        self.in_flight.remove(1);
        inner.release_local();
        self.settle(inner);
        self.end_wait(inner);
    }

    /// Adds a reply by the guard, behind the expected ones and never within a reply or a message.
    pub(super) fn local(&self, write: impl FnOnce(&mut BytesMut)) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.end.is_some() {
            return;
        }
        let mut bytes = BytesMut::new();
        write(&mut bytes);
        if inner.may_write() {
            inner.out.copy(&bytes);
        } else {
            inner.local_bytes += bytes.len() + LOCAL_BYTES;
            inner.local.push_back((inner.sent, bytes.freeze()));
        }
        self.settle(inner);
    }

    /// Adds an error by the guard, behind the expected replies.
    pub(super) fn error(&self, line: &str) {
        self.local(|out| encode::error(out, line));
    }

    /// Replies to each expected command with the error `line`: no reply of Redis will come.
    pub(super) fn fail_expected(&self, line: &str) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_open {
            // The rest of the begun reply is lost.
            inner.end.get_or_insert(End::Cut);
        }
        if inner.end.is_some() {
            return;
        }
        inner.held = BytesMut::new();
        inner.is_held_lost = false;
        let mut bytes = BytesMut::new();
        encode::error(&mut bytes, line);
        while inner.done < inner.sent {
            inner.out.copy(&bytes);
            inner.done += 1;
            self.in_flight.remove(1);
            inner.release_local();
        }
        self.settle(inner);
    }

    /// Wakes the client's task if it waits until no reply is expected any more.
    fn end_wait(&self, inner: &mut OutboxState) {
        if inner.waits && inner.may_write() {
            inner.waits = false;
            self.wake.notify_one();
        }
    }

    /// Charges the memory that is held now to the budget.
    fn settle(&self, inner: &mut OutboxState) {
        if !inner.is_within_budget() {
            inner.end.get_or_insert(End::TooSlow);
            self.wake.notify_one();
        }
    }

    /// Records that the client can be served no longer, and wakes its task.
    pub(super) fn end_with(&self, why: End) {
        let mut inner = self.inner.borrow_mut();
        inner.end.get_or_insert(why);
        self.wake.notify_one();
    }

    /// Marks the outbox for a flush; returns `false` if it is marked already.
    pub(super) fn mark_for_flush(&self) -> bool {
        !std::mem::replace(&mut self.inner.borrow_mut().queued_for_flush, true)
    }

    /// Writes what the socket takes now, for the client's own task.
    pub(super) fn flush(&self) {
        self.write();
    }

    /// Writes what the socket takes now, for other tasks than the client's, which is woken if
    /// something is left to write.
    pub(super) fn flush_and_wake(&self) {
        if !self.write() {
            self.wake.notify_one();
        }
    }

    /// Writes what the socket takes now; returns `true` if nothing is left.
    fn write(&self) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        inner.queued_for_flush = false;
        if inner.out.is_empty() {
            return true;
        }
        let before = inner.out.len();
        let written = inner.out.write_to(&self.socket);
        if written.is_err() {
            inner.end.get_or_insert(End::Gone);
        }
        if written.is_ok() {
            let taken = before - inner.out.len();
            inner.written += taken as u64;
            inner.charge.progress(taken);
        }
        self.settle(inner);
        if inner.out.len() < self.high_water || written.is_err() {
            self.drained.notify_one();
        }
        matches!(written, Ok(true))
    }

    /// Announces the end of a connection that is dropped.
    pub(super) fn say_end(&self) {
        self.socket.say_end();
    }

    /// Ends the sending direction, once everything was written.
    pub(super) async fn finish(&self) {
        self.socket.finish().await;
    }

    /// Waits until the socket takes more.
    pub(super) async fn writable(&self) {
        // An error shows in the write that follows.
        let _ = self.socket.writable().await;
    }

    /// Waits until the client's connection is broken; it needs no read.
    pub(super) async fn disconnected(&self) {
        self.socket.disconnected().await;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.in_flight.remove(self.expected());
    }
}

impl OutboxState {
    /// Charges the memory that is held now, and returns whether the budget allows it.
    fn is_within_budget(&mut self) -> bool {
        self.charge.set(self.out.len() + self.local_bytes + self.held.len())
    }

    /// `true` if a reply by the guard can be written at once.
    fn may_write(&self) -> bool {
        self.sent == self.done && !self.is_open
    }

    fn release_local(&mut self) {
        while !self.is_open
            && let Some((behind, _)) = self.local.front()
            && *behind <= self.done
            && let Some((_, bytes)) = self.local.pop_front()
        {
            self.local_bytes -= bytes.len() + LOCAL_BYTES;
            self.out.copy(&bytes);
        }
    }
}

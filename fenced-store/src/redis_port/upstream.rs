//! One connection to Redis that carries the commands of one client, or of many with the same tokens.
//!
//! It was registered under its tokens before it exists here (see [`connect`]), so whatever is sent on
//! it either takes effect before a higher token is admitted, or never. Commands travel as they came;
//! replies are cut apart and handed on as they come.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::out::Out;
use super::outbox::{End, HIGH_WATER, Outbox};
use super::resp::reply::ReplyScanner;

pub(super) mod connect;
mod subscriber;

use subscriber::Subscriber;

/// What one read takes at most.
const READ: usize = 64 * 1024;
/// From so many unsent bytes on clients have to wait before they send more.
const FULL: usize = 4 << 20;

/// A connection that may be used, until it breaks.
#[derive(Debug)]
pub(super) struct Upstream {
    socket: OwnedWriteHalf,
    state: RefCell<State>,
    /// Something is to be written, or the connection broke.
    work: Notify,
    /// There is room again, or the connection broke.
    pub(super) room: Notify,
    /// The client of an own connection.
    owner: Option<Rc<Outbox>>,
    /// The connection is to be closed.
    closing: Notify,
    /// How often nobody had used it when it was looked at, in a row.
    idle_looks: Cell<u32>,
}

#[derive(Debug)]
struct State {
    out: Out,
    waiting: VecDeque<Waiting>,
    broken: Option<Rc<str>>,
    subscriber: Option<Subscriber>,
}

/// Who waits for the next reply.
#[derive(Debug)]
struct Waiting {
    outbox: Rc<Outbox>,
    /// What is answered in place of Redis' own reply.
    instead: Option<Bytes>,
}

/// The bytes of a command, to be copied or to be given.
pub(super) enum Raw<'a> {
    Copy(&'a [u8]),
    Give(Bytes),
}

impl Upstream {
    /// Starts serving a connection that was set up; `owner` where it is one client's own.
    /// `on_end` runs when it is over, whatever ended it.
    pub(super) fn start(
        stream: TcpStream,
        owner: Option<Rc<Outbox>>,
        on_end: impl FnOnce() + 'static,
    ) -> Rc<Self> {
        let (reader, socket) = stream.into_split();
        let upstream = Rc::new(Self {
            socket,
            state: RefCell::new(State {
                out: Out::default(),
                waiting: VecDeque::new(),
                broken: None,
                subscriber: None,
            }),
            work: Notify::new(),
            room: Notify::new(),
            owner,
            closing: Notify::new(),
            idle_looks: Cell::new(0),
        });
        spawn_local(Rc::clone(&upstream).write_loop());
        let served = Rc::clone(&upstream);
        spawn_local(async move {
            served.read_loop(reader).await;
            on_end();
        });
        upstream
    }

    /// Sends a command of `outbox`, which leaves with the next [`Upstream::kick`]. Call it only while
    /// [`Upstream::broken`] is `None`.
    pub(super) fn send(&self, outbox: &Rc<Outbox>, raw: Raw<'_>, instead: Option<Bytes>) {
        let mut state = self.state.borrow_mut();
        match raw {
            Raw::Copy(bytes) => state.out.copy(bytes),
            Raw::Give(bytes) => state.out.give(bytes),
        }
        outbox.expect();
        self.idle_looks.set(0);
        state.waiting.push_back(Waiting { outbox: Rc::clone(outbox), instead });
    }

    /// Sees to it that what was sent leaves. Where nobody else waits for a reply (the caller itself
    /// waits for `expected`) it leaves now; else it goes together with what others send before the
    /// writer's turn comes.
    pub(super) fn kick(&self, expected: u64) {
        let state = &mut *self.state.borrow_mut();
        if state.out.is_empty() || state.broken.is_some() {
            return;
        }
        let is_alone = u64::try_from(state.waiting.len()).is_ok_and(|waiting| waiting == expected);
        if !(is_alone && matches!(state.out.write_to(&self.socket), Ok(true))) {
            self.work.notify_one();
        }
    }

    /// Sends a command whose replies are messages and count as none (`SUBSCRIBE`).
    pub(super) fn send_unanswered(&self, bytes: &[u8]) {
        self.state.borrow_mut().out.copy(bytes);
        self.work.notify_one();
    }

    /// A (un)subscription of so many channels is sent in RESP2. From now on every reply goes to the
    /// owner as it comes, until nothing is subscribed any more.
    pub(super) fn begin_subscription(&self, subscribes: bool, channels: usize) {
        let mut state = self.state.borrow_mut();
        state.subscriber.get_or_insert_default().expects(subscribes, channels);
    }

    /// Whether the owner is in Redis' RESP2 subscriber mode.
    pub(super) fn is_subscribed(&self) -> bool {
        self.state.borrow().subscriber.as_ref().is_some_and(Subscriber::is_active)
    }

    /// Whether it is one client's own.
    pub(super) fn is_own(&self) -> bool {
        self.owner.is_some()
    }

    /// Why it broke, where it did.
    pub(super) fn broken(&self) -> Option<Rc<str>> {
        self.state.borrow().broken.clone()
    }

    /// Whether it broke.
    pub(super) fn is_broken(&self) -> bool {
        self.state.borrow().broken.is_some()
    }

    /// Whether nobody waits for a reply on it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.state.borrow().waiting.is_empty()
    }

    /// Whether nobody has used it since the look before the last; this is a look.
    pub(super) fn is_idle(&self) -> bool {
        let looks = self.idle_looks.get() + 1;
        self.idle_looks.set(looks);
        looks > 2 && self.state.borrow().waiting.is_empty()
    }

    /// Whether senders have to wait for [`Upstream::room`].
    pub(super) fn is_full(&self) -> bool {
        let state = self.state.borrow();
        state.out.len() > FULL && state.broken.is_none()
    }

    /// Ends the connection. From now on it counts as broken, so that nobody sends on it any more,
    /// and nothing that still comes is handed on.
    pub(super) fn close(&self) {
        self.state.borrow_mut().broken.get_or_insert_with(|| "closed".into());
        self.closing.notify_one();
    }

    fn break_off(&self, why: &str) {
        let waiting = {
            let mut state = self.state.borrow_mut();
            state.broken.get_or_insert_with(|| why.into());
            state.out = Out::default();
            std::mem::take(&mut state.waiting)
        };
        for waiting in waiting {
            waiting.outbox.wake.notify_one();
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
                    state.out.write_to(&self.socket)
                };
                match written {
                    Ok(true) => break,
                    // An error shows in the write that follows; a break wakes it too.
                    Ok(false) => tokio::select! {
                        _ = self.socket.writable() => {}
                        () = self.work.notified() => {}
                    },
                    // The reader hears of it too, and by then has every reply that still came.
                    Err(_) => return,
                }
                if !self.is_full() {
                    self.room.notify_waiters();
                }
            }
            self.room.notify_waiters();
        }
    }

    async fn read_loop(&self, mut reader: OwnedReadHalf) {
        let mut replies = Replies::new();
        let why = loop {
            if let Some(owner) = &self.owner {
                while owner.unread() > HIGH_WATER && owner.end().is_none() {
                    tokio::select! {
                        () = owner.drained.notified() => {}
                        () = self.closing.notified() => return self.break_off("closed"),
                    }
                }
            }
            replies.buf.reserve(READ / 4);
            tokio::select! {
                biased;
                read = reader.read_buf(&mut replies.buf) => match read {
                    Ok(0) => break "Redis closed it".to_owned(),
                    Ok(_) => {}
                    Err(error) => break error.to_string(),
                },
                () = self.closing.notified() => break "closed".to_owned(),
            }
            if let Err(why) = self.distribute(&mut replies) {
                break why;
            }
            for outbox in replies.flush.drain(..) {
                outbox.flush_and_wake();
            }
        };
        if let Some(is_message) = replies.cut.get() {
            self.cut_off(is_message);
        }
        self.break_off(&why);
    }

    /// Whoever got a part of what will never be whole can be told nothing more.
    fn cut_off(&self, is_message: bool) {
        let state = self.state.borrow();
        let is_reply = !is_message && !state.subscriber.as_ref().is_some_and(Subscriber::is_active);
        match state.waiting.front().filter(|_| is_reply) {
            Some(waiting) if waiting.instead.is_some() => {}
            Some(waiting) => waiting.outbox.give_up(End::Cut),
            None => self.owner.iter().for_each(|owner| owner.give_up(End::Cut)),
        }
    }

    /// Hands on what was read.
    fn distribute(&self, replies: &mut Replies) -> Result<(), String> {
        while !replies.buf.is_empty() {
            if self.is_broken() {
                return Err("closed".to_owned());
            }
            let scan = replies.scanner.scan(&replies.buf).map_err(|error| error.to_string())?;
            if scan.consumed == 0 {
                return Ok(());
            }
            let is_message = replies.scanner.kind() == b'>';
            replies.cut.set((!scan.done).then_some(is_message));
            self.hand_on(replies, scan.consumed, scan.done, is_message)?;
        }
        Ok(())
    }

    fn hand_on(
        &self,
        replies: &mut Replies,
        len: usize,
        done: bool,
        is_message: bool,
    ) -> Result<(), String> {
        let state = &mut *self.state.borrow_mut();
        if let (Some(subscriber), Some(owner)) = (&mut state.subscriber, &self.owner)
            && (subscriber.is_active() || state.waiting.is_empty())
        {
            subscriber.sees(&replies.buf[..len], done);
            replies.deliver(owner, len);
            return Ok(());
        }
        if is_message {
            match &self.owner {
                Some(owner) => replies.deliver(owner, len),
                None => replies.buf.advance(len),
            }
            return Ok(());
        }
        let Some(waiting) = state.waiting.front() else {
            if let Some(owner) = &self.owner {
                // The rest of a subscription's confirmations; their order is the client's own.
                replies.deliver(owner, len);
                return Ok(());
            }
            // Redis says why it is about to close the connection, or speaks without being asked.
            return Err(format!(
                "Redis said {} without being asked",
                replies.buf[..len.min(200)].escape_ascii()
            ));
        };
        match &waiting.instead {
            None => replies.deliver(&waiting.outbox, len),
            Some(bytes) => {
                replies.buf.advance(len);
                if done {
                    waiting.outbox.copy(bytes);
                    replies.will_flush(&waiting.outbox);
                }
            }
        }
        if done && let Some(waiting) = state.waiting.pop_front() {
            waiting.outbox.done();
        }
        Ok(())
    }
}

/// What was read and not yet handed on.
struct Replies {
    buf: BytesMut,
    scanner: ReplyScanner,
    flush: Vec<Rc<Outbox>>,
    /// A part was handed on of something that is not whole yet; whether it is a message.
    cut: Cell<Option<bool>>,
}

impl Replies {
    fn new() -> Self {
        Self {
            buf: BytesMut::new(),
            scanner: ReplyScanner::new(),
            flush: Vec::new(),
            cut: Cell::new(None),
        }
    }

    fn deliver(&mut self, outbox: &Rc<Outbox>, len: usize) {
        if Out::is_large(len) {
            outbox.give(self.buf.split_to(len).freeze());
        } else {
            outbox.copy(&self.buf[..len]);
            self.buf.advance(len);
        }
        self.will_flush(outbox);
    }

    fn will_flush(&mut self, outbox: &Rc<Outbox>) {
        if outbox.mark_for_flush() {
            self.flush.push(Rc::clone(outbox));
        }
    }
}

//! Memory that a client may occupy, and how long it may be silent.

use bytes::BytesMut;

use super::super::backlog::{self, BUFFERS_FULL, LEFT_FULL};
use super::super::budget::FREE;
use super::super::patience::Awaited;
use super::super::resp::ProtocolError;
use super::super::session::Flow;
use super::{Client, READ};

/// Keys of a command for which memory is kept for the next one.
const KEPT_KEYS: usize = 1024;

impl Client {
    /// Releases the memory of commands that were served.
    pub(super) fn release_memory(&mut self) {
        if self.buf.is_empty() {
            self.parser.shrink();
        }
        if self.buf.len() < READ && self.buf.capacity() > FREE {
            self.buf = BytesMut::from(&self.buf[..]);
        }
        self.keys.clear();
        self.keys.shrink_to(KEPT_KEYS);
        // An eviction shows in the next wait.
        let _ = self.charge.set(self.held_bytes());
    }

    /// Memory of commands that are not served yet, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.buf.len() + self.parser.held_bytes() + self.in_hand
    }

    /// `true` if the client leaves so many replies unread that it may have to send all of its
    /// commands before it reads, and the guard has room for more of these.
    pub(super) fn takes_backlog(&self) -> bool {
        self.outbox.is_unread() && !self.is_backlog_full()
    }

    fn is_backlog_full(&self) -> bool {
        self.held_bytes() >= backlog::limit(&self.identity, &self.hub.budget)
    }

    /// Input that is expected of a client that is served no further.
    pub(super) fn receipt(&self) -> Awaited {
        match self.outbox.is_unread() && self.is_backlog_full() {
            true => Awaited::Receipt(self.outbox.written()),
            false => Awaited::Nothing,
        }
    }

    /// A client without a token may send little, where every key needs one.
    pub(super) fn within_strangers_limits(&self) -> Result<(), ProtocolError> {
        self.identity.check_limits(&self.parser, &self.buf)
    }

    /// Input that the client is expected to send; it decides the time limit.
    pub(super) fn awaited(&self) -> Awaited {
        if self.outbox.is_full(self.buf.len()) {
            return self.receipt();
        }
        if !self.buf.is_empty() {
            return Awaited::Rest(self.buf.len());
        }
        let is_served = self.outbox.expected() > 0
            || self.outbox.unread() > 0
            || self.own.as_ref().is_some_and(|own| own.subscribes);
        match (is_served, self.identity.is_stranger()) {
            (true, _) => Awaited::Nothing,
            (false, true) => Awaited::Introduction,
            (false, false) => Awaited::Command,
        }
    }

    /// Charges received bytes to the budget.
    pub(super) fn charged(&mut self, bytes: usize) -> Flow {
        self.charge.progress(bytes);
        if self.charge.set(self.held_bytes()) { Flow::Continue } else { self.refuse_size() }
    }

    /// Disconnects a client whose commands do not fit into its share, or whose memory others need.
    pub(super) fn refuse_size(&mut self) -> Flow {
        self.cut(BUFFERS_FULL)
    }

    /// Disconnects a client that was silent for too long, or read nothing.
    pub(super) fn overdue(&mut self, awaited: Awaited, reason: &str) -> Flow {
        let Awaited::Receipt(_) = awaited else {
            self.outbox.error(reason);
            return Flow::Close;
        };
        let unread = self.outbox.unread();
        let held = self.held_bytes();
        self.cut(&backlog::error(reason, unread, held, &self.identity, &self.hub.budget))
    }

    /// Ends the connection with an error behind the replies to all commands that were served. The
    /// other commands are dropped.
    fn cut(&mut self, line: &str) -> Flow {
        self.record_cut(line);
        self.outbox.error(line);
        self.buf = BytesMut::new();
        self.parser.shrink();
        self.in_hand = 0;
        self.charge.restart();
        self.ends = true;
        Flow::Close
    }

    /// Names a client that left at its limit: its own patience may have been shorter than the
    /// guard's, which then sends no error.
    pub(super) fn record_left(&self) {
        if matches!(self.receipt(), Awaited::Receipt(_)) {
            self.record_cut(LEFT_FULL);
        }
    }

    /// Logs and counts that the client is disconnected because the buffers are full.
    pub(super) fn record_cut(&self, reason: &str) {
        self.hub.port.counters.over_limit.inc();
        backlog::log_cut(&self.identity, self.outbox.unread(), reason);
    }
}

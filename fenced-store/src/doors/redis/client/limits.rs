//! Memory that a client may occupy, and how long it may be silent.

use bytes::BytesMut;

use super::super::budget::FREE;
use super::super::patience::Awaited;
use super::super::resp::ProtocolError;
use super::super::session::{BUFFERS_FULL, Flow};
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
        self.buf.len() + self.parser.held_bytes()
    }

    /// A client without a token may send little, where every key needs one.
    pub(super) fn within_strangers_limits(&self) -> Result<(), ProtocolError> {
        let policy = &self.hub.port.guard.fencing;
        self.identity.check_limits(&self.parser, &self.buf, policy)
    }

    /// Input that the client is expected to send; it decides the time limit.
    pub(super) fn awaited(&self) -> Awaited {
        if self.outbox.is_full() {
            return Awaited::Nothing;
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

    pub(super) fn refuse_size(&self) -> Flow {
        self.outbox.error(BUFFERS_FULL);
        Flow::Close
    }
}

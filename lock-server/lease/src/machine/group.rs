//! Requests of several locks, and the ways on which a grant reaches its client.

use fence_protocol::LockName;

use crate::record::Waiter;
use crate::{Acquire, Mode};

/// A request that waits in the queue of each of its locks.
#[derive(Debug)]
pub(super) struct Group {
    /// Its locks in the order of the request: at least one.
    pub(super) parts: Vec<(LockName, Mode)>,
}

impl Group {
    /// Returns the lock under which the reply is delivered.
    pub(super) fn first_lock(&self) -> &LockName {
        &self.parts[0].0
    }

    /// Returns whether it is the request for these parts.
    pub(super) fn is_for(&self, parts: &[Acquire]) -> bool {
        self.parts.iter().map(|(lock, _)| lock).eq(parts.iter().map(|part| &part.lock))
    }
}

/// A request that has left its queue, or all of its queues.
pub(super) struct Left {
    pub(super) waiter: Waiter,
    pub(super) group: Option<Group>,
}

/// Route by which a grant reaches its client.
#[derive(Clone, Copy, Debug)]
pub(super) enum GrantRoute {
    /// In the reply to its own request, which waited `waited_ms` before.
    InReply { waited_ms: u64 },
    /// To a waiter of `server`, when the queue reached it.
    FromQueue { waited_ms: u64, server: u32 },
}

impl GrantRoute {
    pub(super) const AT_ONCE: Self = Self::InReply { waited_ms: 0 };
}

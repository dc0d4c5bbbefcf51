//! A grant from its holder's point of view.

use fence_protocol::{LeaseId, Owner, Token};

use crate::Mode;

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Id of the lease, chosen by the client.
    pub lease_id: LeaseId,
    /// Fencing token.
    pub token: Token,
    /// Owner named in the request.
    pub owner: Owner,
    /// Remaining time to live, in milliseconds.
    pub remaining_ms: u64,
    /// Time that the acquire waited, in milliseconds.
    pub waited_ms: u64,
    /// Mode in which the lease shares the lock.
    pub mode: Mode,
    /// Of a renewal: time that was left before it, in milliseconds; `None` where that is not known.
    pub slack_ms: Option<u64>,
    /// Of an acquire: the lease may have been there before the request, which repeats an earlier
    /// one whose client may know of it.
    pub is_repeat: bool,
}

impl Grant {
    /// Returns the grant as it is `ms` milliseconds after its time was measured.
    pub fn later(self, ms: u64) -> Self {
        Self { remaining_ms: self.remaining_ms.saturating_sub(ms), ..self }
    }
}

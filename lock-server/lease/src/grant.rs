//! A grant as its holder sees it.

use fence_protocol::{LeaseId, Owner, Token};

use crate::Mode;

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The id of the grant.
    pub lease_id: LeaseId,
    /// Its token.
    pub token: Token,
    /// Who holds it.
    pub owner: Owner,
    /// What remains, in milliseconds.
    pub remaining_ms: u64,
    /// How long the acquire waited, in milliseconds.
    pub waited_ms: u64,
    /// How it shares the lock.
    pub mode: Mode,
}

impl Grant {
    /// The grant `ms` milliseconds after its time was measured.
    pub fn later(self, ms: u64) -> Self {
        Self { remaining_ms: self.remaining_ms.saturating_sub(ms), ..self }
    }
}

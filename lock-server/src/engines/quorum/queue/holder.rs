//! Holder of a lock, by this server's clock.

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, Owner, Token};

use crate::store::Grant;

/// The lease that blocks the queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Holder {
    pub(crate) lease_id: LeaseId,
    pub(crate) owner: Owner,
    pub(crate) token: Token,
    /// Since when, in monotonic milliseconds of this server.
    pub(crate) since_ms: u64,
    /// Until when, unless it is renewed.
    pub(crate) until_ms: u64,
}

impl Holder {
    /// A grant that was just made here.
    pub(crate) fn from_grant(grant: &Grant, now_ms: u64) -> Self {
        Self {
            lease_id: grant.lease_id,
            owner: grant.owner.clone(),
            token: grant.token,
            since_ms: now_ms,
            until_ms: now_ms.saturating_add(grant.remaining_ms),
        }
    }

    /// A holder from a node's reply.
    pub(crate) fn from_node(lease_id: LeaseId, info: HolderInfo, now_ms: u64) -> Self {
        Self {
            lease_id,
            since_ms: now_ms.saturating_sub(info.held_ms),
            until_ms: now_ms.saturating_add(info.expires_in_ms),
            owner: info.owner,
            token: info.token,
        }
    }

    pub(crate) fn info(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.since_ms),
            expires_in_ms: self.until_ms.saturating_sub(now_ms),
        }
    }

    pub(super) fn is_live(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }
}

//! A lock at a node, as a script finds it.

use fence_protocol::{LeaseId, Owner};

use super::record::{Live, Record};
use lock_server::engines::quorum::rules::{NodeReply, split_principal};

/// Working state of a script about a lock.
pub(super) struct Desk {
    pub(super) now_ms: u64,
    pub(super) retention_ms: u64,
    pub(super) p: u64,
    pub(super) record: Record,
}

impl Desk {
    /// Why this id cannot be asked for here.
    pub(super) fn refuses(
        &self,
        lease: LeaseId,
        owner: &Owner,
        metadata: &str,
    ) -> Option<NodeReply> {
        if let Some(ended) = self.ended(lease) {
            return Some(ended);
        }
        match &self.record.live {
            Some(live) if live.lease != lease => Some(self.held(live)),
            Some(live) if live.owner != *owner || is_anothers(&live.metadata, metadata) => {
                Some(NodeReply::Conflict { owner: live.owner.clone() })
            }
            _ => None,
        }
    }

    pub(super) fn ended(&self, lease: LeaseId) -> Option<NodeReply> {
        let ended = self.record.ended.iter().find(|ended| ended.lease == lease)?;
        Some(NodeReply::Ended { reason: ended.reason, why: ended.why.clone() })
    }

    fn held(&self, live: &Live) -> NodeReply {
        NodeReply::Held { lease: live.lease, holder: live.holder(self.now_ms), p: self.p }
    }

    pub(super) fn held_or_nothing(&self) -> NodeReply {
        match &self.record.live {
            Some(live) => self.held(live),
            None => NodeReply::Nothing { p: self.p },
        }
    }
}

fn is_anothers(lease: &str, request: &str) -> bool {
    lease::is_anothers(split_principal(lease).0, split_principal(request).0)
}

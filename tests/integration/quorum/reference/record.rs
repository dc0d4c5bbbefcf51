//! A node's record of a lock.

use fence_protocol::wire::lock::{EndReason, EndedLease, HolderInfo};
use fence_protocol::{LeaseId, Owner, Token};

use lock_server::engines::quorum::rules::ENDED_MAX;

/// A node's record of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) live: Option<Live>,
    /// Newest first.
    pub(super) ended: Vec<Ended>,
    /// When nothing of it is known any more.
    pub(super) gone_at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Live {
    pub(super) lease: LeaseId,
    pub(super) token: Token,
    pub(super) ttl_ms: u64,
    pub(super) granted_ms: u64,
    pub(super) expires_ms: u64,
    pub(super) renewals: u64,
    /// The lock server that renewed it last, and which of its renewals that was.
    pub(super) renewed: (String, u64),
    /// The only attempt that knows of it; empty where others may.
    pub(super) attempt: String,
    pub(super) owner: Owner,
    pub(super) metadata: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ended {
    pub(super) lease: LeaseId,
    pub(super) token: Option<Token>,
    pub(super) reason: EndReason,
    pub(super) held_ms: u64,
    pub(super) at_ms: u64,
    pub(super) owner: Option<Owner>,
    pub(super) why: Option<Owner>,
}

impl Record {
    /// A lease whose time is over is an ended one.
    pub(super) fn settle(&mut self, now_ms: u64) {
        if let Some(live) = self.live.take_if(|live| live.expires_ms <= now_ms) {
            let held_ms = live.expires_ms.saturating_sub(live.granted_ms);
            let at_ms = live.expires_ms;
            self.remember(live.ended(EndReason::Expired, held_ms, at_ms, None));
        }
    }

    pub(super) fn remember(&mut self, ended: Ended) {
        self.ended.insert(0, ended);
        self.ended.truncate(ENDED_MAX);
    }
}

impl Live {
    pub(super) fn holder(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.granted_ms),
            expires_in_ms: self.expires_ms.saturating_sub(now_ms),
        }
    }

    pub(super) fn ended(
        self,
        reason: EndReason,
        held_ms: u64,
        at_ms: u64,
        why: Option<Owner>,
    ) -> Ended {
        let token = Some(self.token);
        let owner = Some(self.owner);
        Ended { lease: self.lease, token, reason, held_ms, at_ms, owner, why }
    }
}

impl Ended {
    pub(super) fn shown(&self, now_ms: u64) -> EndedLease {
        EndedLease {
            lease_id: self.lease,
            token: self.token,
            owner: self.owner.clone(),
            reason: self.reason,
            why: self.why.clone(),
            held_ms: self.held_ms,
            ended_ms_ago: now_ms.saturating_sub(self.at_ms),
        }
    }
}

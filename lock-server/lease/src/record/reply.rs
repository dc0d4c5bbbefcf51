//! Replies that show a lock.

use fence_protocol::LockName;
use fence_protocol::wire::lock::{EndedLease, HolderReply, LockReply, LockState, WaiterReply};

use super::{Ended, Holder, Record, Waiter};
use crate::Kind;

/// Most waiters that a reply lists.
const WAITERS_SHOWN: usize = 100;
/// Most leases beside the first that a reply lists.
const HOLDERS_SHOWN: usize = 100;

impl Record {
    /// Returns the reply to `GET /v1/locks/{lock}`.
    pub fn reply(&self, lock: &LockName, now_ms: u64) -> LockReply {
        let mut holders = self.holders.iter().map(|holder| holder.reply(now_ms));
        let rest_ms = |until_ms: u64| until_ms.saturating_sub(now_ms);
        LockReply {
            lock: lock.clone(),
            state: self.state(),
            holder: holders.next(),
            also_held: holders.take(HOLDERS_SHOWN).collect(),
            lease_count: self.holders.len(),
            size: self.kind().and_then(Kind::size),
            delayed_ms: self.closed.iter().map(|closed| rest_ms(closed.until_ms)).max(),
            queue_length: self.queue.len(),
            queue: self.queue.iter().take(WAITERS_SHOWN).map(|w| w.reply(now_ms)).collect(),
            history: self.ended.iter().map(|ended| ended.reply(now_ms)).collect(),
        }
    }

    fn state(&self) -> LockState {
        match (self.holders.is_empty(), self.closed.is_empty()) {
            (false, _) => LockState::Held,
            (true, false) => LockState::Delayed,
            (true, true) => LockState::Free,
        }
    }
}

impl Holder {
    fn reply(&self, now_ms: u64) -> HolderReply {
        HolderReply {
            lease_id: self.lease_id,
            info: self.info(now_ms),
            ttl_ms: self.ttl.ms(),
            renewals: self.renewals,
            mode: self.mode.wire(),
            session_id: self.session,
            incarnation: self.incarnation.clone(),
            metadata: self.metadata.as_deref().and_then(|m| serde_json::from_str(m).ok()),
        }
    }
}

impl Waiter {
    fn reply(&self, now_ms: u64) -> WaiterReply {
        WaiterReply {
            lease_id: self.request.lease_id,
            owner: self.request.owner.clone(),
            waiting_ms: now_ms.saturating_sub(self.since_ms),
            mode: self.request.mode.wire(),
        }
    }
}

impl Ended {
    fn reply(&self, now_ms: u64) -> EndedLease {
        EndedLease {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner.clone(),
            reason: self.reason,
            why: self.why.clone(),
            held_ms: self.held_ms,
            ended_ms_ago: now_ms.saturating_sub(self.at_ms),
        }
    }
}

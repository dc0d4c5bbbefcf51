//! What is known of one lock.

use std::collections::VecDeque;

use fence_protocol::wire::lock::{
    EndReason, EndedLease, HolderInfo, HolderReply, LockReply, LockState, WaiterReply,
};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use serde::{Deserialize, Serialize};

use crate::store::{Acquire, Grant, Mode};

/// How many ended leases a lock remembers.
pub(super) const ENDED_KEPT: usize = 8;
/// How many waiters a reply lists.
const WAITERS_SHOWN: usize = 100;

/// One lock: the live lease, who waits, and what ended lately.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The live lease. It may be past its time until somebody settles the record.
    pub holder: Option<Holder>,
    /// First come, first served.
    pub queue: VecDeque<Waiter>,
    /// Newest first, at most eight.
    pub ended: VecDeque<Ended>,
}

/// A lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The grant.
    pub lease_id: LeaseId,
    /// Its token.
    pub token: Token,
    /// Who.
    pub owner: Owner,
    /// The time to live that a renewal restores.
    pub ttl: Ttl,
    /// The session that it lives as long as. `expires_at_ms` is then only what was last read of it.
    pub session: Option<SessionId>,
    /// Which life of the owner.
    pub incarnation: Option<Owner>,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// When it was granted.
    pub granted_at_ms: u64,
    /// When it ends unless it is renewed.
    pub expires_at_ms: u64,
    /// How often it was renewed.
    pub renewals: u64,
    /// It was handed to a waiter, and nobody has shown since that the grant arrived. Only such a
    /// grant may be taken back because its waiter is gone.
    pub handed: bool,
}

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// What it asked for.
    pub request: Acquire,
    /// Since when it waits.
    pub since_ms: u64,
    /// When it gives up.
    pub until_ms: u64,
}

/// A lease that ended, or an id that was released before its acquire came.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The grant.
    pub lease_id: LeaseId,
    /// Its token, if it ever had one.
    pub token: Option<Token>,
    /// Who held it.
    pub owner: Option<Owner>,
    /// Which life of the owner held it.
    pub incarnation: Option<Owner>,
    /// How it ended.
    pub reason: EndReason,
    /// For how long it was held.
    pub held_ms: u64,
    /// When it ended.
    pub at_ms: u64,
}

impl Holder {
    /// The lease as its holder sees it.
    pub fn grant(&self, now_ms: u64, waited_ms: u64) -> Grant {
        Grant {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner.clone(),
            remaining_ms: self.expires_at_ms.saturating_sub(now_ms),
            waited_ms,
            mode: Mode::Exclusive,
        }
    }

    /// The lease as others see it.
    pub fn info(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.granted_at_ms),
            expires_in_ms: self.expires_at_ms.saturating_sub(now_ms),
        }
    }
}

impl Record {
    /// How the lease with this id ended, if that is remembered.
    pub fn ended(&self, lease_id: LeaseId) -> Option<&Ended> {
        self.ended.iter().find(|ended| ended.lease_id == lease_id)
    }

    /// The place in the queue.
    pub fn position(&self, lease_id: LeaseId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.request.lease_id == lease_id)
    }

    /// Ends the live lease, if there is one, and remembers how.
    pub fn end(&mut self, reason: EndReason, now_ms: u64) -> Option<Ended> {
        let holder = self.holder.take()?;
        let ended = Ended {
            lease_id: holder.lease_id,
            token: Some(holder.token),
            owner: Some(holder.owner),
            incarnation: holder.incarnation,
            reason,
            held_ms: now_ms.saturating_sub(holder.granted_at_ms),
            at_ms: now_ms,
        };
        self.remember(ended.clone());
        Some(ended)
    }

    /// Remembers an ended id; the oldest makes room.
    pub fn remember(&mut self, ended: Ended) {
        self.ended.push_front(ended);
        self.ended.truncate(ENDED_KEPT);
    }

    /// Until when ended ids are remembered; `None` where there are none.
    pub fn idle_until_ms(&self, retention_ms: u64) -> Option<u64> {
        self.ended.front().map(|newest| newest.at_ms + retention_ms)
    }

    /// The reply to `GET /v1/locks/{lock}`.
    pub fn reply(&self, lock: &LockName, now_ms: u64) -> LockReply {
        LockReply {
            lock: lock.clone(),
            state: if self.holder.is_some() { LockState::Held } else { LockState::Free },
            holder: self.holder.as_ref().map(|holder| HolderReply {
                lease_id: holder.lease_id,
                info: holder.info(now_ms),
                ttl_ms: holder.ttl.ms(),
                renewals: holder.renewals,
                mode: Mode::Exclusive.wire(),
                session_id: holder.session,
                incarnation: holder.incarnation.clone(),
                metadata: holder.metadata.as_deref().and_then(|m| serde_json::from_str(m).ok()),
            }),
            also_held: Vec::new(),
            lease_count: usize::from(self.holder.is_some()),
            size: None,
            delayed_ms: None,
            queue_length: self.queue.len(),
            queue: self
                .queue
                .iter()
                .take(WAITERS_SHOWN)
                .map(|waiter| WaiterReply {
                    lease_id: waiter.request.lease_id,
                    owner: waiter.request.owner.clone(),
                    waiting_ms: now_ms.saturating_sub(waiter.since_ms),
                    mode: waiter.request.mode.wire(),
                })
                .collect(),
            history: self
                .ended
                .iter()
                .map(|ended| EndedLease {
                    lease_id: ended.lease_id,
                    token: ended.token,
                    owner: ended.owner.clone(),
                    reason: ended.reason,
                    why: None,
                    held_ms: ended.held_ms,
                    ended_ms_ago: now_ms.saturating_sub(ended.at_ms),
                })
                .collect(),
        }
    }
}

/// What of a record must survive a restart. Moments do not: a clock that starts anew cannot tell
/// them, so leases get their full time again and retention starts again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredRecord {
    holder: Option<StoredHolder>,
    ended: Vec<StoredEnded>,
}

/// A lease in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredHolder {
    lease_id: LeaseId,
    token: Token,
    owner: Owner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    ttl_ms: Ttl,
    metadata: Option<String>,
}

/// An ended lease in the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredEnded {
    lease_id: LeaseId,
    token: Option<Token>,
    owner: Option<Owner>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<Owner>,
    reason: EndReason,
    held_ms: u64,
}

impl Record {
    /// The part that is journalled.
    pub fn to_stored(&self) -> StoredRecord {
        StoredRecord {
            holder: self.holder.as_ref().map(|holder| StoredHolder {
                lease_id: holder.lease_id,
                token: holder.token,
                owner: holder.owner.clone(),
                session: holder.session,
                incarnation: holder.incarnation.clone(),
                ttl_ms: holder.ttl,
                metadata: holder.metadata.clone(),
            }),
            ended: self
                .ended
                .iter()
                .map(|ended| StoredEnded {
                    lease_id: ended.lease_id,
                    token: ended.token,
                    owner: ended.owner.clone(),
                    incarnation: ended.incarnation.clone(),
                    reason: ended.reason,
                    held_ms: ended.held_ms,
                })
                .collect(),
        }
    }

    /// A record as it is after a restart at `now_ms`.
    pub fn from_stored(stored: StoredRecord, now_ms: u64) -> Self {
        Self {
            holder: stored.holder.map(|holder| Holder {
                lease_id: holder.lease_id,
                token: holder.token,
                owner: holder.owner,
                session: holder.session,
                incarnation: holder.incarnation,
                ttl: holder.ttl_ms,
                metadata: holder.metadata,
                granted_at_ms: now_ms,
                expires_at_ms: now_ms + holder.ttl_ms.ms(),
                renewals: 0,
                handed: false,
            }),
            queue: VecDeque::new(),
            ended: stored
                .ended
                .into_iter()
                .map(|ended| Ended {
                    lease_id: ended.lease_id,
                    token: ended.token,
                    owner: ended.owner,
                    incarnation: ended.incarnation,
                    reason: ended.reason,
                    held_ms: ended.held_ms,
                    at_ms: now_ms,
                })
                .collect(),
        }
    }

    /// The highest token that the record mentions: the counter is never below it.
    pub fn highest_token(&self) -> u64 {
        let held = self.holder.as_ref().map(|holder| holder.token);
        let ended = self.ended.iter().filter_map(|ended| ended.token);
        held.into_iter().chain(ended).map(Token::get).max().unwrap_or(0)
    }
}

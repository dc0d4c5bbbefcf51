//! One node, as a state machine: the reference for its scripts.
//!
//! Every method is one script, atomic like it, and takes the node's clock as an argument. The model
//! checker runs these nodes, and a test holds real ones against them.

use std::collections::BTreeMap;

use fence_protocol::{LeaseId, LockName, Token};
use lock_server::engines::quorum::rules::view::{Addressee, Meta, NodeProbe, NodeState, View};
use lock_server::engines::quorum::rules::{
    Bucket, End, NodeReply, Refusal, Renew, Seen, SeenLease, TopUp, Vote, bucket_of,
};

mod desk;
mod joining;
mod record;
mod tests;

use self::desk::Desk;
use self::joining::other_view;
use self::record::{Ended, Live, Record};

/// Time ahead of need for which a node notes until when it remembers something, in milliseconds.
const COVER_MS: u64 = 10_000;

/// A node: what it knows of itself, and of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node {
    meta: Option<Meta>,
    p: BTreeMap<Bucket, u64>,
    locks: BTreeMap<LockName, Record>,
}

impl Node {
    /// Returns the node's own state if a caller who means this node in this view may ask.
    ///
    /// # Errors
    /// [`Refusal`].
    fn admit(&self, to: Addressee<'_>) -> Result<&Meta, Refusal> {
        let meta = self.meta.as_ref().filter(|meta| !meta.view.cluster.is_empty());
        let meta = meta.ok_or(Refusal::NoMember)?;
        if (&meta.view.cluster, meta.view.n) != (&to.view.cluster, to.view.n) {
            return Err(Refusal::Other { cluster: meta.view.cluster.clone(), n: meta.view.n });
        } else if meta.state != NodeState::Ready {
            return Err(Refusal::NotReady);
        } else if meta.view != *to.view {
            return Err(other_view(meta));
        } else if meta.node != *to.node {
            return Err(Refusal::Stranger { node: meta.node.clone() });
        }
        Ok(meta)
    }

    fn accepted(&self, meta: &Meta, bucket: Bucket) -> u64 {
        self.p.get(&bucket).copied().unwrap_or(0).max(meta.floor)
    }

    fn desk(
        &self,
        now_ms: u64,
        to: Addressee<'_>,
        lock: &LockName,
        bucket: Bucket,
        retention_ms: u64,
    ) -> Result<Desk, Refusal> {
        let p = self.accepted(self.admit(to)?, bucket);
        let stored = self.locks.get(lock).filter(|record| record.gone_at_ms > now_ms);
        let mut record = stored.cloned().unwrap_or_default();
        record.settle(now_ms);
        Ok(Desk { now_ms, retention_ms, p, record })
    }

    /// Stores the record of a lock, for as long as there is anything to know.
    fn save(&mut self, lock: &LockName, mut desk: Desk) {
        if desk.record.live.is_none() && (desk.record.ended.is_empty() || desk.retention_ms == 0) {
            self.locks.remove(lock);
            return;
        }
        let expires_ms = desk.record.live.as_ref().map_or(0, |live| live.expires_ms);
        let gone_at_ms = expires_ms.max(desk.now_ms) + desk.retention_ms;
        if let Some(meta) = self.meta.as_mut().filter(|meta| gone_at_ms > meta.covered_ms) {
            meta.covered_ms = gone_at_ms + (gone_at_ms - desk.now_ms).min(COVER_MS);
        }
        desk.record.gone_at_ms = gone_at_ms;
        self.locks.insert(lock.clone(), desk.record);
    }

    /// Notes that a token was accepted.
    fn accept(&mut self, bucket: Bucket, desk: &mut Desk, token: Token) {
        if token.get() > desk.p {
            desk.p = token.get();
            self.p.insert(bucket, desk.p);
        }
    }

    /// The highest token that counts as accepted in a bucket.
    pub(super) fn p(&self, bucket: Bucket) -> u64 {
        self.meta.as_ref().map_or(0, |meta| self.accepted(meta, bucket))
    }

    /// The view that the node is in, as far as it knows one.
    pub(super) fn view(&self) -> Option<&View> {
        self.meta.as_ref().map(|meta| &meta.view).filter(|view| !view.cluster.is_empty())
    }

    /// Lets go of the records whose time is over, as Redis does by itself.
    pub(super) fn expire(&mut self, now_ms: u64) {
        self.locks.retain(|_, record| record.gone_at_ms > now_ms);
    }

    /// `vote.lua`
    pub(super) fn vote(&mut self, now_ms: u64, to: Addressee<'_>, vote: &Vote) -> NodeReply {
        let mut desk = match self.desk(now_ms, to, &vote.lock, vote.bucket, vote.retention_ms) {
            Ok(desk) => desk,
            Err(refusal) => return NodeReply::Refused(refusal),
        };
        if let Some(refusal) = desk.refuses(vote.lease, &vote.owner, &vote.metadata) {
            return refusal;
        }
        let above = vote.token.get() > desk.p;
        let p = desk.p;
        if let Some(live) = &mut desk.record.live {
            let may_go = live.attempt == vote.attempt || vote.dead.contains(&live.token);
            if live.token == vote.token || !(above && may_go) {
                if live.attempt != vote.attempt {
                    live.attempt.clear();
                }
                let token = live.token;
                let remaining_ms = live.expires_ms - now_ms;
                self.save(&vote.lock, desk);
                return match token == vote.token {
                    true => NodeReply::Accepted { p, remaining_ms },
                    false => NodeReply::Yours { token, remaining_ms, p },
                };
            }
        }
        if !above {
            return NodeReply::Low { p };
        }
        self.accept(vote.bucket, &mut desk, vote.token);
        desk.record.live = Some(Live {
            lease: vote.lease,
            token: vote.token,
            ttl_ms: vote.ttl_ms,
            granted_ms: now_ms,
            expires_ms: now_ms + vote.ttl_ms,
            renewals: 0,
            renewed: Default::default(),
            attempt: vote.attempt.clone(),
            owner: vote.owner.clone(),
            metadata: vote.metadata.clone(),
        });
        let p = desk.p;
        self.save(&vote.lock, desk);
        NodeReply::Accepted { p, remaining_ms: vote.ttl_ms }
    }

    /// `topup.lua`
    pub(super) fn topup(&mut self, now_ms: u64, to: Addressee<'_>, topup: &TopUp) -> NodeReply {
        let desk = self.desk(now_ms, to, &topup.lock, topup.bucket, topup.retention_ms);
        let mut desk = match desk {
            Ok(desk) => desk,
            Err(refusal) => return NodeReply::Refused(refusal),
        };
        if let Some(refusal) = desk.refuses(topup.lease, &topup.owner, &topup.metadata) {
            return refusal;
        }
        let expires_ms = now_ms + topup.remaining_ms;
        match &mut desk.record.live {
            Some(live) if live.token != topup.token => {
                let token = live.token;
                let remaining_ms = live.expires_ms - now_ms;
                return NodeReply::Yours { token, remaining_ms, p: desk.p };
            }
            Some(live) => {
                live.ttl_ms = topup.ttl_ms;
                live.expires_ms = live.expires_ms.max(expires_ms);
            }
            none => {
                *none = Some(Live {
                    lease: topup.lease,
                    token: topup.token,
                    ttl_ms: topup.ttl_ms,
                    granted_ms: now_ms,
                    expires_ms,
                    renewals: 0,
                    renewed: Default::default(),
                    attempt: topup.attempt.clone(),
                    owner: topup.owner.clone(),
                    metadata: topup.metadata.clone(),
                });
            }
        }
        self.accept(topup.bucket, &mut desk, topup.token);
        let p = desk.p;
        let expires_ms = desk.record.live.as_ref().map_or(now_ms, |live| live.expires_ms);
        self.save(&topup.lock, desk);
        NodeReply::Accepted { p, remaining_ms: expires_ms - now_ms }
    }

    /// `renew.lua`
    pub(super) fn renew(&mut self, now_ms: u64, to: Addressee<'_>, renew: &Renew) -> NodeReply {
        let desk = self.desk(now_ms, to, &renew.lock, renew.bucket, renew.retention_ms);
        let mut desk = match desk {
            Ok(desk) => desk,
            Err(refusal) => return NodeReply::Refused(refusal),
        };
        let Some(live) = desk.record.live.as_mut().filter(|live| live.lease == renew.lease) else {
            return desk.ended(renew.lease).unwrap_or_else(|| desk.held_or_nothing());
        };
        let (by, order) = &live.renewed;
        if *by != renew.by || renew.order >= *order {
            live.ttl_ms = renew.ttl_ms.unwrap_or(live.ttl_ms);
            live.expires_ms = now_ms + live.ttl_ms;
            live.renewals += 1;
            live.renewed = (renew.by.clone(), renew.order);
            live.attempt.clear();
        }
        let reply = NodeReply::Renewed {
            token: live.token,
            owner: live.owner.clone(),
            ttl_ms: live.ttl_ms,
            remaining_ms: live.expires_ms - now_ms,
            metadata: live.metadata.clone(),
        };
        self.save(&renew.lock, desk);
        reply
    }

    /// `end.lua`. What it publishes is not modelled.
    pub(super) fn end(
        &mut self,
        now_ms: u64,
        to: Addressee<'_>,
        lock: &LockName,
        lease: LeaseId,
        end: &End,
        retention_ms: u64,
    ) -> NodeReply {
        let desk = self.desk(now_ms, to, lock, bucket_of(lock), retention_ms);
        let mut desk = match desk {
            Ok(desk) => desk,
            Err(refusal) => return NodeReply::Refused(refusal),
        };
        let mine = desk.record.live.take_if(|live| live.lease == lease);
        let reply = match (end, mine) {
            (End::Drop { attempt }, Some(live))
                if live.attempt == *attempt && !attempt.is_empty() =>
            {
                NodeReply::EndedNow { token: live.token, owner: live.owner }
            }
            (End::Drop { .. }, _) => return NodeReply::Kept,
            (End::For { reason, why }, Some(live)) => {
                let reply = NodeReply::EndedNow { token: live.token, owner: live.owner.clone() };
                let held_ms = now_ms.saturating_sub(live.granted_ms);
                desk.record.remember(live.ended(*reason, held_ms, now_ms, why.clone()));
                reply
            }
            (End::For { reason, why }, None) => {
                if let Some(ended) = desk.ended(lease) {
                    return ended;
                }
                let reason = *reason;
                let why = why.clone();
                desk.record.remember(Ended {
                    lease,
                    token: None,
                    reason,
                    held_ms: 0,
                    at_ms: now_ms,
                    owner: None,
                    why,
                });
                desk.held_or_nothing()
            }
        };
        self.save(lock, desk);
        reply
    }

    /// `read.lua`
    ///
    /// # Errors
    /// [`Refusal`] where the node does not take part.
    pub(super) fn read(
        &self,
        now_ms: u64,
        to: Addressee<'_>,
        lock: &LockName,
    ) -> Result<Seen, Refusal> {
        let desk = self.desk(now_ms, to, lock, bucket_of(lock), 0)?;
        let live = desk.record.live.as_ref().map(|live| SeenLease {
            lease: live.lease,
            info: live.holder(now_ms),
            ttl_ms: live.ttl_ms,
            renewals: live.renewals,
            metadata: live.metadata.clone(),
        });
        let ended = desk.record.ended.iter().map(|ended| ended.shown(now_ms)).collect();
        Ok(Seen { p: desk.p, live, ended })
    }

    /// `names.lua`, all at once and in order.
    ///
    /// # Errors
    /// [`Refusal`] where the node does not take part.
    pub(super) fn names(&self, now_ms: u64, to: Addressee<'_>) -> Result<Vec<LockName>, Refusal> {
        self.admit(to)?;
        let known = self.locks.iter().filter(|(_, record)| record.gone_at_ms > now_ms);
        Ok(known.map(|(lock, _)| lock.clone()).collect())
    }

    /// `raise.lua`
    pub(super) fn raise(&mut self, to: Addressee<'_>, bucket: Bucket, token: Token) -> NodeReply {
        let p = match self.admit(to) {
            Ok(meta) => self.accepted(meta, bucket),
            Err(refusal) => return NodeReply::Refused(refusal),
        };
        if token.get() <= p {
            return NodeReply::Low { p };
        }
        self.p.insert(bucket, token.get());
        NodeReply::Raised { p: token.get() }
    }

    /// `lift.lua`
    pub(super) fn lift(&mut self, to: Addressee<'_>, mark: Token) -> NodeReply {
        if let Err(refusal) = self.admit(to) {
            return NodeReply::Refused(refusal);
        }
        let floor = self.meta.as_mut().map_or(0, |meta| {
            meta.floor = meta.floor.max(mark.get());
            meta.floor
        });
        NodeReply::Raised { p: self.p.values().copied().fold(floor, u64::max) }
    }

    /// `probe.lua`
    pub(super) fn probe(&self, now_ms: u64) -> NodeProbe {
        NodeProbe { now_ms, meta: self.meta.clone(), p: self.p.clone() }
    }
}

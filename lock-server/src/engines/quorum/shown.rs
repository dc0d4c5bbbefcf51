//! Replies of the nodes about a lock, put together.

use std::collections::BTreeMap;
use std::time::Duration;

use fence_protocol::wire::lock::{
    EndReason, EndedLease, HolderInfo, HolderReply, LeaseMode, LockReply, LockState,
};
use fence_protocol::{LeaseId, LockName, Owner, Token};

use super::QuorumStore;
use super::membership::of_node;
use super::nodes::{Node, submit_to_nodes};
use super::replies::read_seen;
use super::round::{reasons_text, refusal_text};
use super::rules::{ENDED_MAX, Operation, Seen, SeenLease, bucket_of, majority, split_principal};
use super::silence::Silence;
use crate::store::{Acquire, StoreError};

/// Longest wait for the last nodes, so that the reply is complete.
const PATIENCE: Duration = Duration::from_millis(500);

/// Standing of a request before it has asked for a vote.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LockStanding {
    /// It has the lock with this token, if a vote confirms it: a grant that nodes hold may be
    /// rolled back.
    Mine(Token),
    /// Its id has ended.
    Ended { reason: EndReason, why: Option<Owner> },
    /// Another has the lock.
    Held { holder: HolderInfo, queue_length: usize },
    /// No lease holds it.
    Free,
}

/// Replies of a majority of the nodes about a lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LockView {
    n: usize,
    seen: Vec<Seen>,
    /// Time that the replies took, in milliseconds.
    spent_ms: u64,
}

impl LockView {
    /// The live lease: a majority holds it, with one token. A node that does not reply counts for
    /// none.
    pub(super) fn live(&self) -> Option<SeenLease> {
        let holds = |copies: &Vec<&SeenLease>| copies.len() >= majority(self.n);
        let copies = self.copies().into_values().find(holds)?;
        let renewals = copies.iter().map(|copy| copy.renewals).max().unwrap_or(0);
        let mut remaining: Vec<u64> = copies.iter().map(|copy| copy.info.expires_in_ms).collect();
        // A majority holds it for as long as this: the rest may hold it for longer.
        remaining.sort_unstable_by(|a, b| b.cmp(a));
        let remaining_ms = remaining.get(majority(self.n) - 1).copied().unwrap_or(0);
        let expires_in_ms = remaining_ms.saturating_sub(self.spent_ms);
        let first = (*copies.first()?).clone();
        Some(SeenLease { renewals, info: HolderInfo { expires_in_ms, ..first.info }, ..first })
    }

    /// The live lease, for callers that must not take a held lock for a free one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where a lease is live if the nodes hold it that did not answer.
    pub(super) fn surely_live(&self) -> Result<Option<SeenLease>, StoreError> {
        if let Some(live) = self.live() {
            return Ok(Some(live));
        }
        let silent = self.n - self.seen.len();
        let ended = |lease: &LeaseId| {
            self.seen.iter().flat_map(|seen| &seen.ended).any(|ended| ended.lease_id == *lease)
        };
        let unverified = self.copies().into_iter().find(|((lease, _), copies)| {
            copies.len() + silent >= majority(self.n) && !ended(lease)
        });
        match unverified {
            None => Ok(None),
            Some(((lease, token), copies)) => Err(StoreError::Unavailable(format!(
                "the lease {lease} with token {token} is live where the nodes hold it that do not \
                 answer: {} of {} have it, and {silent} do not answer",
                copies.len(),
                self.n,
            ))),
        }
    }

    /// Live leases at nodes, by lease and token.
    fn copies(&self) -> BTreeMap<(LeaseId, Token), Vec<&SeenLease>> {
        let mut leases: BTreeMap<(LeaseId, Token), Vec<&SeenLease>> = BTreeMap::new();
        for lease in self.seen.iter().filter_map(|seen| seen.live.as_ref()) {
            leases.entry((lease.lease, lease.info.token)).or_default().push(lease);
        }
        leases
    }

    /// Checks that a lease is not another principal's than `caller`. A copy at fewer than a
    /// majority decides nothing: it can be the vote for a request that was refused.
    fn check_principal(&self, lease: LeaseId, caller: Option<&str>) -> Result<(), StoreError> {
        let live = self.seen.iter().filter_map(|seen| seen.live.as_ref());
        let copies = live.filter(|live| live.lease == lease);
        let is_anothers =
            |live: &&SeenLease| lease::is_anothers(split_principal(&live.metadata).0, caller);
        let (others, own): (Vec<_>, Vec<_>) = copies.partition(is_anothers);
        let silent = self.n - self.seen.len();
        if own.len() >= majority(self.n) || others.len() + silent < majority(self.n) {
            return Ok(());
        } else if others.len() >= majority(self.n) {
            return Err(StoreError::OtherPrincipal { lease_id: lease });
        }
        Err(StoreError::Unavailable(format!(
            "the lease {lease} may be another principal's: {} of {} nodes have it so, and {silent} \
             do not answer",
            others.len(),
            self.n,
        )))
    }

    /// The token that most of the nodes that answered hold a lease with.
    fn token_at_most(&self, lease: LeaseId) -> Option<Token> {
        let most = |copies: &Vec<&SeenLease>| copies.len() > self.seen.len() / 2;
        let mut copies = self.copies().into_iter();
        copies.find(|((id, _), copies)| *id == lease && most(copies)).map(|((_, token), _)| token)
    }

    /// The end of an id, where it is not live any more.
    fn ended(&self, lease: LeaseId) -> Option<(EndReason, Option<Owner>)> {
        let is_it = |ended: &&EndedLease| ended.lease_id == lease;
        let said: Vec<&EndedLease> =
            self.seen.iter().filter_map(|seen| seen.ended.iter().find(is_it)).collect();
        let is_live = self.seen.iter().any(|s| s.live.as_ref().is_some_and(|l| l.lease == lease));
        if said.len() < majority(self.n) && is_live {
            return None;
        }
        // A word (released, revoked) says more than the passing of time at a node that missed it.
        let ended = said.iter().find(|e| e.reason != EndReason::Expired).or(said.first())?;
        Some((ended.reason, ended.why.clone()))
    }

    fn standing(&self, request: &Acquire, queue_length: usize) -> LockStanding {
        if let Some((reason, why)) = self.ended(request.lease_id) {
            return LockStanding::Ended { reason, why };
        }
        if let Some(token) = self.token_at_most(request.lease_id) {
            return LockStanding::Mine(token);
        }
        match self.live() {
            Some(live) => LockStanding::Held { holder: live.info, queue_length },
            None => LockStanding::Free,
        }
    }

    /// The last endings that any node knows of, newest first.
    fn history(&self) -> Vec<EndedLease> {
        let live = self.live().map(|live| live.lease);
        let mut all: BTreeMap<LeaseId, EndedLease> = BTreeMap::new();
        for ended in self.seen.iter().flat_map(|seen| &seen.ended) {
            if Some(ended.lease_id) == live {
                continue;
            }
            let known = all.entry(ended.lease_id).or_insert_with(|| ended.clone());
            if known.reason == EndReason::Expired && ended.reason != EndReason::Expired {
                *known = ended.clone();
            }
        }
        let mut all: Vec<EndedLease> = all.into_values().collect();
        all.sort_by_key(|ended| ended.ended_ms_ago);
        in_order_of_tokens(&mut all);
        all.truncate(ENDED_MAX);
        all
    }
}

/// Nodes' clocks differ a little; tokens of one lock do not lie. Those without one keep their
/// places.
fn in_order_of_tokens(all: &mut [EndedLease]) {
    let places: Vec<usize> = (0..all.len()).filter(|at| all[*at].token.is_some()).collect();
    let mut with: Vec<EndedLease> = places.iter().map(|at| all[*at].clone()).collect();
    with.sort_by_key(|ended| std::cmp::Reverse(ended.token));
    for (at, ended) in places.into_iter().zip(with) {
        all[at] = ended;
    }
}

impl QuorumStore {
    /// Reads what the nodes know of a lock, and records how far its counter is.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where fewer than a majority reply.
    pub(super) async fn read_lock(&self, lock: &LockName) -> Result<LockView, StoreError> {
        let inner = &*self.inner;
        let current = self.current()?;
        let began_ms = self.now_ms();
        let bucket = usize::from(bucket_of(lock).number());
        let kick = inner.membership.clone();
        let read = move |node: &Node, value| {
            let seen = read_seen(value).map_err(|error| Silence::Unknown(error.to_string()))?;
            match seen {
                Ok(seen) => {
                    node.notes.saw(bucket, seen.p);
                    Ok(seen)
                }
                Err(refusal) => {
                    kick.probe_soon();
                    Err(Silence::NotDone(refusal_text(&refusal)))
                }
            }
        };
        let operation = Operation::Read(lock.clone());
        let mut replies =
            submit_to_nodes(&inner.nodes, &current, PATIENCE, operation, |_| true, read);
        let mut reasons = self.absent(&current);
        let mut seen = Vec::new();
        while let Some((node, reply)) = replies.next().await {
            match reply {
                Ok(one) => seen.push(one),
                Err(silence) => {
                    reasons.push(of_node(&self.address(node), silence.reason()));
                }
            }
        }
        let n = inner.nodes.len();
        if seen.len() < majority(n) {
            return Err(StoreError::Unavailable(reasons_text("answer", &reasons)));
        }
        let spent_ms = self.now_ms().saturating_sub(began_ms);
        Ok(LockView { n, seen, spent_ms })
    }

    /// Checks that `caller` may renew or release a lease, which never changes its principal. A live
    /// lease is at a majority, so one of the nodes that reply has it.
    ///
    /// # Errors
    /// [`StoreError::OtherPrincipal`]; [`StoreError::Unavailable`] where fewer than a majority
    /// reply.
    pub(super) async fn check_principal(
        &self,
        caller: Option<&str>,
        lock: &LockName,
        lease_id: LeaseId,
    ) -> Result<(), StoreError> {
        if caller.is_none() {
            return Ok(());
        }
        // Before the nodes are read: a request that waits here may be granted meanwhile.
        let waits = self.queues().principal(lock, lease_id);
        if lease::is_anothers(waits.as_deref(), caller) {
            return Err(StoreError::OtherPrincipal { lease_id });
        }
        self.read_lock(lock).await?.check_principal(lease_id, caller)
    }

    /// Standing of a request that has others before it in its queue.
    pub(super) async fn standing(&self, request: &Acquire) -> Result<LockStanding, StoreError> {
        let view = self.read_lock(&request.lock).await?;
        let (length, queue) = self.queues().shown(&request.lock, self.now_ms());
        let is_in_it = queue.iter().any(|waiter| waiter.lease_id == request.lease_id);
        Ok(view.standing(request, length.saturating_sub(usize::from(is_in_it))))
    }

    /// Holder, queue of this server, and history.
    pub(super) async fn show_lock(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        let view = self.read_lock(lock).await?;
        let live = view.surely_live()?;
        let (queue_length, queue) = self.queues().shown(lock, self.now_ms());
        Ok(LockReply {
            lock: lock.clone(),
            state: if live.is_some() { LockState::Held } else { LockState::Free },
            lease_count: usize::from(live.is_some()),
            holder: live.map(holder),
            also_held: Vec::new(),
            size: None,
            delayed_ms: None,
            queue_length,
            queue,
            history: view.history(),
        })
    }
}

fn holder(live: SeenLease) -> HolderReply {
    HolderReply {
        lease_id: live.lease,
        info: live.info,
        ttl_ms: live.ttl_ms,
        renewals: live.renewals,
        mode: LeaseMode::Exclusive,
        session_id: None,
        incarnation: None,
        metadata: serde_json::from_str(split_principal(&live.metadata).1).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::{Owner, Ttl};
    use service_kit::ids;

    /// View of lock `n` by nodes that each report a holder's lease and token, or none.
    fn view(n: usize, seen_by: &[Option<(LeaseId, u64)>]) -> LockView {
        let seen = |(lease, token): (LeaseId, u64)| SeenLease {
            lease,
            info: HolderInfo {
                owner: Owner::new("me").unwrap(),
                token: Token::new(token).unwrap(),
                held_ms: 0,
                expires_in_ms: 1_000,
            },
            ttl_ms: 1_000,
            renewals: 0,
            metadata: String::new(),
        };
        let seen =
            |live: &Option<(LeaseId, u64)>| Seen { p: 9, live: live.map(seen), ended: vec![] };
        LockView { n, seen: seen_by.iter().map(seen).collect(), spent_ms: 0 }
    }

    fn request(lease: LeaseId) -> Acquire {
        let owner = Owner::new("me").unwrap();
        let ttl = Ttl::from_ms(1_000).unwrap();
        Acquire::new(LockName::new("l").unwrap(), lease, owner, ttl)
    }

    /// Two leases, the first with the higher id.
    fn two() -> (LeaseId, LeaseId) {
        let one = ids::lease_id();
        let other = ids::lease_id();
        (one.max(other), one.min(other))
    }

    #[test]
    fn a_node_that_does_not_answer_counts_for_no_holder() {
        let (l, m) = two();
        let seen = view(3, &[Some((l, 5)), Some((m, 6))]);
        assert_eq!(seen.live(), None);
        assert_eq!(seen.standing(&request(l), 0), LockStanding::Free);
        assert_eq!(seen.standing(&request(m), 0), LockStanding::Free);
        assert!(matches!(seen.surely_live(), Err(StoreError::Unavailable(_))));
        assert_eq!(view(3, &[Some((l, 5)), None]).live(), None);
    }

    #[test]
    fn one_lease_with_two_tokens_is_not_live() {
        let (l, _) = two();
        let seen = view(3, &[Some((l, 2)), Some((l, 3)), None]);
        assert_eq!(seen.live(), None);
        assert_eq!(seen.standing(&request(l), 0), LockStanding::Free);
        assert_eq!(seen.surely_live(), Ok(None));
    }

    #[test]
    fn what_most_nodes_hold_is_live_and_its_repeat_has_it_confirmed() {
        let (l, m) = two();
        let seen = view(3, &[Some((l, 2)), Some((m, 3)), Some((m, 3))]);
        assert_eq!(seen.live().map(|live| live.lease), Some(m));
        assert_eq!(seen.standing(&request(m), 0), LockStanding::Mine(Token::new(3).unwrap()));
        let LockStanding::Held { holder, queue_length: 4 } = seen.standing(&request(l), 4) else {
            panic!("it is held");
        };
        assert_eq!(holder.token.get(), 3);
    }
}

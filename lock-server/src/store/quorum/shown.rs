//! What the nodes know of a lock, put together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fence_protocol::wire::lock::{
    EndReason, EndedLease, HolderInfo, HolderReply, LeaseMode, LockLine, LockPage, LockReply,
    LockState,
};
use fence_protocol::{LeaseId, LockName, Owner};

use super::QuorumStore;
use super::membership::of_node;
use super::nodes::{Silence, ask};
use super::replies::{read_names, read_seen};
use super::round::{reasons_text, say};
use crate::rules::quorum::{ENDED_MAX, Seen, SeenLease, bucket_of, majority};
use crate::store::{Acquire, Grant, ListQuery, Mode, StoreError};

/// How long is waited for the last nodes, so that what is shown is complete.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many keys a node looks at in one step of a listing.
const SCAN: usize = 500;

/// What a request is before it has asked for a vote.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// It has the lock.
    Yours(Grant),
    /// Its id has ended.
    Ended { reason: EndReason, why: Option<Owner> },
    /// Another has the lock.
    Held { holder: HolderInfo, queue_length: usize },
    /// Nobody does.
    Free,
}

/// What a majority of the nodes said of a lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    n: usize,
    seen: Vec<Seen>,
    /// How long the answers took, in milliseconds.
    spent_ms: u64,
}

impl View {
    /// The live lease: a majority holds it, counting those that did not answer as if they did,
    /// unless a node knows that it has ended.
    pub(super) fn live(&self) -> Option<SeenLease> {
        let silent = self.n - self.seen.len();
        let mut leases: BTreeMap<LeaseId, Vec<&SeenLease>> = BTreeMap::new();
        for lease in self.seen.iter().filter_map(|seen| seen.live.as_ref()) {
            leases.entry(lease.lease).or_default().push(lease);
        }
        let ended: BTreeSet<LeaseId> =
            self.seen.iter().flat_map(|seen| &seen.ended).map(|ended| ended.lease_id).collect();
        let holds = |(id, copies): &(LeaseId, Vec<&SeenLease>)| {
            copies.len() >= majority(self.n)
                || (copies.len() + silent >= majority(self.n) && !ended.contains(id))
        };
        let (_, copies) = leases.into_iter().filter(holds).max_by_key(|(_, c)| c.len())?;
        let renewals = copies.iter().map(|copy| copy.renewals).max().unwrap_or(0);
        let mut remaining: Vec<u64> = copies.iter().map(|copy| copy.info.expires_in_ms).collect();
        // A majority holds it for as long as this: the rest may hold it for longer.
        remaining.sort_unstable_by(|a, b| b.cmp(a));
        let at = (majority(self.n) - 1).min(remaining.len().saturating_sub(1));
        let expires_in_ms = remaining.get(at).map_or(0, |ms| ms.saturating_sub(self.spent_ms));
        let first = (*copies.first()?).clone();
        Some(SeenLease { renewals, info: HolderInfo { expires_in_ms, ..first.info }, ..first })
    }

    /// How an id ended, where it is not live any more.
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

    fn standing(&self, request: &Acquire, queue_length: usize) -> Standing {
        if let Some((reason, why)) = self.ended(request.lease_id) {
            return Standing::Ended { reason, why };
        }
        match self.live() {
            Some(live) if live.lease == request.lease_id => Standing::Yours(Grant {
                lease_id: live.lease,
                token: live.info.token,
                owner: live.info.owner,
                remaining_ms: live.info.expires_in_ms,
                waited_ms: 0,
                mode: Mode::Exclusive,
            }),
            Some(live) => Standing::Held { holder: live.info, queue_length },
            None => Standing::Free,
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

/// Nodes' clocks differ a little; tokens of one lock do not lie. Those without one keep their places.
fn in_order_of_tokens(all: &mut [EndedLease]) {
    let places: Vec<usize> = (0..all.len()).filter(|at| all[*at].token.is_some()).collect();
    let mut with: Vec<EndedLease> = places.iter().map(|at| all[*at].clone()).collect();
    with.sort_by_key(|ended| std::cmp::Reverse(ended.token));
    for (at, ended) in places.into_iter().zip(with) {
        all[at] = ended;
    }
}

impl QuorumStore {
    /// What the nodes know of a lock, and notes how far its counter is.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where fewer than a majority say it.
    pub(super) async fn look(&self, lock: &LockName) -> Result<View, StoreError> {
        let inner = &*self.inner;
        let current = self.current()?;
        let began_ms = self.now_ms();
        let bucket = usize::from(bucket_of(lock).number());
        let kick = inner.membership.clone();
        let command = |node: &super::nodes::Node| {
            current.has(node).then(|| inner.scripts.read(&current.view, lock))
        };
        let mut replies =
            ask(&inner.nodes, &inner.tasks, PATIENCE, command, move |node, value| match read_seen(
                value,
            )
            .map_err(|error| Silence::Unknown(error.to_string()))?
            {
                Ok(seen) => {
                    node.notes.saw(bucket, seen.p);
                    Ok(seen)
                }
                Err(refusal) => {
                    kick.look_again();
                    Err(Silence::NotDone(say(&refusal)))
                }
            });
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
        Ok(View { n, seen, spent_ms })
    }

    /// What a request is that has others before it in its queue.
    pub(super) async fn standing(&self, request: &Acquire) -> Result<Standing, StoreError> {
        let view = self.look(&request.lock).await?;
        let (length, queue) = self.queues().shown(&request.lock, self.now_ms());
        let is_in_it = queue.iter().any(|waiter| waiter.lease_id == request.lease_id);
        Ok(view.standing(request, length.saturating_sub(usize::from(is_in_it))))
    }

    /// Holder, queue of this server, and history.
    pub(super) async fn show_lock(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        let view = self.look(lock).await?;
        let live = view.live();
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

    /// A page of the held locks.
    pub(super) async fn list_locks(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        let names = self.names(&query.prefix).await?;
        let after = |name: &LockName| query.after.as_ref().is_none_or(|after| name > after);
        let mut names = names.into_iter().filter(after).peekable();
        let mut page = LockPage { locks: Vec::new(), next_after: None };
        while page.locks.len() < query.limit
            && let Some(lock) = names.next()
        {
            // A record may be of a lock that is free by now.
            if let Some(live) = self.look(&lock).await?.live() {
                let (queue_length, _) = self.queues().shown(&lock, self.now_ms());
                page.locks.push(LockLine { lock: lock.clone(), holder: live.info, queue_length });
            }
            page.next_after = names.peek().is_some().then_some(lock);
        }
        Ok(page)
    }

    /// The names that a majority of the nodes has records of, so that no held lock is missing.
    async fn names(&self, prefix: &str) -> Result<BTreeSet<LockName>, StoreError> {
        let current = self.current()?;
        let nodes: Vec<_> = self.inner.nodes.iter().filter(|node| current.has(node)).collect();
        let scans = nodes.iter().map(|node| self.names_of(node, &current, prefix));
        let mut reasons = self.absent(&current);
        let (mut names, mut answered) = (BTreeSet::new(), 0);
        for scan in futures_util::future::join_all(scans).await {
            match scan {
                Ok(found) => {
                    answered += 1;
                    names.extend(found);
                }
                Err(reason) => reasons.push(reason),
            }
        }
        if answered < majority(self.inner.nodes.len()) {
            return Err(StoreError::Unavailable(reasons_text("answer", &reasons)));
        }
        Ok(names)
    }

    async fn names_of(
        &self,
        node: &super::nodes::Node,
        current: &super::Current,
        prefix: &str,
    ) -> Result<Vec<LockName>, String> {
        let mut found = Vec::new();
        let mut cursor = 0;
        loop {
            let command = self.inner.scripts.names(&current.view, cursor, SCAN);
            let value = node.link.call(&command).await.map_err(|error| error.to_string())?;
            let names = read_names(value).map_err(|error| error.to_string())?;
            let names = names.map_err(|refusal| say(&refusal))?;
            found.extend(names.names.into_iter().filter(|name| name.as_str().starts_with(prefix)));
            cursor = names.cursor;
            if cursor == 0 {
                return Ok(found);
            }
        }
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
        metadata: serde_json::from_str(&live.metadata).ok(),
    }
}

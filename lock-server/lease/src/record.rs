//! What is known of one lock.

use std::collections::{BTreeSet, VecDeque};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, Token};

use crate::{Acquire, Kind, Limits, Mode, StoreError};

mod holders;
mod reply;
mod stored;
mod waiting;

pub use holders::{Closed, Holder, Holders};
pub use stored::{Reading, StoredClosed, StoredEnded, StoredHolder, StoredRecord};
pub use waiting::{StoredWaiter, place_name, place_of};

/// For how long the waiter of another server outlives its patience here: that server is the one that
/// answers it.
const FOREIGN_PATIENCE_MS: u64 = 2_000;

/// How many ended leases a lock remembers.
pub(super) const ENDED_KEPT: usize = 8;

/// One lock: the live leases, who waits, and what ended lately.
///
/// Invariant: an exclusive lease or closed place is alone; permits are of one size, and beside no
/// other mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The live leases. One may be past its time until somebody settles the record.
    pub holders: Holders,
    /// Places that nobody gets for a while.
    pub closed: Vec<Closed>,
    /// First come, first served.
    pub queue: VecDeque<Waiter>,
    /// Newest first, at most eight.
    pub ended: VecDeque<Ended>,
}

/// A request that waits in several queues: the server that took it, and a count.
pub type GroupId = u64;

/// Somebody in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// What it asked for.
    pub request: Acquire,
    /// The request for several locks that this is a part of.
    pub group: Option<GroupId>,
    /// Its place: above that of everybody before it in the queue.
    pub place: u64,
    /// The server that it is connected to.
    pub server: u32,
    /// Since when it waits.
    pub since_ms: u64,
    /// When it gives up.
    pub until_ms: u64,
}

impl Waiter {
    /// The moment at which `server` checks whether it has timed out.
    pub fn patience_ms(&self, server: u32) -> u64 {
        let is_own = self.server == server;
        self.until_ms.saturating_add(if is_own { 0 } else { FOREIGN_PATIENCE_MS })
    }

    /// Its client has asked again at another server. Returns whether that is news.
    pub fn move_to(&mut self, server: u32, now_ms: u64) -> bool {
        if self.server == server {
            return false;
        }
        (self.server, self.since_ms) = (server, now_ms);
        true
    }
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
    /// What the operator who revoked it said.
    pub why: Option<Owner>,
    /// For how long it was held.
    pub held_ms: u64,
    /// When it ended.
    pub at_ms: u64,
}

impl Ended {
    /// What whoever asks with its id is told.
    pub fn lost(&self) -> StoreError {
        StoreError::Lost { reason: self.reason, why: self.why.clone() }
    }
}

impl Record {
    /// Whether a lease of this mode fits beside what is live and closed. The queue is not asked.
    pub fn admits(&self, mode: Mode, limits: &Limits) -> bool {
        let taken = self.holders.len() + self.closed.len();
        match mode {
            Mode::Exclusive => taken == 0,
            Mode::Shared => taken < limits.shared_per_lock && self.mode() != Some(Mode::Exclusive),
            Mode::Permit { size } => taken < size as usize,
        }
    }

    /// Whether a request of this mode would be granted at once.
    pub fn is_open_to(&self, mode: Mode, limits: &Limits) -> bool {
        self.queue.is_empty() && self.admits(mode, limits)
    }

    /// How the live leases and closed places share the lock: all of them alike.
    fn mode(&self) -> Option<Mode> {
        let held = self.holders.first().map(|holder| holder.mode);
        held.or_else(|| self.closed.first().map(|closed| closed.mode))
    }

    /// As what the lock is in use.
    pub fn kind(&self) -> Option<Kind> {
        let mode = self.mode().or_else(|| self.queue.front().map(|waiter| waiter.request.mode));
        mode.map(Mode::kind)
    }

    /// The live lease, where it is exclusive.
    pub fn exclusive(&self) -> Option<&Holder> {
        self.holders.first().filter(|holder| holder.mode == Mode::Exclusive)
    }

    /// Whether nothing but ended ids is left.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.closed.is_empty() && self.queue.is_empty()
    }

    /// How the lease with this id ended, if that is remembered.
    pub fn ended(&self, lease_id: LeaseId) -> Option<&Ended> {
        self.ended.iter().find(|ended| ended.lease_id == lease_id)
    }

    /// The place in the queue.
    pub fn position(&self, lease_id: LeaseId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.request.lease_id == lease_id)
    }

    /// The lease ids in the queue.
    pub fn waiting_ids(&self) -> BTreeSet<LeaseId> {
        self.queue.iter().map(|waiter| waiter.request.lease_id).collect()
    }

    /// The place behind everybody in the queue.
    pub fn next_place(&self) -> u64 {
        self.queue.back().map_or(1, |last| last.place.saturating_add(1))
    }

    /// Ends a live lease and remembers how. Where it ended without its holder's word, its place stays
    /// closed for its lock-delay.
    pub fn end(
        &mut self,
        lease_id: LeaseId,
        reason: EndReason,
        why: Option<Owner>,
        now_ms: u64,
    ) -> Option<Ended> {
        let holder = self.holders.take(lease_id)?;
        if matches!(reason, EndReason::Expired | EndReason::SessionEnded) {
            self.closed.extend(Closed::after(&holder, now_ms));
        }
        let ended = Ended {
            lease_id,
            token: Some(holder.token),
            owner: Some(holder.owner),
            incarnation: holder.incarnation,
            reason,
            why,
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
        // Not in the order of their ends: where servers share a clock, a lease ended when its time was
        // over, and not when that was noticed.
        self.ended.iter().map(|ended| ended.at_ms + retention_ms).max()
    }

    /// The highest token that the record mentions: the counter is never below it.
    pub fn highest_token(&self) -> u64 {
        let held = self.holders.iter().map(|holder| holder.token);
        let closed = self.closed.iter().map(|closed| closed.token);
        let ended = self.ended.iter().filter_map(|ended| ended.token);
        held.chain(closed).chain(ended).map(Token::get).max().unwrap_or(0)
    }
}

/// When something changes by itself.
impl Record {
    /// When the next lease ends that no session keeps, or the next closed place opens.
    pub fn next_ms(&self) -> Option<u64> {
        let unbound = self.holders.iter().filter(|holder| holder.session.is_none());
        let leases = unbound.map(|holder| holder.expires_at_ms);
        leases.chain(self.closed.iter().map(|closed| closed.until_ms)).min()
    }

    /// A lease that no session keeps, and whose time has passed, and when it did: the oldest.
    pub fn due(&self, now_ms: u64) -> Option<(LeaseId, u64)> {
        let due = |holder: &&Holder| holder.session.is_none() && holder.expires_at_ms <= now_ms;
        self.holders.iter().find(due).map(|holder| (holder.lease_id, holder.expires_at_ms))
    }

    /// Whether the first waiter has a place at this lock.
    pub fn may_pass_on(&self, limits: &Limits) -> bool {
        self.queue.front().is_some_and(|front| self.admits(front.request.mode, limits))
    }
}

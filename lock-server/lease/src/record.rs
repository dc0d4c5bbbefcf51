//! State of one lock.

use std::collections::VecDeque;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner, Token};

use crate::{Acquire, Kind, Limits, Mode, StoreError};

mod holders;
mod queue;
mod reply;
mod stored;
mod stored_waiter;

pub use holders::{Closed, Holder, Holders};
pub use queue::Queue;
pub use stored::{Reading, StoredClosed, StoredEnded, StoredHolder, StoredRecord};
pub use stored_waiter::{StoredWaiter, place_name, place_of};

/// Time for which a waiter of another server outlives its time-out here, in milliseconds: that
/// server replies to it.
const FOREIGN_PATIENCE_MS: u64 = 2_000;

/// Number of ended leases that a lock remembers.
pub(super) const ENDED_KEPT: usize = 8;

/// One lock: its live leases, waiters, and the leases that ended lately.
///
/// Invariant: an exclusive lease or lock-delay is alone; permits are of one size, and beside no
/// other mode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Live leases. One may be past its expiry until the record is settled.
    pub holders: Holders,
    /// Lock-delays in progress.
    pub closed: Vec<Closed>,
    /// Waiters in arrival order.
    pub queue: Queue,
    /// Ended leases, newest first, at most eight.
    pub ended: VecDeque<Ended>,
}

/// Id of a request that waits in several queues: the number of the server that took it, and a
/// count.
pub type GroupId = u64;

/// An entry in the queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// Acquire request that waits.
    pub request: Acquire,
    /// The request for several locks that this is a part of.
    pub group: Option<GroupId>,
    /// Queue position: higher than that of every entry before it.
    pub place: u64,
    /// Server that it is connected to.
    pub server: u32,
    /// Begin of the wait.
    pub since_ms: u64,
    /// Time-out.
    pub until_ms: u64,
}

impl Waiter {
    /// Returns the time at which `server` checks whether it has timed out.
    pub fn patience_ms(&self, server: u32) -> u64 {
        let is_own = self.server == server;
        self.until_ms.saturating_add(if is_own { 0 } else { FOREIGN_PATIENCE_MS })
    }

    /// Returns whether it depends on a session, or on other locks.
    pub fn is_bound(&self) -> bool {
        self.request.session.is_some() || self.group.is_some()
    }

    /// Moves the waiter to the server that its client has retried at. Returns whether that is a
    /// change.
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
    /// Id of the lease.
    pub lease_id: LeaseId,
    /// Its token, if it ever had one.
    pub token: Option<Token>,
    /// Owner that held it.
    pub owner: Option<Owner>,
    /// Incarnation of the owner.
    pub incarnation: Option<Owner>,
    /// Reason for its end.
    pub reason: EndReason,
    /// Reason that the revoking operator gave.
    pub why: Option<Owner>,
    /// Time for which it was held, in milliseconds.
    pub held_ms: u64,
    /// Time of its end.
    pub at_ms: u64,
}

impl Ended {
    /// Returns the refusal of a request with its id.
    pub fn lost(&self) -> StoreError {
        StoreError::Lost { reason: self.reason, why: self.why.clone(), is_known: true }
    }
}

impl Record {
    /// Returns whether a lease of this mode is compatible with the live leases and lock-delays,
    /// regardless of the queue.
    pub fn admits(&self, mode: Mode, limits: &Limits) -> bool {
        let taken = self.holders.len() + self.closed.len();
        match mode {
            Mode::Exclusive => taken == 0,
            Mode::Shared => taken < limits.shared_per_lock && self.mode() != Some(Mode::Exclusive),
            Mode::Permit { size } => taken < size as usize,
        }
    }

    /// Returns whether a request of this mode would be granted at once.
    pub fn is_open_to(&self, mode: Mode, limits: &Limits) -> bool {
        self.queue.is_empty() && self.admits(mode, limits)
    }

    /// Returns the mode that all live leases and lock-delays share.
    fn mode(&self) -> Option<Mode> {
        let held = self.holders.first().map(|holder| holder.mode);
        held.or_else(|| self.closed.first().map(|closed| closed.mode))
    }

    /// Returns the kind that the lock is in use as.
    pub fn kind(&self) -> Option<Kind> {
        let mode = self.mode().or_else(|| self.queue.front().map(|waiter| waiter.request.mode));
        mode.map(Mode::kind)
    }

    /// Returns the live lease, if it is exclusive.
    pub fn exclusive(&self) -> Option<&Holder> {
        self.holders.first().filter(|holder| holder.mode == Mode::Exclusive)
    }

    /// Returns whether nothing but ended ids is left.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.closed.is_empty() && self.queue.is_empty()
    }

    /// Returns the end of the lease with this id, if it is remembered.
    pub fn ended(&self, lease_id: LeaseId) -> Option<&Ended> {
        self.ended.iter().find(|ended| ended.lease_id == lease_id)
    }

    /// Returns a queue position behind all entries.
    pub fn next_place(&self) -> u64 {
        self.queue.back().map_or(1, |last| last.place.saturating_add(1))
    }

    /// Ends a live lease and remembers its end. If it ended without a release, its lock-delay
    /// begins.
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

    /// Remembers an ended id, and forgets the oldest beyond the limit.
    pub fn remember(&mut self, ended: Ended) {
        self.ended.push_front(ended);
        self.ended.truncate(ENDED_KEPT);
    }

    /// Returns the time until which ended ids are remembered; `None` without any.
    pub fn idle_until_ms(&self, retention_ms: u64) -> Option<u64> {
        // They are not ordered by their ends: with a shared clock, a lease ends at its expiry, not
        // when a server notices it.
        self.ended.iter().map(|ended| ended.at_ms + retention_ms).max()
    }

    /// Returns the highest token that the record mentions: the counter is never below it.
    pub fn highest_token(&self) -> u64 {
        let held = self.holders.iter().map(|holder| holder.token);
        let closed = self.closed.iter().map(|closed| closed.token);
        let ended = self.ended.iter().filter_map(|ended| ended.token);
        held.chain(closed).chain(ended).map(Token::get).max().unwrap_or(0)
    }
}

/// Changes by time.
impl Record {
    /// Returns the next end of a lease that is not bound to a session, or of a lock-delay.
    pub fn next_ms(&self) -> Option<u64> {
        let unbound = self.holders.iter().filter(|holder| holder.session.is_none());
        let leases = unbound.map(|holder| holder.expires_at_ms);
        leases.chain(self.closed.iter().map(|closed| closed.until_ms)).min()
    }

    /// Returns the oldest expired lease that is not bound to a session, and its expiry.
    pub fn due(&self, now_ms: u64) -> Option<(LeaseId, u64)> {
        let mut holders = self.holders.iter();
        holders
            .find(|holder| holder.is_over(now_ms))
            .map(|holder| (holder.lease_id, holder.expires_at_ms))
    }

    /// Returns whether the first waiter is admitted.
    pub fn may_pass_on(&self, limits: &Limits) -> bool {
        self.queue.front().is_some_and(|front| self.admits(front.request.mode, limits))
    }
}

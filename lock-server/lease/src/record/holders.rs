//! Live leases of a lock, and lock-delays.

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, Owner, SessionId, Token, Ttl};

use crate::principal::is_anothers;
use crate::{Acquire, Grant, Mode};

/// Live leases of a lock in the order of their grants.
///
/// Nearly every lock has one at most: the first is stored without an allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holders {
    first: Option<Holder>,
    /// Empty if there is no first.
    others: Vec<Holder>,
}

impl Holders {
    /// Returns whether no lease is live.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the number of live leases.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Returns the oldest lease.
    pub fn first(&self) -> Option<&Holder> {
        self.first.as_ref()
    }

    /// Iterates over the leases, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.first.iter().chain(&self.others)
    }

    /// Iterates over the leases, the oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// Returns the lease with this id.
    pub fn get(&self, lease_id: LeaseId) -> Option<&Holder> {
        self.iter().find(|holder| holder.lease_id == lease_id)
    }

    /// Returns the lease with this id.
    pub fn get_mut(&mut self, lease_id: LeaseId) -> Option<&mut Holder> {
        self.iter_mut().find(|holder| holder.lease_id == lease_id)
    }

    /// Adds the newest lease.
    pub fn push(&mut self, holder: Holder) {
        match self.first {
            None => self.first = Some(holder),
            Some(_) => self.others.push(holder),
        }
    }

    /// Removes a lease.
    pub fn take(&mut self, lease_id: LeaseId) -> Option<Holder> {
        if self.first.as_ref()?.lease_id == lease_id {
            let second = (!self.others.is_empty()).then(|| self.others.remove(0));
            return std::mem::replace(&mut self.first, second);
        }
        let place = self.others.iter().position(|holder| holder.lease_id == lease_id)?;
        Some(self.others.remove(place))
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Self {
        let mut holders = holders.into_iter();
        Self { first: holders.next(), others: holders.collect() }
    }
}

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// Id of the lease.
    pub lease_id: LeaseId,
    /// Fencing token.
    pub token: Token,
    /// Owner named in the request.
    pub owner: Owner,
    /// Mode in which it shares the lock.
    pub mode: Mode,
    /// Time to live that a renewal restores.
    pub ttl: Ttl,
    /// Session that it is bound to. `expires_at_ms` is then only the value last read from the
    /// session.
    pub session: Option<SessionId>,
    /// Incarnation of the owner.
    pub incarnation: Option<Owner>,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// Lock-delay after an end without a release, in milliseconds.
    pub lock_delay_ms: u64,
    /// Principal of the access file that acquired it.
    pub principal: Option<String>,
    /// Time of the grant.
    pub granted_at_ms: u64,
    /// Expiry, unless it is renewed.
    pub expires_at_ms: u64,
    /// Number of renewals.
    pub renewals: u64,
    /// Server that delivers the grant, until a retry or a renewal has shown that it was received.
    /// Only this server may roll it back.
    pub deliverer: Option<u32>,
    /// The deliverer has not read yet that another server made the grant. If it dies before, no
    /// client knows of the grant.
    pub is_unread: bool,
}

impl Holder {
    /// Returns whether its time is over; a lease that is bound to a session ends with that.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.session.is_none() && self.expires_at_ms <= now_ms
    }

    /// Records that the client has received the grant.
    pub fn confirm(&mut self) {
        self.deliverer = None;
        self.is_unread = false;
    }

    /// Returns whether a request with its id is a retry: of the same owner and principal.
    pub fn is_of(&self, request: &Acquire) -> bool {
        let theirs = self.principal.as_deref();
        self.owner == request.owner && !is_anothers(theirs, request.principal.as_deref())
    }

    /// Returns the lease as its holder sees it.
    pub fn grant(&self, now_ms: u64, waited_ms: u64) -> Grant {
        Grant {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner.clone(),
            remaining_ms: self.expires_at_ms.saturating_sub(now_ms),
            waited_ms,
            mode: self.mode,
            slack_ms: None,
            is_repeat: false,
        }
    }

    /// Returns the lease as other clients see it.
    pub fn info(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.granted_at_ms),
            expires_in_ms: self.expires_at_ms.saturating_sub(now_ms),
        }
    }
}

/// A lock-delay: the place of a lease that ended without a release, and that no request gets yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Closed {
    /// Owner of the lease.
    pub owner: Owner,
    /// Token of the lease.
    pub token: Token,
    /// Mode of the lease.
    pub mode: Mode,
    /// Length of the delay, in milliseconds.
    pub delay_ms: u64,
    /// Time of the grant.
    pub granted_at_ms: u64,
    /// End of the delay.
    pub until_ms: u64,
}

impl Closed {
    /// Returns the lock-delay after a lease that ends at `now_ms`; `None` if it has none.
    pub fn after(holder: &Holder, now_ms: u64) -> Option<Self> {
        (holder.lock_delay_ms > 0).then(|| Self {
            owner: holder.owner.clone(),
            token: holder.token,
            mode: holder.mode,
            delay_ms: holder.lock_delay_ms,
            granted_at_ms: holder.granted_at_ms,
            until_ms: now_ms.saturating_add(holder.lock_delay_ms),
        })
    }

    /// Returns what a refusal shows.
    pub fn info(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.granted_at_ms),
            expires_in_ms: self.until_ms.saturating_sub(now_ms),
        }
    }
}

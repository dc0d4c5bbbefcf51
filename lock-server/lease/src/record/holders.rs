//! Who has a lock: live leases, and places that stay closed after a lease.

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{LeaseId, Owner, SessionId, Token, Ttl};

use crate::{Grant, Mode};

/// The live leases of a lock in the order of their grants.
///
/// Nearly every lock has one at most, which is why the first has its place without an allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holders {
    first: Option<Holder>,
    /// Empty where there is no first.
    others: Vec<Holder>,
}

impl Holders {
    /// Whether nobody holds the lock.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// How many leases are live.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// The lease that was granted first.
    pub fn first(&self) -> Option<&Holder> {
        self.first.as_ref()
    }

    /// The oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.first.iter().chain(&self.others)
    }

    /// The oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// The lease with this id.
    pub fn get(&self, lease_id: LeaseId) -> Option<&Holder> {
        self.iter().find(|holder| holder.lease_id == lease_id)
    }

    /// The lease with this id.
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

    /// Takes a lease out.
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

/// A lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The grant.
    pub lease_id: LeaseId,
    /// Its token.
    pub token: Token,
    /// Who.
    pub owner: Owner,
    /// How it shares the lock.
    pub mode: Mode,
    /// The time to live that a renewal restores.
    pub ttl: Ttl,
    /// The session that it lives as long as. `expires_at_ms` is then only what was last read of it.
    pub session: Option<SessionId>,
    /// Which life of the owner.
    pub incarnation: Option<Owner>,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// For how long its place stays closed when it ends without its holder's word.
    pub lock_delay_ms: u64,
    /// When it was granted.
    pub granted_at_ms: u64,
    /// When it ends unless it is renewed.
    pub expires_at_ms: u64,
    /// How often it was renewed.
    pub renewals: u64,
    /// Server that delivers the grant, until a retry or a renewal has shown that it was received.
    /// Only this server may roll it back.
    pub deliverer: Option<u32>,
    /// That server has not read yet that another one made the grant. If it dies before, no client knows
    /// of the grant.
    pub is_unread: bool,
}

impl Holder {
    /// Its client has the grant.
    pub fn confirm(&mut self) {
        self.deliverer = None;
        self.is_unread = false;
    }

    /// The lease as its holder sees it.
    pub fn grant(&self, now_ms: u64, waited_ms: u64) -> Grant {
        Grant {
            lease_id: self.lease_id,
            token: self.token,
            owner: self.owner.clone(),
            remaining_ms: self.expires_at_ms.saturating_sub(now_ms),
            waited_ms,
            mode: self.mode,
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

/// A place that nobody has and nobody gets: the lock-delay after a lease that ended without its
/// holder's word.
#[derive(Clone, Debug, PartialEq)]
pub struct Closed {
    /// Who had it.
    pub owner: Owner,
    /// With which token.
    pub token: Token,
    /// How the lease shared the lock.
    pub mode: Mode,
    /// How long the delay is in all.
    pub delay_ms: u64,
    /// When the lease was granted.
    pub granted_at_ms: u64,
    /// When the place opens.
    pub until_ms: u64,
}

impl Closed {
    /// The place after a lease that ends now; none where it has no delay.
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

    /// What those who may not have the lock are told.
    pub fn info(&self, now_ms: u64) -> HolderInfo {
        HolderInfo {
            owner: self.owner.clone(),
            token: self.token,
            held_ms: now_ms.saturating_sub(self.granted_at_ms),
            expires_in_ms: self.until_ms.saturating_sub(now_ms),
        }
    }
}

//! A lock at one moment, and how a request stands there. Everything here is without I/O.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Owner};

use super::keys::Keys;
use super::txn::Op;
use super::values::{self, HeldAt, Meta, RecordAt, WaiterAt};
use super::wire::{Header, KeyValue, RangeReply, TxnReply};
use crate::store::StoreError;

/// What is read of a lock in one step, for a request with one id.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) header: Header,
    /// The counter's key and the revision that wrote it.
    pub(super) meta: Option<(Meta, u64)>,
    pub(super) held: Option<HeldAt>,
    pub(super) record: RecordAt,
    /// The request's own place in the queue.
    pub(super) place: Option<WaiterAt>,
    /// Who is first in the queue.
    pub(super) first: Option<WaiterAt>,
    pub(super) queue_length: usize,
}

/// The steps that read a view.
pub(super) fn ops(keys: &Keys, lock: &LockName, lease_id: LeaseId) -> Vec<Op> {
    vec![
        Op::get(&keys.meta()),
        Op::get(&keys.holder(lock)),
        Op::get(&keys.record(lock)),
        Op::get(&keys.waiter(lock, lease_id)),
        Op::oldest(&keys.queue(lock), 1),
    ]
}

impl View {
    /// Reads the answer to [`ops`].
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where a value is not ours.
    pub(super) fn of(reply: TxnReply) -> Result<Self, StoreError> {
        let header = reply.header.clone();
        let mut ranges = reply.ranges();
        let mut next = || ranges.next().unwrap_or_default();
        let meta = first(&next(), |kv| Ok((values::read(kv)?, kv.mod_revision)))?;
        let held = first(&next(), values::held_at)?;
        let record = first(&next(), values::record_at)?.unwrap_or_default();
        let place = first(&next(), values::waiter_at)?;
        let queue = next();
        Ok(Self {
            header,
            meta,
            held,
            record,
            place,
            first: first(&queue, values::waiter_at)?,
            queue_length: usize::try_from(queue.count).unwrap_or(usize::MAX),
        })
    }
}

fn first<T>(
    range: &RangeReply,
    read: impl FnOnce(&KeyValue) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    range.kvs.first().map(read).transpose()
}

/// How a request stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Standing {
    /// Its lease is live.
    Yours,
    /// Its id is in use by somebody else.
    Conflict(Owner),
    /// Its id has ended.
    Ended(StoreError),
    /// Another lease is live.
    Held,
    /// Nobody holds the lock, and somebody waits who came before.
    Behind,
    /// It may be granted.
    Open,
}

impl View {
    /// How a request with this id and owner stands.
    pub(super) fn standing(&self, lease_id: LeaseId, owner: &Owner) -> Standing {
        let held = self.held.as_ref();
        if let Some(mine) = held.filter(|held| held.held.lease_id == lease_id) {
            return same_owner(owner, &mine.held.owner, Standing::Yours);
        }
        if let Some(lost) = self.ended(lease_id) {
            return Standing::Ended(lost);
        }
        if let Some(place) = &self.place
            && place.waiter.owner != *owner
        {
            return Standing::Conflict(place.waiter.owner.clone());
        }
        match &self.first {
            _ if held.is_some() => Standing::Held,
            Some(first) if first.waiter.lease_id != lease_id => Standing::Behind,
            _ => Standing::Open,
        }
    }

    /// How the id ended, where that is remembered; also where its lease was over by itself.
    pub(super) fn ended(&self, lease_id: LeaseId) -> Option<StoreError> {
        if let Some(ended) = self.record.record.ended(lease_id) {
            return Some(ended.lost());
        }
        let granted = self.record.record.granted.as_ref()?;
        let is_live = self.held.as_ref().is_some_and(|held| held.held.lease_id == lease_id);
        if granted.lease_id != lease_id || is_live {
            return None;
        }
        let settled = self.record.record.settled(granted.at_ms, "");
        settled.ended(lease_id).map(values::Ended::lost)
    }

    /// Why a lease that is not live is not.
    pub(super) fn gone(&self, lease_id: LeaseId) -> StoreError {
        self.ended(lease_id).unwrap_or_else(|| {
            let other = self.held.is_some();
            let reason = if other { EndReason::Superseded } else { EndReason::Expired };
            StoreError::Lost { reason, why: None }
        })
    }
}

fn same_owner(one: &Owner, other: &Owner, standing: Standing) -> Standing {
    if one == other { standing } else { Standing::Conflict(other.clone()) }
}

#[cfg(test)]
mod tests {
    use super::super::values::{Ending, Granted, Held, Waiter};
    use super::*;

    fn id(number: u8) -> LeaseId {
        format!("00000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
    }

    fn me() -> Owner {
        Owner::new("me").unwrap()
    }

    fn empty() -> View {
        View {
            header: Header::default(),
            meta: None,
            held: None,
            record: RecordAt::default(),
            place: None,
            first: None,
            queue_length: 0,
        }
    }

    fn held(number: u8) -> Option<HeldAt> {
        let held = Held {
            lease_id: id(number),
            owner: me(),
            ttl_ms: 1_000,
            offset: 0,
            granted_at_ms: 0,
            renewals: 0,
            keeper: String::new(),
            claimed: true,
            stamp: String::new(),
            record_lease: 1,
            metadata: None,
            incarnation: None,
            session: None,
        };
        Some(HeldAt { held, create_revision: 5, mod_revision: 5, lease: 2 })
    }

    fn waiter(number: u8) -> Option<WaiterAt> {
        let (lease_id, server) = (id(number), String::new());
        let waiter = Waiter { lease_id, owner: me(), since_ms: 0, server, session: None };
        Some(WaiterAt { waiter, create_revision: 6, mod_revision: 6 })
    }

    #[test]
    fn a_free_lock_is_the_first_waiters() {
        assert_eq!(empty().standing(id(1), &me()), Standing::Open);
        let queue = View { first: waiter(2), ..empty() };
        assert_eq!(queue.standing(id(1), &me()), Standing::Behind);
        assert_eq!(queue.standing(id(2), &me()), Standing::Open);
        let busy = View { held: held(3), first: waiter(2), ..empty() };
        assert_eq!(busy.standing(id(2), &me()), Standing::Held);
        assert_eq!(busy.standing(id(3), &me()), Standing::Yours);
    }

    #[test]
    fn an_id_is_its_owners() {
        let other = Owner::new("other").unwrap();
        let busy = View { held: held(3), ..empty() };
        assert_eq!(busy.standing(id(3), &other), Standing::Conflict(me()));
        let waits = View { place: waiter(2), first: waiter(2), ..empty() };
        assert_eq!(waits.standing(id(2), &other), Standing::Conflict(me()));
    }

    #[test]
    fn an_ended_id_stays_ended_also_where_nobody_wrote_the_end() {
        let granted = Granted {
            lease_id: id(1),
            owner: me(),
            offset: 0,
            at_ms: 0,
            session: None,
            token: None,
        };
        let record = values::Record::default().grant(granted, "");
        let mut view = View { record: values::filled(record, 5), ..empty() };
        let expired = StoreError::Lost { reason: EndReason::Expired, why: None };
        assert_eq!(view.standing(id(1), &me()), Standing::Ended(expired.clone()));
        // While it is live the same record says nothing of the kind.
        view.held = held(1);
        assert_eq!(view.standing(id(1), &me()), Standing::Yours);
        assert_eq!(view.gone(id(9)), StoreError::Lost { reason: EndReason::Superseded, why: None });
        view.held = None;
        assert_eq!(view.gone(id(9)), expired);
        let ending =
            Ending { reason: EndReason::Revoked, why: Some(me()), at_ms: 0, stamp: String::new() };
        view.record.record = view.record.record.end(id(1), &ending);
        let revoked = StoreError::Lost { reason: EndReason::Revoked, why: Some(me()) };
        assert_eq!(view.standing(id(1), &me()), Standing::Ended(revoked));
    }
}

//! A grant as it is going to be written.

use crate::store::Acquire;
use crate::store::etcd::EtcdStore;
use crate::store::etcd::counter::Known;
use crate::store::etcd::keys::Keys;
use crate::store::etcd::leases::Leases;
use crate::store::etcd::sessions::Terms;
use crate::store::etcd::txn::{Compare, On, Op, Txn};
use crate::store::etcd::values::{Granted, Held, Record, written};
use crate::store::etcd::view::{self, View};

/// A grant as it is going to be written.
pub(super) struct Draft {
    pub(super) held: Held,
    pub(super) leases: Leases,
    granted: Granted,
}

impl Draft {
    pub(super) fn new(
        store: &EtcdStore,
        request: &Acquire,
        terms: &Terms,
        known: &Known,
        leases: Leases,
        claimed: bool,
    ) -> Self {
        let at_ms = store.wall_ms();
        let (offset, owner) = (known.meta.offset, request.owner.clone());
        Self {
            held: Held {
                lease_id: request.lease_id,
                owner: owner.clone(),
                ttl_ms: terms.ttl_ms(request),
                offset,
                granted_at_ms: at_ms,
                renewals: 0,
                keeper: store.inner.server_id.clone(),
                claimed,
                stamp: service_kit::ids::random_hex(8),
                record_lease: leases.record,
                metadata: request.metadata.clone(),
                incarnation: request.incarnation.clone(),
                session: request.session,
            },
            leases,
            granted: Granted {
                lease_id: request.lease_id,
                owner,
                offset,
                at_ms,
                session: request.session,
                token: None,
            },
        }
    }

    /// The record after it.
    pub(super) fn record(&self, before: &Record) -> Record {
        before.grant(self.granted.clone(), &self.held.stamp)
    }

    /// The transaction.
    pub(super) fn txn(
        &self,
        keys: &Keys,
        request: &Acquire,
        terms: &Terms,
        view: &View,
        known: &Known,
    ) -> Txn {
        let lock = &request.lock;
        let (holder, record) = (keys.holder(lock), keys.record(lock));
        let (queue, place) = (keys.queue(lock), keys.waiter(lock, request.lease_id));
        let mut compare = Vec::from(known.compare(keys));
        compare.push(Compare::absent(&holder));
        compare.push(Compare::unchanged(&record, view.record.mod_revision));
        let mut success = vec![
            Op::put(&holder, &written(&self.held), On::Lease(self.leases.holder)),
            Op::put(
                &record,
                &written(&self.record(&view.record.record)),
                On::Lease(self.leases.record),
            ),
        ];
        match &view.place {
            Some(own) => {
                // The place is still there, the same one, and nobody has an earlier one.
                compare.push(Compare::created_by(&place, own.create_revision));
                compare.push(Compare::none_earlier_in(&queue, own.create_revision));
                success.push(Op::delete(&place));
            }
            None => compare.push(Compare::nothing_in(&queue)),
        }
        compare.extend(terms.compare());
        success.extend(terms.hold());
        Txn { compare, success, failure: view::ops(keys, lock, request.lease_id) }
    }
}

#[cfg(test)]
mod tests;

//! What may happen between the reading and the granting transaction, and that it is not granted then.

use fence_protocol::{LockName, Namespace, Owner, Ttl};

use super::*;
use crate::store::etcd::txn::model::{Keyspace, Row};
use crate::store::etcd::values::{Meta, RecordAt, Waiter, WaiterAt};
use crate::store::etcd::wire::Header;

const META_AT: u64 = 10;
const RECORD_AT: u64 = 20;
const PLACE_AT: u64 = 30;

struct Case {
    keys: Keys,
    request: Acquire,
    view: View,
    /// etcd as it was read.
    keyspace: Keyspace,
}

fn row((created, written): (u64, u64)) -> Row {
    Row { created, written, value: String::new() }
}

/// The counter as it was verified.
fn known() -> Known {
    let nonce = "once".to_owned();
    let meta = Meta { format: 1, offset: 0, cluster_id: 1, raft_index: 1, fresh: false, nonce };
    Known { value: written(&meta), meta, mod_revision: META_AT }
}

fn id(number: u8) -> fence_protocol::LeaseId {
    format!("00000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

impl Case {
    fn new(is_waiting: bool) -> Self {
        let (keys, lock) = (Keys::new(&Namespace::default()), LockName::new("a").unwrap());
        let owner = Owner::new("me").unwrap();
        let request = Acquire::new(lock, id(1), owner.clone(), Ttl::from_ms(1_000).unwrap());
        let mut keyspace = Keyspace::from([
            (keys.meta(), Row { value: known().value, ..row((1, META_AT)) }),
            (keys.record(&request.lock), row((2, RECORD_AT))),
        ]);
        let place = is_waiting.then(|| {
            keyspace.insert(keys.waiter(&request.lock, id(1)), row((PLACE_AT, PLACE_AT)));
            let server = String::new();
            let waiter = Waiter { lease_id: id(1), owner, since_ms: 0, server, session: None };
            WaiterAt { waiter, create_revision: PLACE_AT, mod_revision: PLACE_AT }
        });
        let view = View {
            header: Header::default(),
            meta: None,
            held: None,
            record: RecordAt { mod_revision: RECORD_AT, ..RecordAt::default() },
            first: place.clone(),
            queue_length: usize::from(is_waiting),
            place,
        };
        Self { keys, request, view, keyspace }
    }

    fn is_granted(&self) -> bool {
        let (lease_id, owner) = (self.request.lease_id, self.request.owner.clone());
        let draft = Draft {
            held: Held {
                lease_id,
                owner: owner.clone(),
                ttl_ms: 1_000,
                offset: 0,
                granted_at_ms: 0,
                renewals: 0,
                keeper: String::new(),
                claimed: true,
                stamp: String::new(),
                record_lease: 2,
                metadata: None,
                incarnation: None,
                session: None,
            },
            leases: Leases { holder: 1, record: 2, until_ms: 0 },
            granted: Granted { lease_id, owner, offset: 0, at_ms: 0, session: None, token: None },
        };
        let terms = Terms::default();
        let txn = draft.txn(&self.keys, &self.request, &terms, &self.view, &known());
        txn.succeeds(&self.keyspace)
    }

    fn write(mut self, key: impl Fn(&Keys, &LockName) -> String, at: (u64, u64)) -> Self {
        self.keyspace.insert(key(&self.keys, &self.request.lock), row(at));
        self
    }

    fn delete(mut self, key: impl Fn(&Keys, &LockName) -> String) -> Self {
        self.keyspace.remove(&key(&self.keys, &self.request.lock));
        self
    }
}

#[test]
fn a_lock_that_is_as_it_was_read_is_granted() {
    assert!(Case::new(false).is_granted());
    assert!(Case::new(true).is_granted());
    // Others behind the first waiter change nothing for it, and other locks nothing for anybody.
    let behind = |keys: &Keys, lock: &LockName| keys.waiter(lock, id(2));
    assert!(Case::new(true).write(behind, (40, 40)).is_granted());
    let other = |keys: &Keys, _: &LockName| keys.waiter(&LockName::new("a/b").unwrap(), id(2));
    assert!(Case::new(false).write(other, (5, 5)).is_granted());
}

#[test]
fn whatever_changed_meanwhile_refuses_the_grant() {
    for is_waiting in [false, true] {
        let case = || Case::new(is_waiting);
        let lifted = case().write(|keys, _| keys.meta(), (1, 50));
        assert!(!lifted.is_granted(), "with an offset that is not in force");
        let lost = case().delete(|keys, _| keys.meta());
        assert!(!lost.is_granted(), "without a counter");
        let put_back = case().write(|keys, _| keys.meta(), (1, META_AT));
        assert!(
            !put_back.is_granted(),
            "with a counter that the same revision wrote in another life"
        );
        let held = case().write(|keys, lock| keys.holder(lock), (50, 50));
        assert!(!held.is_granted(), "beside a holder");
        let ended = case().write(|keys, lock| keys.record(lock), (2, 50));
        assert!(!ended.is_granted(), "to an id that may have ended");
        let forgotten = case().delete(|keys, lock| keys.record(lock));
        assert!(!forgotten.is_granted(), "with a record that is gone");
    }
}

#[test]
fn a_newcomer_overtakes_nobody() {
    let waiter = |keys: &Keys, lock: &LockName| keys.waiter(lock, id(2));
    assert!(!Case::new(false).write(waiter, (50, 50)).is_granted());
}

#[test]
fn a_waiter_is_granted_in_its_own_place_alone() {
    let own = |keys: &Keys, lock: &LockName| keys.waiter(lock, id(1));
    let other = |keys: &Keys, lock: &LockName| keys.waiter(lock, id(2));
    assert!(!Case::new(true).delete(own).is_granted(), "its etcd lease is gone");
    let behind = Case::new(true).delete(own).write(other, (40, 40));
    assert!(!behind.is_granted(), "its etcd lease is gone, and others wait");
    let anew = Case::new(true).write(own, (60, 60)).write(other, (40, 40));
    assert!(!anew.is_granted(), "it went, and came again behind another");
    assert!(!Case::new(true).write(other, (29, 29)).is_granted(), "somebody was before it");
}

use fence_protocol::Owner;

use super::*;
use crate::store::etcd::values::Held;

const CLUSTER: u64 = 7;
const READ_AT: u64 = 100;

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn id() -> LeaseId {
    "00000000-0000-4000-8000-000000000001".parse().unwrap()
}

fn read_at() -> Header {
    Header { cluster_id: CLUSTER, revision: READ_AT, ..Header::default() }
}

fn created_by(create_revision: u64) -> HeldAt {
    let held = Held {
        lease_id: id(),
        owner: Owner::new("me").unwrap(),
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
    HeldAt { held, create_revision, mod_revision: create_revision, lease: 2 }
}

fn is_doubted(unjudged: &Unjudged, revision: u64) -> bool {
    unjudged.doubt_of(&lock(), &created_by(revision), CLUSTER, 5).is_some()
}

#[test]
fn a_grant_on_its_way_is_judged_by_whoever_finds_it() {
    let unjudged = Unjudged::default();
    assert!(!is_doubted(&unjudged, READ_AT), "nothing is on its way");
    unjudged.send(&lock(), id(), &read_at(), 0);
    assert!(!is_doubted(&unjudged, READ_AT + 1));
    assert!(is_doubted(&unjudged, READ_AT), "a writing has a revision of its own");
    assert!(unjudged.doubt_of(&lock(), &created_by(READ_AT + 1), CLUSTER + 1, 5).is_some());
    unjudged.judged(&lock(), id(), 0);
    assert!(!is_doubted(&unjudged, READ_AT));
}

#[test]
fn a_doubt_stays_until_the_grant_is_taken_back() {
    let unjudged = Unjudged::default();
    unjudged.send(&lock(), id(), &read_at(), 0);
    let doubt = Doubt::Below { next: 5, seen: 9 };
    unjudged.doubt(&lock(), id(), READ_AT + 1, doubt);
    unjudged.judged(&lock(), id(), 0);
    assert!(is_doubted(&unjudged, READ_AT + 1));
    assert!(!is_doubted(&unjudged, READ_AT + 2), "another grant of the same id");
    unjudged.taken_back(&lock(), id(), 0);
    assert!(!is_doubted(&unjudged, READ_AT + 1));
}

#[test]
fn what_became_of_it_is_open_for_as_long_as_it_may_live() {
    let unjudged = Unjudged::default();
    unjudged.send(&lock(), id(), &read_at(), 0);
    unjudged.left_open(&lock(), id(), 50, 0);
    let doubt_at =
        |now_ms| unjudged.doubt_of(&lock(), &created_by(READ_AT), CLUSTER, now_ms).is_some();
    assert!(doubt_at(49));
    assert!(!doubt_at(50));
}

/// Two of one id: the one that knew less does not make the other's grant a doubt.
#[test]
fn the_earliest_of_several_decides() {
    let unjudged = Unjudged::default();
    unjudged.send(&lock(), id(), &read_at(), 0);
    let later = Header { revision: READ_AT + 10, ..read_at() };
    unjudged.send(&lock(), id(), &later, 0);
    assert!(!is_doubted(&unjudged, READ_AT + 5));
    unjudged.judged(&lock(), id(), 0);
    assert!(is_doubted(&unjudged, READ_AT), "one is on its way yet");
}

//! Lock-delay: a lock stays closed after a lease that ended without a release.

use fence_protocol::SessionId;
use fence_protocol::wire::lock::LockState;

use super::kinds::permit;
use super::*;
use crate::Reading;
use crate::{Kind, ListQuery, NewSession, Revoke};

fn delayed(request: Acquire, lock_delay_ms: u64) -> Acquire {
    Acquire { lock_delay_ms, ..request }
}

#[test]
fn an_expired_lease_leaves_the_lock_closed_for_a_while() {
    let mut machine = machine();
    let first = granted(machine.acquire(0, delayed(request("a", 1, 0), 40)));
    assert_eq!(machine.acquire(1, request("a", 2, 500)), Reply::Queued);
    machine.tick(100);
    let shown = machine.show(110, &lock("a"));
    assert_eq!((shown.state, shown.delayed_ms), (LockState::Delayed, Some(30)));
    assert_eq!((shown.lease_count, shown.holder), (0, None));
    assert_eq!(shown.history[0].reason, EndReason::Expired, "remembered as always");
    let gone = machine.renew(110, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(gone, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true });
    let held = refused(machine.acquire(110, request("a", 3, 0)));
    assert!(matches!(
        &held,
        StoreError::Held { holder, queue_length: 1 }
            if (holder.token, holder.expires_in_ms) == (first.token, 30)
    ));
    let query = ListQuery { prefix: String::new(), after: None, limit: 9, owner: None };
    let line = machine.list(110, &query).locks.remove(0);
    assert_eq!(line.lease_count, 0);
    assert_eq!(line.holder.unwrap().expires_in_ms, 30, "listed with its rest");
    assert_eq!(machine.take_deliveries(), []);
    assert_eq!(machine.next_alarm_ms(), Some(140));
    machine.tick(140);
    let delivery = machine.take_deliveries().remove(0);
    assert_eq!((delivery.lease_id, delivery.result.unwrap().waited_ms), (id(2), 139));
    assert_eq!(machine.show(140, &lock("a")).history.len(), 1, "a delay is no lease");
}

#[test]
fn only_an_end_without_a_release_is_followed_by_a_delay() {
    for end in ["released", "revoked", "superseded", "rolled back"] {
        let mut machine = machine();
        if end == "rolled back" {
            granted(machine.acquire(0, request("a", 9, 0)));
            assert_eq!(machine.acquire(0, delayed(request("a", 1, 50), 40)), Reply::Queued);
            machine.release(0, &lock("a"), id(9)).unwrap();
        } else {
            granted(machine.acquire(0, delayed(request("a", 1, 0), 40)));
        }
        match end {
            "released" => drop(machine.release(1, &lock("a"), id(1)).unwrap()),
            "revoked" => drop(machine.revoke(1, &lock("a"), &Revoke::default()).unwrap()),
            "rolled back" => machine.withdraw(1, &lock("a"), id(1)),
            _ => {
                let owner = Owner::new("worker-1").unwrap();
                let takeover = Takeover::Of(id(1));
                granted(machine.acquire(1, Acquire { owner, takeover, ..request("a", 2, 0) }));
                machine.release(1, &lock("a"), id(2)).unwrap();
            }
        }
        assert_eq!(machine.show(1, &lock("a")).state, LockState::Free, "{end}");
        granted(machine.acquire(1, request("a", 3, 0)));
    }
}

#[test]
fn the_leases_of_an_ended_session_leave_their_locks_closed() {
    let mut machine = machine();
    let session_id = SessionId::new(uuid_of(900)).unwrap();
    let owner = Owner::new("worker").unwrap();
    let ttl = Ttl::from_ms(100).unwrap();
    let new = NewSession { session_id, owner: owner.clone(), ttl, metadata: None, principal: None };
    machine.create_session(0, new).unwrap();
    let bound = Acquire { owner, session: Some(session_id), ..request("a", 1, 0) };
    granted(machine.acquire(0, delayed(bound, 40)));
    machine.end_session(10, session_id).unwrap();
    assert_eq!(machine.show(10, &lock("a")).delayed_ms, Some(40));
    machine.tick(50);
    granted(machine.acquire(50, request("a", 2, 0)));
}

/// A permit in lock-delay counts, and keeps the kind; the others are granted.
#[test]
fn a_closed_permit_counts_as_one() {
    let mut machine = machine();
    granted(machine.acquire(0, delayed(permit("a", 1, 2, 0), 40)));
    machine.tick(100);
    granted(machine.acquire(100, permit("a", 2, 2, 0)));
    let shown = machine.show(100, &lock("a"));
    assert_eq!((shown.state, shown.lease_count), (LockState::Held, 1));
    assert_eq!((shown.delayed_ms, shown.size), (Some(40), Some(2)));
    let held = refused(machine.acquire(100, permit("a", 3, 2, 0)));
    assert!(matches!(&held, StoreError::Held { holder, .. } if holder.expires_in_ms == 40));
    machine.release(110, &lock("a"), id(2)).unwrap();
    let other = refused(machine.acquire(110, request("a", 4, 0)));
    assert_eq!(other, StoreError::OtherKind(Kind::Semaphore { size: 2 }));
}

#[test]
fn a_revocation_opens_what_is_closed() {
    let mut machine = machine();
    granted(machine.acquire(0, delayed(request("a", 1, 0), 40)));
    machine.tick(100);
    let one = Revoke { lease: Some(id(1)), reason: None };
    let lost = machine.revoke(101, &lock("a"), &one).unwrap_err();
    assert_eq!(lost, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true });
    assert_eq!(machine.acquire(102, request("a", 2, 50)), Reply::Queued);
    let opened = machine.revoke(103, &lock("a"), &Revoke::default());
    assert_eq!(opened, Ok(Vec::new()), "nothing was live, and something was closed");
    assert_eq!(machine.take_deliveries()[0].lease_id, id(2));
}

/// The length of the outage is unknown.
#[test]
fn a_restart_gives_a_delay_its_full_time_again() {
    let mut before = machine();
    granted(before.acquire(0, delayed(request("a", 1, 0), 40)));
    before.tick(100);
    before.tick(130);
    let stored = before.take_changes().remove(0).1.unwrap().to_stored(u64::MAX);
    let mut after = machine();
    after.restore(
        1_000,
        lock("a"),
        Record::from_stored(stored, Reading::Restart { now_ms: 1_000 }).unwrap(),
    );
    assert_eq!(after.counter(), before.counter());
    assert_eq!(after.show(1_001, &lock("a")).delayed_ms, Some(39));
    after.tick(1_040);
    granted(after.acquire(1_040, request("a", 2, 0)));
}

//! Several holders of one lock.

use fence_protocol::wire::lock::LockState;

use super::*;
use crate::Reading;
use crate::Session;
use crate::{Kind, Mode, NewSession, Revoke};

pub(super) fn shared(name: &str, number: u128, wait_ms: u64) -> Acquire {
    Acquire { mode: Mode::Shared, ..request(name, number, wait_ms) }
}

pub(super) fn permit(name: &str, number: u128, size: u32, wait_ms: u64) -> Acquire {
    Acquire { mode: Mode::Permit { size }, ..request(name, number, wait_ms) }
}

fn delivered(machine: &mut Machine) -> Vec<LeaseId> {
    let granted = |d: Delivery| d.result.is_ok().then_some(d.lease_id);
    machine.take_deliveries().into_iter().filter_map(granted).collect()
}

#[test]
fn shared_leases_live_beside_each_other_with_a_token_each() {
    let mut machine = machine();
    let first = granted(machine.acquire(0, shared("a", 1, 0)));
    let second = granted(machine.acquire(10, shared("a", 2, 0)));
    assert!(second.token > first.token);
    assert_eq!((first.mode, second.mode), (Mode::Shared, Mode::Shared));
    let held = refused(machine.acquire(20, request("a", 3, 0)));
    assert!(
        matches!(&held, StoreError::Held { holder, .. } if holder.token == first.token),
        "the one that expires first: {held:?}"
    );
    machine.renew(30, &lock("a"), id(1), None).unwrap();
    let held = refused(machine.acquire(30, request("a", 3, 0)));
    assert!(matches!(&held, StoreError::Held { holder, .. } if holder.token == second.token));
    let shown = machine.show(30, &lock("a"));
    assert_eq!((shown.lease_count, shown.holder.unwrap().lease_id), (2, id(1)));
    assert_eq!(shown.also_held[0].lease_id, id(2));
    machine.tick(110);
    assert_eq!(machine.show(110, &lock("a")).holder.unwrap().lease_id, id(1), "each by itself");
    machine.release(111, &lock("a"), id(1)).unwrap();
    granted(machine.acquire(112, request("a", 4, 0)));
}

/// Readers that arrive while a writer waits do not starve it.
#[test]
fn a_waiting_writer_is_not_starved() {
    let mut machine = machine();
    granted(machine.acquire(0, shared("a", 1, 0)));
    assert_eq!(machine.acquire(1, request("a", 2, 500)), Reply::Queued);
    assert!(matches!(refused(machine.acquire(2, shared("a", 3, 0))), StoreError::Held { .. }));
    assert_eq!(machine.acquire(3, shared("a", 4, 500)), Reply::Queued);
    assert_eq!(machine.acquire(3, shared("a", 5, 500)), Reply::Queued);
    machine.release(4, &lock("a"), id(1)).unwrap();
    assert_eq!(delivered(&mut machine), [id(2)]);
    machine.release(5, &lock("a"), id(2)).unwrap();
    assert_eq!(delivered(&mut machine), [id(4), id(5)], "a run of readers, together");
}

/// The readers behind a writer that times out share the lock with its holders.
#[test]
fn readers_get_in_when_the_writer_before_them_leaves() {
    for leaves in ["patience", "withdrawn", "released"] {
        let mut machine = machine();
        granted(
            machine.acquire(0, Acquire { ttl: Ttl::from_ms(900).unwrap(), ..shared("a", 1, 0) }),
        );
        assert_eq!(machine.acquire(1, request("a", 2, 50)), Reply::Queued);
        assert_eq!(machine.acquire(2, shared("a", 3, 500)), Reply::Queued);
        match leaves {
            "patience" => machine.tick(51),
            "withdrawn" => machine.withdraw(3, &lock("a"), id(2)),
            _ => drop(machine.release(3, &lock("a"), id(2))),
        }
        assert_eq!(delivered(&mut machine), [id(3)], "{leaves}");
    }
}

#[test]
fn shared_leases_are_bounded() {
    let mut machine = Machine::new(0, Limits { shared_per_lock: 2, ..Limits::default() });
    granted(machine.acquire(0, shared("a", 1, 0)));
    granted(machine.acquire(0, shared("a", 2, 0)));
    assert!(matches!(refused(machine.acquire(0, shared("a", 3, 0))), StoreError::Held { .. }));
    assert_eq!(machine.acquire(0, shared("a", 3, 50)), Reply::Queued);
    machine.release(1, &lock("a"), id(2)).unwrap();
    assert_eq!(delivered(&mut machine), [id(3)]);
}

#[test]
fn a_semaphore_has_so_many_permits() {
    let mut machine = machine();
    let tokens: Vec<_> =
        (1..=3).map(|n| granted(machine.acquire(0, permit("a", n, 3, 0))).token).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(matches!(refused(machine.acquire(0, permit("a", 4, 3, 0))), StoreError::Held { .. }));
    assert_eq!(machine.acquire(0, permit("a", 4, 3, 50)), Reply::Queued);
    assert_eq!(machine.show(0, &lock("a")).size, Some(3));
    machine.release(1, &lock("a"), id(2)).unwrap();
    assert_eq!(delivered(&mut machine), [id(4)]);
    let held: Vec<_> = machine.show(1, &lock("a")).also_held.iter().map(|h| h.lease_id).collect();
    assert_eq!(held, [id(3), id(4)], "in the order of the grants");
}

#[test]
fn a_lock_is_of_one_kind_while_it_is_in_use() {
    let mut machine = machine();
    granted(machine.acquire(0, permit("a", 1, 2, 0)));
    let kind = StoreError::OtherKind(Kind::Semaphore { size: 2 });
    for other in [request("a", 2, 50), shared("a", 2, 50), permit("a", 2, 3, 50)] {
        assert_eq!(refused(machine.acquire(1, other)), kind);
    }
    let repeat = Acquire { mode: Mode::Exclusive, ..request("a", 1, 0) };
    assert_eq!(granted(machine.acquire(1, repeat)).mode, Mode::Permit { size: 2 }, "a known id");
    machine.release(2, &lock("a"), id(1)).unwrap();
    granted(machine.acquire(3, request("a", 3, 0)));
    assert_eq!(
        refused(machine.acquire(3, permit("a", 4, 2, 0))),
        StoreError::OtherKind(Kind::Lock)
    );
}

/// Two permits of one session: the end of one leaves the other bound.
#[test]
fn a_session_may_hold_one_lock_several_times() {
    let mut machine = machine();
    let session_id = fence_protocol::SessionId::new(uuid_of(900)).unwrap();
    let owner = Owner::new("worker").unwrap();
    let ttl = Ttl::from_ms(200).unwrap();
    let new = NewSession { session_id, owner: owner.clone(), ttl, metadata: None, principal: None };
    machine.create_session(0, new).unwrap();
    for number in 1..=3 {
        let bound = Acquire { session: Some(session_id), ..permit("a", number, 3, 0) };
        granted(machine.acquire(0, Acquire { owner: owner.clone(), ..bound }));
    }
    machine.release(1, &lock("a"), id(2)).unwrap();
    assert_eq!(machine.show_session(1, session_id).unwrap().lease_count, 2);
    // A restart binds them again.
    let record = machine.take_changes().remove(0).1.unwrap().to_stored(u64::MAX);
    let stored = machine.take_session_changes().remove(0).1.unwrap().to_stored();
    let mut after = self::machine();
    after.restore_session(session_id, Session::from_stored(stored, Reading::Restart { now_ms: 0 }));
    after.restore(
        0,
        lock("a"),
        Record::from_stored(record, Reading::Restart { now_ms: 0 }).unwrap(),
    );
    for machine in [&mut machine, &mut after] {
        assert_eq!(machine.show_session(1, session_id).unwrap().lease_count, 2);
        machine.end_session(2, session_id).unwrap();
        assert_eq!(machine.show(2, &lock("a")).lease_count, 0);
    }
}

/// Takeover applies only to exclusive leases.
#[test]
fn what_is_shared_is_not_taken_over() {
    let mut machine = machine();
    granted(machine.acquire(0, shared("a", 1, 0)));
    let owner = Owner::new("worker-1").unwrap();
    let wish = Acquire { owner, takeover: Takeover::Of(id(1)), ..request("a", 2, 0) };
    assert!(matches!(refused(machine.acquire(1, wish)), StoreError::Held { .. }));
    assert_eq!(machine.show(1, &lock("a")).holder.unwrap().lease_id, id(1));
}

#[test]
fn a_revocation_ends_one_lease_or_all_and_says_why() {
    let mut machine = machine();
    for number in 1..=3 {
        granted(machine.acquire(0, shared("a", number, 0)));
    }
    let reason = Owner::new("maintenance").ok();
    let one = Revoke { lease: Some(id(2)), reason: reason.clone() };
    let ended = machine.revoke(1, &lock("a"), &one).unwrap();
    assert_eq!((ended.len(), ended[0].lease_id, ended[0].reason), (1, id(2), EndReason::Revoked));
    let lost = StoreError::Lost { reason: EndReason::Revoked, why: reason.clone(), is_known: true };
    assert_eq!(machine.renew(1, &lock("a"), id(2), None).unwrap_err(), lost);
    assert_eq!(machine.release(1, &lock("a"), id(2)).unwrap_err(), lost);
    assert_eq!(refused(machine.acquire(1, shared("a", 2, 0))), lost);
    assert_eq!(machine.revoke(1, &lock("a"), &one).unwrap_err(), lost, "not live any more");
    assert_eq!(machine.show(1, &lock("a")).history[0].why, reason);
    assert_eq!(machine.acquire(1, request("a", 4, 50)), Reply::Queued);
    let all = machine.revoke(2, &lock("a"), &Revoke::default()).unwrap();
    assert_eq!(all.iter().map(|ended| ended.lease_id).collect::<Vec<_>>(), [id(1), id(3)]);
    assert_eq!(delivered(&mut machine), [id(4)]);
    assert_eq!(machine.revoke(2, &lock("b"), &Revoke::default()), Err(StoreError::NotHeld));
    // The reason outlasts a restart.
    let record = machine.take_changes().remove(0).1.unwrap().to_stored(u64::MAX);
    let mut after = self::machine();
    after.restore(
        0,
        lock("a"),
        Record::from_stored(record, Reading::Restart { now_ms: 0 }).unwrap(),
    );
    assert_eq!(after.renew(1, &lock("a"), id(2), None).unwrap_err(), lost);
}

#[test]
fn a_minted_token_has_no_lease_and_is_above_all_before() {
    let mut machine = machine();
    let before = granted(machine.acquire(0, request("a", 1, 0))).token;
    let minted = machine.mint().unwrap();
    let after = granted(machine.acquire(0, request("b", 2, 0))).token;
    assert!(before < minted && minted < after);
    let mut last = Machine::new(Token::MAX, Limits::default());
    assert_eq!(last.mint(), Err(StoreError::Exhausted));
    assert_eq!(machine.show(0, &lock("c")).state, LockState::Free);
}

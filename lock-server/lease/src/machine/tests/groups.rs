//! Several locks in one request.

use fence_protocol::SessionId;
use fence_protocol::wire::lock::LockState;

use super::kinds::permit;
use super::*;
use crate::{Kind, Mode, NewSession, NoSession, SessionRefusal};

fn all(names: &[&str], number: u128, wait_ms: u64) -> Vec<Acquire> {
    names.iter().map(|name| request(name, number, wait_ms)).collect()
}

fn granted_all(reply: Reply<Vec<Grant>>) -> Vec<u64> {
    match reply {
        Reply::Done(Ok(grants)) => grants.iter().map(|grant| grant.token.get()).collect(),
        other => panic!("not granted: {other:?}"),
    }
}

/// Returns the lock that refused, and its refusal.
fn refused_part(reply: Reply<Vec<Grant>>) -> (LockName, StoreError) {
    match reply {
        Reply::Done(Err(StoreError::Part { lock, refusal })) => (lock, *refusal),
        other => panic!("no part is refused: {other:?}"),
    }
}

fn holders(machine: &mut Machine, names: &[&str]) -> Vec<Option<LeaseId>> {
    let mut holder = |name: &&str| machine.show(0, &lock(name)).holder.map(|h| h.lease_id);
    names.iter().map(&mut holder).collect()
}

fn queues(machine: &Machine, names: &[&str]) -> Vec<usize> {
    let length = |name: &&str| machine.records.get(&lock(name)).map_or(0, |r| r.queue.len());
    names.iter().map(length).collect()
}

#[test]
fn all_are_granted_in_one_step_with_rising_tokens() {
    let mut machine = machine();
    let mut parts = all(&["c", "a", "b"], 1, 0);
    parts[1].min_token = Some(Token::new(10).unwrap());
    let tokens = granted_all(machine.acquire_all(0, parts.clone()));
    assert_eq!(tokens, [1, 11, 12], "in the order of the request");
    assert_eq!(granted_all(machine.acquire_all(1, parts)), tokens, "a repeat");
    machine.release(2, &lock("a"), id(1)).unwrap();
    assert_eq!(holders(&mut machine, &["a", "b", "c"]), [None, Some(id(1)), Some(id(1))]);
}

#[test]
fn one_lock_that_is_taken_refuses_all() {
    let mut machine = machine();
    granted(machine.acquire(0, request("b", 1, 0)));
    granted(machine.acquire(0, permit("s", 2, 3, 0)));
    let (on, why) = refused_part(machine.acquire_all(0, all(&["a", "b"], 3, 0)));
    assert_eq!(on, lock("b"));
    assert!(matches!(why, StoreError::Held { queue_length: 0, .. }), "{why:?}");
    let (on, why) = refused_part(machine.acquire_all(0, all(&["a", "s"], 3, 50)));
    assert_eq!((on, why), (lock("s"), StoreError::OtherKind(Kind::Semaphore { size: 3 })));
    let mut parts = all(&["a", "c"], 3, 0);
    parts[1].min_token = Token::new(Token::MAX).ok();
    let (on, why) = refused_part(machine.acquire_all(0, parts));
    assert_eq!((on, why), (lock("c"), StoreError::Exhausted));
    assert_eq!((machine.counter(), machine.waiters), (2, 0), "nothing was changed");
    assert_eq!(machine.show(0, &lock("a")), Record::default().reply(&lock("a"), 0));
}

/// A lock that is named twice, and too many of them, are refused whole.
#[test]
fn a_request_is_well_formed() {
    let mut machine = machine();
    let (on, _) = refused_part(machine.acquire_all(0, all(&["a", "b", "a"], 1, 50)));
    assert_eq!(on, lock("a"));
    let names: Vec<String> = (0..65).map(|n| format!("l{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = machine.acquire_all(0, all(&names, 1, 50));
    assert!(matches!(many, Reply::Done(Err(StoreError::Limit { limit: 64, .. }))), "{many:?}");
    assert_eq!(granted_all(machine.acquire_all(0, Vec::new())), [0_u64; 0]);
    assert!(machine.records.is_empty());
}

/// A group holds nothing while it waits, has an entry in every queue, and gets all in the
/// transition of the last.
#[test]
fn a_group_that_waits_has_a_place_in_every_queue() {
    let mut machine = machine();
    granted(machine.acquire(0, request("b", 1, 0)));
    granted(machine.acquire(0, request("c", 2, 0)));
    assert_eq!(machine.acquire_all(1, all(&["a", "b", "c"], 3, 500)), Reply::Queued);
    assert_eq!(queues(&machine, &["a", "b", "c"]), [1, 1, 1]);
    let shown = machine.show(1, &lock("a"));
    assert_eq!((shown.state, shown.queue_length), (LockState::Free, 1), "kept by its order alone");
    // The lease that it waits for is of another lock, which the caller may not be allowed to read.
    let kept = refused(machine.acquire(2, request("a", 4, 0)));
    assert_eq!(kept, StoreError::Kept { queue_length: 1 });
    assert_eq!(machine.acquire(2, request("a", 4, 500)), Reply::Queued);
    machine.release(3, &lock("b"), id(1)).unwrap();
    assert_eq!(machine.take_deliveries(), []);
    machine.release(4, &lock("c"), id(2)).unwrap();
    let delivery = machine.take_deliveries().remove(0);
    assert_eq!(delivery.locks(), [lock("a"), lock("b"), lock("c")]);
    let tokens = delivery.others.iter().map(|(_, grant)| grant.token.get());
    assert_eq!((delivery.result.unwrap().token.get(), tokens.collect::<Vec<_>>()), (3, vec![4, 5]));
    assert_eq!(queues(&machine, &["a", "b", "c"]), [1, 0, 0]);
    machine.release(5, &lock("a"), id(3)).unwrap();
    assert_eq!(machine.take_deliveries()[0].lease_id, id(4), "each lease is its own from then on");
}

/// The dining philosophers: each requests two of three at the same time, and each gets both.
#[test]
fn groups_that_overlap_do_not_wait_in_a_circle() {
    let mut machine = machine();
    for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
        granted(machine.acquire(0, request(name, number, 0)));
    }
    let wishes = [["a", "b"], ["b", "c"], ["c", "a"]];
    for (number, wish) in (4..).zip(wishes) {
        assert_eq!(machine.acquire_all(1, all(&wish, number, 5_000)), Reply::Queued);
    }
    for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
        machine.release(2, &lock(name), id(number)).unwrap();
    }
    for (number, wish) in (4..).zip(wishes) {
        let delivery = machine.take_deliveries().remove(0);
        assert_eq!((delivery.lease_id, delivery.result.is_ok()), (id(number), true));
        for name in wish {
            machine.release(3, &lock(name), id(number)).unwrap();
        }
    }
    assert_eq!((machine.waiters, machine.groups.len()), (0, 0));
}

#[test]
fn a_request_without_a_place_does_not_wait() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.let_wait(3);
    assert_eq!(machine.acquire(0, request("a", 2, 50)), Reply::Queued);
    let group = || ["a", "b"].map(|name| request(name, 3, 50)).to_vec();
    assert_eq!(machine.acquire_all(0, group()), Reply::Queued);
    // A retry holds a connection of its own.
    assert_eq!(machine.acquire_all(0, group()), Reply::Queued);
    let limit = StoreError::Limit { what: Limits::WAITING, limit: 9_000 };
    assert_eq!(refused(machine.acquire(0, request("a", 4, 50))), limit);
    let other = ["a", "b"].map(|name| request(name, 5, 50)).to_vec();
    let Reply::Done(Err(StoreError::Part { refusal, .. })) = machine.acquire_all(0, other) else {
        panic!("a group waits without a place")
    };
    assert_eq!(*refusal, limit);
    assert_eq!(machine.places_taken(), 3);
    granted(machine.acquire(0, request("c", 6, 50)));
}

/// However a group leaves, it leaves every queue, and the waiters behind it are served.
#[test]
fn a_group_leaves_every_queue_at_once() {
    for leaves in ["patience", "withdrawn", "released"] {
        let mut machine = machine();
        granted(
            machine.acquire(0, Acquire { ttl: Ttl::from_ms(900).unwrap(), ..request("b", 1, 0) }),
        );
        assert_eq!(machine.acquire_all(1, all(&["a", "b", "c"], 2, 50)), Reply::Queued);
        assert_eq!(machine.acquire(2, request("a", 3, 500)), Reply::Queued);
        assert_eq!(machine.acquire(2, request("c", 4, 500)), Reply::Queued);
        match leaves {
            "patience" => machine.tick(51),
            "withdrawn" => machine.withdraw_all(3, &[lock("c"), lock("a"), lock("b")], id(2)),
            _ => drop(machine.release(3, &lock("c"), id(2)).unwrap_err()),
        }
        assert_eq!(queues(&machine, &["a", "b", "c"]), [0, 0, 0], "{leaves}");
        assert_eq!((machine.waiters, machine.groups.len()), (0, 0), "{leaves}");
        let (granted, refused): (Vec<_>, Vec<_>) =
            machine.take_deliveries().into_iter().partition(|delivery| delivery.result.is_ok());
        let mut granted: Vec<_> = granted.iter().map(|delivery| delivery.lease_id).collect();
        granted.sort();
        assert_eq!(granted, [id(3), id(4)], "{leaves}");
        let refused: Vec<_> =
            refused.into_iter().map(|d| (d.lock, d.result.unwrap_err())).collect();
        match (leaves, &refused[..]) {
            ("withdrawn", []) => {}
            ("patience", [(first, StoreError::Part { lock: on, refusal })]) => {
                assert_eq!((first, on), (&lock("a"), &lock("b")));
                assert!(matches!(**refusal, StoreError::Held { queue_length: 0, .. }));
            }
            ("released", [(first, StoreError::Part { refusal, .. })]) => {
                assert_eq!(first, &lock("a"));
                assert!(matches!(**refusal, StoreError::Lost { .. }));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_repeat_keeps_the_places_of_a_group_with_new_patience() {
    let mut machine = machine();
    granted(machine.acquire(0, Acquire { ttl: Ttl::from_ms(900).unwrap(), ..request("b", 1, 0) }));
    assert_eq!(machine.acquire_all(1, all(&["a", "b"], 2, 50)), Reply::Queued);
    assert_eq!(machine.acquire(2, request("a", 3, 500)), Reply::Queued);
    assert_eq!(machine.acquire_all(3, all(&["a", "b"], 2, 400)), Reply::Queued);
    machine.tick(60);
    assert_eq!((machine.take_deliveries(), machine.waiters), (Vec::new(), 3));
    // The id belongs to that request: neither one lock of it nor others may be requested with it.
    let single = refused(machine.acquire(61, request("a", 2, 500)));
    assert!(matches!(single, StoreError::IdConflict { .. }), "{single:?}");
    let (on, why) = refused_part(machine.acquire_all(61, all(&["b", "c"], 2, 500)));
    assert!(on == lock("b") && matches!(why, StoreError::IdConflict { .. }));
    machine.release(70, &lock("b"), id(1)).unwrap();
    assert_eq!(machine.take_deliveries()[0].lease_id, id(2));
    machine.withdraw_all(71, &[lock("a"), lock("b")], id(2));
    assert_eq!(
        holders(&mut machine, &["a", "b"]),
        [Some(id(3)), None],
        "no client had received it"
    );
}

/// A client that has renewed one lease of a group has received all of them.
#[test]
fn a_group_of_which_one_lease_was_renewed_is_not_rolled_back() {
    let mut machine = machine();
    granted(machine.acquire(0, request("b", 1, 0)));
    assert_eq!(machine.acquire_all(1, all(&["a", "b"], 2, 50)), Reply::Queued);
    machine.release(2, &lock("b"), id(1)).unwrap();
    machine.renew(3, &lock("a"), id(2), None).unwrap();
    machine.withdraw_all(4, &[lock("a"), lock("b")], id(2));
    assert_eq!(holders(&mut machine, &["a", "b"]), [Some(id(2)), Some(id(2))]);
}

/// One of its leases has ended: a new grant under its id would be no part of the request.
#[test]
fn a_group_is_not_granted_a_second_time_in_part() {
    let mut machine = machine();
    granted_all(machine.acquire_all(0, all(&["a", "b"], 1, 0)));
    machine.release(1, &lock("a"), id(1)).unwrap();
    let lost = |reason| StoreError::Lost { reason, why: None, is_known: true };
    let again = refused_part(machine.acquire_all(2, all(&["a", "b"], 1, 50)));
    assert_eq!(again, (lock("a"), lost(EndReason::Released)));
    // The end is not remembered any more.
    machine.renew(51, &lock("b"), id(1), None).unwrap();
    machine.tick(60);
    let again = refused_part(machine.acquire_all(60, all(&["a", "b"], 1, 50)));
    assert_eq!(again, (lock("a"), lost(EndReason::Superseded)));
}

#[test]
fn the_session_of_a_group_has_room_for_all_or_refuses() {
    let mut machine = Machine::new(0, Limits { session_leases: 3, ..Limits::default() });
    let session_id = SessionId::new(uuid_of(900)).unwrap();
    let owner = Owner::new("worker").unwrap();
    let ttl = Ttl::from_ms(100).unwrap();
    let new = NewSession { session_id, owner: owner.clone(), ttl, metadata: None, principal: None };
    machine.create_session(0, new).unwrap();
    let bound = |names: &[&str], number| -> Vec<Acquire> {
        let bind = |part| Acquire { owner: owner.clone(), session: Some(session_id), ..part };
        all(names, number, 500).into_iter().map(bind).collect()
    };
    let (on, why) = refused_part(machine.acquire_all(0, bound(&["a", "b", "c", "d"], 1)));
    assert!(on == lock("a") && matches!(why, StoreError::Limit { limit: 3, .. }));
    granted(machine.acquire(0, Acquire { ttl: Ttl::from_ms(900).unwrap(), ..request("b", 2, 0) }));
    assert_eq!(machine.acquire_all(1, bound(&["a", "b", "c"], 1)), Reply::Queued);
    assert_eq!(machine.acquire_all(2, bound(&["a", "b", "c"], 1)), Reply::Queued, "a repeat");
    assert_eq!(machine.show_session(2, session_id).unwrap().lease_count, 3);
    machine.block_session(3, session_id, Owner::new("why").unwrap()).unwrap();
    assert_eq!(queues(&machine, &["a", "b", "c"]), [0, 0, 0]);
    let deliveries = machine.take_deliveries();
    let [Delivery { result: Err(StoreError::Part { refusal, .. }), .. }] = &deliveries[..] else {
        panic!("not one delivery: {deliveries:?}");
    };
    let blocked = |refusal: &SessionRefusal| matches!(refusal.why, NoSession::Blocked { .. });
    assert!(matches!(&**refusal, StoreError::Session(refusal) if blocked(refusal)));
}

#[test]
fn the_places_of_groups_are_bounded() {
    let limits = Limits { waiters_per_lock: 2, waiters: 4, locks: 3, ..Limits::default() };
    let mut machine = Machine::new(0, limits);
    granted(machine.acquire(0, request("a", 1, 0)));
    let (on, why) = refused_part(machine.acquire_all(0, all(&["b", "a", "c", "d"], 2, 50)));
    assert!(on == lock("d") && matches!(why, StoreError::Limit { limit: 3, .. }), "{on}: {why}");
    assert_eq!(machine.acquire_all(0, all(&["a", "b", "c"], 2, 50)), Reply::Queued);
    let (_, why) = refused_part(machine.acquire_all(0, all(&["b", "a"], 3, 50)));
    assert!(matches!(why, StoreError::Limit { limit: 4, .. }), "{why}");
    assert_eq!(machine.acquire(0, request("a", 3, 50)), Reply::Queued);
    let (on, why) = refused_part(machine.acquire_all(0, all(&["b", "a"], 4, 50)));
    assert!(on == lock("a") && matches!(why, StoreError::Limit { limit: 2, .. }), "{on}: {why}");
}

/// A server that has loaded one of the locks of a group does not know whether it is the first
/// elsewhere.
#[test]
fn a_group_is_served_where_its_place_at_every_lock_is_known() {
    let limits = Limits::default();
    let mut one = Machine::shared(0, limits, 1);
    granted(one.acquire(0, request("a", 9, 0)));
    assert_eq!(one.acquire_all(0, all(&["a", "b"], 1, 900)), Reply::Queued);
    let group = one.record(&lock("a")).unwrap().queue.front().unwrap().group.unwrap();
    let parts: Vec<_> = ["a", "b"].map(|name| (lock(name), Mode::Exclusive)).into();
    let mut two = Machine::shared(0, limits, 2);
    let load = |two: &mut Machine, name| {
        let record = one.record(&lock(name)).cloned();
        two.load(0, lock(name), record, vec![(group, parts.clone())]);
    };
    load(&mut two, "a");
    // The lease of "a" has expired.
    granted(two.acquire(150, request("c", 3, 0)));
    assert_eq!(two.take_deliveries(), []);
    load(&mut two, "b");
    granted(two.acquire(151, request("d", 4, 0)));
    assert_eq!(two.take_deliveries().len(), 1);
    assert_eq!(holders(&mut two, &["a", "b"]), [Some(id(1)), Some(id(1))]);
}

/// An engine may drop the record of one lock and keep another's. A request that has lost one of its
/// entries is treated as new: at its remaining entry it would never be served.
#[test]
fn a_group_that_lost_a_place_stands_in_every_queue_again() {
    let mut machine = Machine::shared(0, Limits::default(), 1);
    granted(machine.acquire(0, request("a", 8, 0)));
    granted(machine.acquire(0, request("b", 9, 0)));
    assert_eq!(machine.acquire_all(0, all(&["a", "b"], 1, 900)), Reply::Queued);
    machine.load(0, lock("b"), None, Vec::new());
    assert_eq!(machine.acquire_all(0, all(&["a", "b"], 1, 900)), Reply::Queued);
    let queued = ["a", "b"].map(|name| machine.record(&lock(name)).unwrap().queue.len());
    assert_eq!(queued, [1, 1]);
}

/// Leases end at their expiry, whichever server notices it, and in whatever order.
#[test]
fn every_ended_id_is_remembered_for_its_time() {
    let limits = Limits { ended_retention_ms: 50, ..Limits::default() };
    let mut machine = Machine::shared(0, limits, 1);
    let shared = |number, ttl_ms| Acquire {
        mode: Mode::Shared,
        ttl: Ttl::from_ms(ttl_ms).unwrap(),
        ..request("a", number, 0)
    };
    granted(machine.acquire(0, shared(1, 200)));
    granted(machine.acquire(0, shared(2, 100)));
    for now_ms in [220, 221] {
        machine.tick(now_ms);
        drop(machine.take_changes());
    }
    let error = refused(machine.acquire(222, shared(1, 200)));
    assert!(matches!(error, StoreError::Lost { .. }), "{error:?}");
}

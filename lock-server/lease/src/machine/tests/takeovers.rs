//! Takeover by identity.

use super::*;
use crate::Reading;

/// Returns a request of one incarnation of `worker`.
fn life(number: u128, incarnation: &str, takeover: Takeover) -> Acquire {
    Acquire {
        owner: Owner::new("worker").unwrap(),
        incarnation: Owner::new(incarnation).ok(),
        takeover,
        ..request("a", number, 0)
    }
}

fn refusal(reply: Reply) -> NoTakeover {
    match refused(reply) {
        StoreError::TakeoverRefused { why, .. } => why,
        other => panic!("another refusal: {other:?}"),
    }
}

#[test]
fn a_new_life_gets_the_lock_at_once_before_those_who_wait() {
    let mut machine = machine();
    let old = granted(machine.acquire(0, life(1, "boot-1", Takeover::Never)));
    assert_eq!(machine.acquire(1, request("a", 2, 500)), Reply::Queued);
    let asked = life(3, "boot-2", Takeover::EarlierSelf);
    let new = granted(machine.acquire(2, asked.clone()));
    assert!(new.token > old.token);
    assert_eq!(granted(machine.acquire(3, asked)).token, new.token, "a repeat");
    let error = machine.renew(3, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(
        error,
        StoreError::Lost { reason: EndReason::Superseded, why: None, is_known: true }
    );
    let error = refused(machine.acquire(3, life(1, "boot-1", Takeover::Never)));
    assert_eq!(
        error,
        StoreError::Lost { reason: EndReason::Superseded, why: None, is_known: true }
    );
    assert_eq!(machine.take_deliveries(), [], "the waiter still waits");
    machine.tick(102);
    assert_eq!(machine.take_deliveries()[0].lease_id, id(2), "and is granted in its turn");
}

#[test]
fn takeover_never_crosses_owners() {
    let mut machine = machine();
    let held = granted(machine.acquire(0, life(1, "boot-1", Takeover::Never)));
    for takeover in [Takeover::EarlierSelf, Takeover::Of(id(1))] {
        let thief = Acquire { owner: Owner::new("thief").unwrap(), ..life(2, "boot-2", takeover) };
        assert_eq!(refusal(machine.acquire(1, thief)), NoTakeover::OtherOwner);
    }
    assert_eq!(machine.renew(2, &lock("a"), id(1), None).unwrap().token, held.token);
}

/// Two processes that run under one name by mistake do not take the lock in turns.
#[test]
fn an_earlier_life_does_not_take_the_lock_back() {
    let mut machine = machine();
    granted(machine.acquire(0, life(1, "boot-1", Takeover::EarlierSelf)));
    granted(machine.acquire(1, life(2, "boot-2", Takeover::EarlierSelf)));
    let late = life(3, "boot-1", Takeover::EarlierSelf);
    assert_eq!(refusal(machine.acquire(2, late)), NoTakeover::WasTakenOver);
    granted(machine.acquire(3, life(4, "boot-3", Takeover::EarlierSelf)));
}

#[test]
fn a_holder_without_an_incarnation_is_taken_over_by_its_lease_alone() {
    let mut machine = machine();
    let unnamed = Acquire { incarnation: None, ..life(1, "x", Takeover::Never) };
    granted(machine.acquire(0, unnamed));
    let by_life = life(2, "boot-2", Takeover::EarlierSelf);
    assert_eq!(refusal(machine.acquire(1, by_life)), NoTakeover::NoIncarnation);
    granted(machine.acquire(2, life(2, "boot-2", Takeover::Of(id(1)))));
    // The named lease is gone: the next one is not the one that the supervisor saw die.
    let again = refused(machine.acquire(3, life(3, "boot-3", Takeover::Of(id(1)))));
    assert!(matches!(again, StoreError::Held { .. }), "{again:?}");
}

/// A process that sends two requests under two ids does not take the lock from itself.
#[test]
fn a_life_does_not_take_over_from_itself() {
    let mut machine = machine();
    granted(machine.acquire(0, life(1, "boot-1", Takeover::EarlierSelf)));
    let second = refused(machine.acquire(1, life(2, "boot-1", Takeover::EarlierSelf)));
    assert!(matches!(second, StoreError::Held { .. }), "{second:?}");
}

/// A client waits behind its earlier incarnation and then requests a takeover: every call gets a
/// reply.
#[test]
fn a_waiter_that_takes_over_is_answered_in_the_queue_too() {
    let mut machine = machine();
    granted(machine.acquire(0, life(1, "boot-1", Takeover::Never)));
    let waits = Acquire { wait_ms: 500, ..life(2, "boot-2", Takeover::Never) };
    assert_eq!(machine.acquire(1, waits), Reply::Queued);
    let grant = granted(machine.acquire(5, life(2, "boot-2", Takeover::EarlierSelf)));
    assert_eq!(grant.waited_ms, 4);
    let delivery = machine.take_deliveries().remove(0);
    assert_eq!((delivery.lease_id, delivery.result), (id(2), Ok(grant)));
}

#[test]
fn a_takeover_that_has_no_token_leaves_the_holder_alone() {
    let mut machine = machine();
    let held = granted(machine.acquire(0, life(1, "boot-1", Takeover::Never)));
    let min_token = Token::new(Token::MAX).ok();
    let wish = Acquire { min_token, ..life(2, "boot-2", Takeover::EarlierSelf) };
    assert_eq!(refused(machine.acquire(1, wish)), StoreError::Exhausted);
    assert_eq!(machine.renew(2, &lock("a"), id(1), None).unwrap().token, held.token);
}

/// A restart of the server keeps the holder and the incarnations that were taken over.
#[test]
fn lives_outlast_a_restart() {
    let mut before = machine();
    granted(before.acquire(0, life(1, "boot-1", Takeover::Never)));
    granted(before.acquire(0, life(2, "boot-2", Takeover::EarlierSelf)));
    let stored = before.take_changes().remove(0).1.unwrap().to_stored(u64::MAX);
    let mut after = machine();
    after.restore(
        0,
        lock("a"),
        Record::from_stored(stored, Reading::Restart { now_ms: 0 }).unwrap(),
    );
    let late = life(3, "boot-1", Takeover::EarlierSelf);
    assert_eq!(refusal(after.acquire(1, late)), NoTakeover::WasTakenOver);
    granted(after.acquire(2, life(4, "boot-3", Takeover::EarlierSelf)));
}

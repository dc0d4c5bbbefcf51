//! Unit tests of the rules.

use fence_protocol::{LeaseId, LockName, Owner, Token, Ttl};

use super::*;
use crate::{Acquire, NoTakeover, Takeover};

mod delays;
mod groups;
mod histories;
mod kinds;
mod principals;
mod sessions;
mod slices;
mod structure;
mod takeovers;

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn id(number: u128) -> LeaseId {
    LeaseId::new(uuid_of(number)).unwrap()
}

fn uuid_of(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn request(name: &str, number: u128, wait_ms: u64) -> Acquire {
    let owner = Owner::new(format!("worker-{number}")).unwrap();
    let ttl = Ttl::from_ms(100).unwrap();
    Acquire { wait_ms, ..Acquire::new(lock(name), id(number), owner, ttl) }
}

fn machine() -> Machine {
    Machine::new(0, Limits { ended_retention_ms: 50, ..Limits::default() })
}

fn granted(reply: Reply) -> Grant {
    match reply {
        Reply::Done(Ok(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

fn refused(reply: Reply) -> StoreError {
    match reply {
        Reply::Done(Err(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_same_id_gets_the_same_grant_with_what_remains() {
    let mut machine = machine();
    let first = granted(machine.acquire(0, request("a", 1, 0)));
    let again = granted(machine.acquire(30, request("a", 1, 0)));
    assert_eq!(again.token, first.token);
    assert_eq!(again.remaining_ms, 70);
}

#[test]
fn an_ended_id_is_never_granted_again() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.release(10, &lock("a"), id(1)).unwrap();
    let error = refused(machine.acquire(20, request("a", 1, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released, why: None, is_known: true });
    granted(machine.acquire(20, request("a", 2, 0)));
}

#[test]
fn a_release_that_overtakes_its_acquire_wins() {
    let mut machine = machine();
    let error = machine.release(0, &lock("a"), id(1)).unwrap_err();
    assert_eq!(error, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: false });
    let error = refused(machine.acquire(1, request("a", 1, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released, why: None, is_known: true });
}

#[test]
fn expiry_wakes_the_first_in_the_queue_with_its_full_time() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    assert_eq!(machine.acquire(10, request("a", 2, 500)), Reply::Queued);
    assert_eq!(machine.acquire(11, request("a", 3, 500)), Reply::Queued);
    assert_eq!(machine.next_alarm_ms(), Some(100));
    machine.tick(100);
    let deliveries = machine.take_deliveries();
    assert_eq!(deliveries.len(), 1);
    let grant = deliveries[0].result.clone().unwrap();
    assert_eq!((grant.lease_id, grant.remaining_ms, grant.waited_ms), (id(2), 100, 90));
}

#[test]
fn a_renewal_replaces_and_never_resurrects() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    let renewed = machine.renew(60, &lock("a"), id(1), None).unwrap();
    assert_eq!(renewed.remaining_ms, 100);
    let error = machine.renew(160, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(error, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true });
}

#[test]
fn patience_ends_with_the_holders_name() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.renew(1, &lock("a"), id(1), Some(Ttl::from_ms(10_000).unwrap())).unwrap();
    assert_eq!(machine.acquire(10, request("a", 2, 20)), Reply::Queued);
    machine.tick(30);
    let deliveries = machine.take_deliveries();
    assert!(matches!(
        &deliveries[..],
        [Delivery { result: Err(StoreError::Held { holder, queue_length: 0 }), .. }]
            if holder.owner.as_str() == "worker-1"
    ));
}

#[test]
fn a_withdrawn_waiter_costs_the_queue_nothing() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.acquire(1, request("a", 2, 500));
    machine.acquire(2, request("a", 3, 500));
    machine.withdraw(3, &lock("a"), id(2));
    machine.release(4, &lock("a"), id(1)).unwrap();
    let deliveries = machine.take_deliveries();
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].lease_id, id(3));
}

#[test]
fn a_grant_that_no_client_received_is_rolled_back_and_handed_on() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.acquire(1, request("a", 2, 500));
    machine.acquire(2, request("a", 3, 500));
    machine.release(3, &lock("a"), id(1)).unwrap();
    machine.withdraw(4, &lock("a"), id(2));
    let granted: Vec<_> = machine.take_deliveries().into_iter().map(|d| d.lease_id).collect();
    assert_eq!(granted, [id(2), id(3)]);
    let error = refused(machine.acquire(5, request("a", 2, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released, why: None, is_known: true });
}

/// Nothing was acknowledged, so the id may be asked with again; not so once its client has released
/// it.
#[test]
fn an_unacknowledged_grant_is_forgotten_unless_it_was_released() {
    for is_released in [false, true] {
        let mut machine = machine();
        granted(machine.acquire(0, request("a", 1, 0)));
        machine.acquire(1, request("a", 2, 500));
        machine.release(2, &lock("a"), id(1)).unwrap();
        if is_released {
            machine.release(3, &lock("a"), id(2)).unwrap();
        }
        assert!(machine.roll_back(4, &[lock("a")], id(2)));
        match machine.acquire(5, request("a", 2, 0)) {
            Reply::Done(Ok(_)) => assert!(!is_released),
            again => {
                let error = refused(again);
                assert_eq!(
                    error,
                    StoreError::Lost { reason: EndReason::Released, why: None, is_known: true }
                );
                assert!(is_released);
            }
        }
    }
}

/// The connection broke, the retry has the lock: the late withdrawal of the first connection must
/// not take the lock away.
#[test]
fn a_grant_that_was_retried_or_renewed_is_not_rolled_back() {
    for renews in [false, true] {
        let mut machine = machine();
        granted(machine.acquire(0, request("a", 1, 0)));
        machine.acquire(1, request("a", 2, 500));
        machine.release(2, &lock("a"), id(1)).unwrap();
        let before = if renews {
            machine.renew(3, &lock("a"), id(2), None).unwrap()
        } else {
            granted(machine.acquire(3, request("a", 2, 500)))
        };
        machine.withdraw(4, &lock("a"), id(2));
        assert_eq!(granted(machine.acquire(5, request("a", 2, 0))).token, before.token);
    }
}

#[test]
fn a_withdrawn_waiter_may_wait_again() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.acquire(1, request("a", 2, 500));
    machine.withdraw(2, &lock("a"), id(2));
    assert_eq!(machine.acquire(3, request("a", 2, 500)), Reply::Queued);
}

#[test]
fn ids_of_others_conflict() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    let thief = Acquire { owner: Owner::new("thief").unwrap(), ..request("a", 1, 0) };
    assert!(matches!(refused(machine.acquire(1, thief)), StoreError::IdConflict { .. }));
}

#[test]
fn min_token_is_exceeded() {
    let mut machine = machine();
    let wish = Acquire { min_token: Some(Token::new(500).unwrap()), ..request("a", 1, 0) };
    assert_eq!(granted(machine.acquire(0, wish)).token.get(), 501);
    assert_eq!(granted(machine.acquire(0, request("b", 2, 0))).token.get(), 502);
}

#[test]
fn nothing_remains_of_idle_locks() {
    let mut machine = machine();
    for number in 1..=20 {
        granted(machine.acquire(0, request(&format!("l{number}"), number, 0)));
        machine.release(1, &lock(&format!("l{number}")), id(number)).unwrap();
    }
    machine.tick(52);
    assert!(machine.records.is_empty());
    assert_eq!(machine.next_alarm_ms(), None);
    assert!(machine.take_changes().iter().all(|(_, record)| record.is_none()));
}

#[test]
fn limits_refuse_and_change_nothing() {
    let limits = Limits {
        waiters_per_lock: 1,
        waiters: 2,
        locks: 2,
        ended_retention_ms: 50,
        ..Limits::default()
    };
    let mut machine = Machine::new(0, limits);
    granted(machine.acquire(0, request("a", 1, 0)));
    assert_eq!(machine.acquire(0, request("a", 2, 9)), Reply::Queued);
    assert!(matches!(refused(machine.acquire(0, request("a", 3, 9))), StoreError::Limit { .. }));
    granted(machine.acquire(0, request("b", 4, 0)));
    assert!(matches!(refused(machine.acquire(0, request("c", 5, 0))), StoreError::Limit { .. }));
    assert_eq!(machine.acquire(0, request("b", 6, 9)), Reply::Queued);
}

/// A restart restores leases with their full time, ended ids, and a counter above all of them.
#[test]
fn a_restart_forgets_nothing_that_was_answered() {
    let mut before = machine();
    let held = granted(before.acquire(0, request("a", 1, 0)));
    granted(before.acquire(0, request("b", 2, 0)));
    before.release(5, &lock("b"), id(2)).unwrap();
    let stored: Vec<_> = before
        .take_changes()
        .into_iter()
        .map(|(lock, record)| (lock, record.unwrap().to_stored(u64::MAX)))
        .collect();
    let mut after = machine();
    for (lock, record) in stored {
        after.restore(
            0,
            lock,
            Record::from_stored(record, crate::Reading::Restart { now_ms: 0 }).unwrap(),
        );
    }
    assert_eq!(after.counter(), before.counter());
    let error = refused(after.acquire(10, request("b", 2, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released, why: None, is_known: true });
    let again = granted(after.acquire(90, request("a", 1, 0)));
    assert_eq!((again.token, again.remaining_ms), (held.token, 10));
}

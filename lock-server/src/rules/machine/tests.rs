//! The rules step by step, and under random histories against what must always be true.

use std::collections::{HashMap, VecDeque};

use fence_protocol::{LeaseId, LockName, Owner, Token, Ttl};
use proptest::prelude::*;

use super::*;

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn id(number: u128) -> LeaseId {
    LeaseId::new(uuid_of(number)).unwrap()
}

fn uuid_of(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn ask(name: &str, number: u128, wait_ms: u64) -> Acquire {
    Acquire {
        lock: lock(name),
        lease_id: id(number),
        owner: Owner::new(format!("worker-{number}")).unwrap(),
        ttl: Ttl::from_ms(100).unwrap(),
        wait_ms,
        metadata: None,
        min_token: None,
    }
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
    let first = granted(machine.acquire(0, ask("a", 1, 0)));
    let again = granted(machine.acquire(30, ask("a", 1, 0)));
    assert_eq!(again.token, first.token);
    assert_eq!(again.remaining_ms, 70);
}

#[test]
fn an_ended_id_is_never_granted_again() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    machine.release(10, &lock("a"), id(1)).unwrap();
    let error = refused(machine.acquire(20, ask("a", 1, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released });
    granted(machine.acquire(20, ask("a", 2, 0)));
}

#[test]
fn a_release_that_overtakes_its_acquire_wins() {
    let mut machine = machine();
    let error = machine.release(0, &lock("a"), id(1)).unwrap_err();
    assert_eq!(error, StoreError::Lost { reason: EndReason::Expired });
    let error = refused(machine.acquire(1, ask("a", 1, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released });
}

#[test]
fn expiry_wakes_the_first_in_the_queue_with_its_full_time() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    assert_eq!(machine.acquire(10, ask("a", 2, 500)), Reply::Queued);
    assert_eq!(machine.acquire(11, ask("a", 3, 500)), Reply::Queued);
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
    granted(machine.acquire(0, ask("a", 1, 0)));
    let renewed = machine.renew(60, &lock("a"), id(1), None).unwrap();
    assert_eq!(renewed.remaining_ms, 100);
    let error = machine.renew(160, &lock("a"), id(1), None).unwrap_err();
    assert_eq!(error, StoreError::Lost { reason: EndReason::Expired });
}

#[test]
fn patience_ends_with_the_holders_name() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    machine.renew(1, &lock("a"), id(1), Some(Ttl::from_ms(10_000).unwrap())).unwrap();
    assert_eq!(machine.acquire(10, ask("a", 2, 20)), Reply::Queued);
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
    granted(machine.acquire(0, ask("a", 1, 0)));
    machine.acquire(1, ask("a", 2, 500));
    machine.acquire(2, ask("a", 3, 500));
    machine.withdraw(3, &lock("a"), id(2));
    machine.release(4, &lock("a"), id(1)).unwrap();
    let deliveries = machine.take_deliveries();
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].lease_id, id(3));
}

#[test]
fn a_grant_that_reached_nobody_is_taken_back_and_handed_on() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    machine.acquire(1, ask("a", 2, 500));
    machine.acquire(2, ask("a", 3, 500));
    machine.release(3, &lock("a"), id(1)).unwrap();
    machine.withdraw(4, &lock("a"), id(2));
    let granted: Vec<_> = machine.take_deliveries().into_iter().map(|d| d.lease_id).collect();
    assert_eq!(granted, [id(2), id(3)]);
    let error = refused(machine.acquire(5, ask("a", 2, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released });
}

/// The connection broke, the client asked again and has the lock: the word that the first
/// connection is gone may come late and must not take the lock away.
#[test]
fn a_grant_that_was_asked_for_again_or_renewed_is_not_taken_back() {
    for renews in [false, true] {
        let mut machine = machine();
        granted(machine.acquire(0, ask("a", 1, 0)));
        machine.acquire(1, ask("a", 2, 500));
        machine.release(2, &lock("a"), id(1)).unwrap();
        let before = if renews {
            machine.renew(3, &lock("a"), id(2), None).unwrap()
        } else {
            granted(machine.acquire(3, ask("a", 2, 500)))
        };
        machine.withdraw(4, &lock("a"), id(2));
        assert_eq!(granted(machine.acquire(5, ask("a", 2, 0))).token, before.token);
    }
}

#[test]
fn whoever_only_waited_may_wait_again() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    machine.acquire(1, ask("a", 2, 500));
    machine.withdraw(2, &lock("a"), id(2));
    assert_eq!(machine.acquire(3, ask("a", 2, 500)), Reply::Queued);
}

#[test]
fn ids_of_others_conflict() {
    let mut machine = machine();
    granted(machine.acquire(0, ask("a", 1, 0)));
    let thief = Acquire { owner: Owner::new("thief").unwrap(), ..ask("a", 1, 0) };
    assert!(matches!(refused(machine.acquire(1, thief)), StoreError::IdConflict { .. }));
}

#[test]
fn min_token_is_exceeded() {
    let mut machine = machine();
    let wish = Acquire { min_token: Some(Token::new(500).unwrap()), ..ask("a", 1, 0) };
    assert_eq!(granted(machine.acquire(0, wish)).token.get(), 501);
    assert_eq!(granted(machine.acquire(0, ask("b", 2, 0))).token.get(), 502);
}

#[test]
fn nothing_remains_of_idle_locks() {
    let mut machine = machine();
    for number in 1..=20 {
        granted(machine.acquire(0, ask(&format!("l{number}"), number, 0)));
        machine.release(1, &lock(&format!("l{number}")), id(number)).unwrap();
    }
    machine.tick(52);
    assert!(machine.records.is_empty());
    assert_eq!(machine.next_alarm_ms(), None);
    assert!(machine.take_changes().iter().all(|(_, record)| record.is_none()));
}

#[test]
fn limits_refuse_and_change_nothing() {
    let limits = Limits { waiters_per_lock: 1, waiters: 2, locks: 2, ended_retention_ms: 50 };
    let mut machine = Machine::new(0, limits);
    granted(machine.acquire(0, ask("a", 1, 0)));
    assert_eq!(machine.acquire(0, ask("a", 2, 9)), Reply::Queued);
    assert!(matches!(refused(machine.acquire(0, ask("a", 3, 9))), StoreError::Limit { .. }));
    granted(machine.acquire(0, ask("b", 4, 0)));
    assert!(matches!(refused(machine.acquire(0, ask("c", 5, 0))), StoreError::Limit { .. }));
    assert_eq!(machine.acquire(0, ask("b", 6, 9)), Reply::Queued);
}

/// A restart restores leases with their full time, ended ids, and a counter above all of them.
#[test]
fn a_restart_forgets_nothing_that_was_answered() {
    let mut before = machine();
    let held = granted(before.acquire(0, ask("a", 1, 0)));
    granted(before.acquire(0, ask("b", 2, 0)));
    before.release(5, &lock("b"), id(2)).unwrap();
    let stored: Vec<_> = before
        .take_changes()
        .into_iter()
        .map(|(lock, record)| (lock, record.unwrap().to_stored()))
        .collect();
    let mut after = machine();
    for (lock, record) in stored {
        after.restore(lock, Record::from_stored(record, 0));
    }
    assert_eq!(after.counter(), before.counter());
    let again = granted(after.acquire(90, ask("a", 1, 0)));
    assert_eq!((again.token, again.remaining_ms), (held.token, 10));
    let error = refused(after.acquire(10, ask("b", 2, 0)));
    assert_eq!(error, StoreError::Lost { reason: EndReason::Released });
}

#[derive(Clone, Debug)]
enum Step {
    Acquire { lock: u8, id: u128, wait_ms: u64 },
    Renew { lock: u8, id: u128 },
    Release { lock: u8, id: u128 },
    Withdraw { lock: u8, id: u128 },
    Revoke { lock: u8 },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let lock = 0..3_u8;
    let number = 1..40_u128;
    prop_oneof![
        5 => (lock.clone(), number.clone(), prop_oneof![Just(0), 1..200_u64])
            .prop_map(|(lock, id, wait_ms)| Step::Acquire { lock, id, wait_ms }),
        2 => (lock.clone(), number.clone()).prop_map(|(lock, id)| Step::Renew { lock, id }),
        3 => (lock.clone(), number.clone()).prop_map(|(lock, id)| Step::Release { lock, id }),
        1 => (lock.clone(), number).prop_map(|(lock, id)| Step::Withdraw { lock, id }),
        1 => lock.prop_map(|lock| Step::Revoke { lock }),
        3 => (1..80_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// What must be true of any history, kept apart from how the machine works.
#[derive(Default)]
struct Oracle {
    last_token: u64,
    tokens: HashMap<(u8, LeaseId), Token>,
    queues: HashMap<u8, Vec<LeaseId>>,
    live: HashMap<u8, (LeaseId, u64)>,
    /// The last eight a lock, newest first: what is documented to be remembered.
    ended: HashMap<u8, VecDeque<LeaseId>>,
}

impl Oracle {
    /// L1, L2, L3 and the order of the queue, for one grant.
    fn grant(&mut self, now_ms: u64, lock: u8, grant: &Grant) {
        let key = (lock, grant.lease_id);
        match self.tokens.get(&key) {
            Some(token) => assert_eq!(*token, grant.token, "L3: one id, one grant"),
            None => {
                assert!(grant.token.get() > self.last_token, "L1: tokens rise");
                self.last_token = grant.token.get();
                self.tokens.insert(key, grant.token);
                if let Some((_, until_ms)) = self.live.get(&lock) {
                    assert!(*until_ms <= now_ms, "L2: one live lease");
                }
                let queue = self.queues.entry(lock).or_default();
                if let Some(place) = queue.iter().position(|waiter| *waiter == grant.lease_id) {
                    assert_eq!(place, 0, "first come, first served");
                    queue.remove(0);
                } else {
                    assert!(queue.is_empty(), "nobody overtakes the queue");
                }
            }
        }
        let ended = self.ended.entry(lock).or_default();
        assert!(!ended.contains(&grant.lease_id), "an ended id came back");
        self.live.insert(lock, (grant.lease_id, now_ms + grant.remaining_ms));
    }

    fn end(&mut self, lock: u8, lease_id: LeaseId) {
        if self.live.get(&lock).is_some_and(|(live, _)| *live == lease_id) {
            self.live.remove(&lock);
        }
        let ended = self.ended.entry(lock).or_default();
        if ended.contains(&lease_id) {
            return;
        }
        ended.push_front(lease_id);
        if ended.len() > 8
            && let Some(forgotten) = ended.pop_back()
        {
            self.tokens.remove(&(lock, forgotten));
        }
    }

    fn expire(&mut self, now_ms: u64) {
        let due = |(lock, (lease, until_ms)): (&u8, &(LeaseId, u64))| {
            (*until_ms <= now_ms).then_some((*lock, *lease))
        };
        for (lock, lease_id) in self.live.iter().filter_map(due).collect::<Vec<_>>() {
            self.end(lock, lease_id);
        }
    }

    fn leave(&mut self, lock: u8, lease_id: LeaseId) {
        self.queues.entry(lock).or_default().retain(|waiter| *waiter != lease_id);
    }

    fn delivered(&mut self, now_ms: u64, delivery: &Delivery) {
        let lock: u8 = delivery.lock.as_str().parse().unwrap();
        match &delivery.result {
            Ok(grant) => self.grant(now_ms, lock, grant),
            Err(_) => self.leave(lock, delivery.lease_id),
        }
    }
}

/// Applies one step; leases that are due are let go first, as every store does.
fn apply(machine: &mut Machine, oracle: &mut Oracle, now_ms: &mut u64, step: Step) {
    let name = |number: u8| lock(&number.to_string());
    oracle.expire(*now_ms);
    machine.tick(*now_ms);
    for delivery in machine.take_deliveries() {
        oracle.delivered(*now_ms, &delivery);
    }
    match step {
        Step::Acquire { lock: l, id: number, wait_ms } => {
            match machine.acquire(*now_ms, ask(&l.to_string(), number, wait_ms)) {
                Reply::Done(Ok(grant)) => oracle.grant(*now_ms, l, &grant),
                Reply::Done(Err(_)) => {}
                Reply::Queued => {
                    let queue = oracle.queues.entry(l).or_default();
                    if !queue.contains(&id(number)) {
                        queue.push(id(number));
                    }
                }
            }
        }
        Step::Renew { lock: l, id: number } => {
            if let Ok(grant) = machine.renew(*now_ms, &name(l), id(number), None) {
                oracle.grant(*now_ms, l, &grant);
            }
        }
        Step::Release { lock: l, id: number } => {
            oracle.leave(l, id(number));
            let _ = machine.release(*now_ms, &name(l), id(number));
            oracle.end(l, id(number));
        }
        Step::Withdraw { lock: l, id: number } => {
            oracle.leave(l, id(number));
            let held = machine.show(*now_ms, &name(l)).holder.map(|holder| holder.lease_id);
            machine.withdraw(*now_ms, &name(l), id(number));
            let holds = machine.show(*now_ms, &name(l)).holder.map(|holder| holder.lease_id);
            if held == Some(id(number)) && holds != held {
                oracle.end(l, id(number));
            }
        }
        Step::Revoke { lock: l } => {
            if let Ok(ended) = machine.revoke(*now_ms, &name(l)) {
                oracle.end(l, ended.lease_id);
            }
        }
        Step::Pass { ms } => *now_ms += ms,
    }
    for delivery in machine.take_deliveries() {
        oracle.delivered(*now_ms, &delivery);
    }
}

proptest! {
    /// Time passes in steps shorter than a lease, so that at most one expiry a lock comes at once.
    #[test]
    fn every_history_keeps_the_invariants(steps in proptest::collection::vec(step(), 1..150)) {
        let limits = Limits { ended_retention_ms: 1_000_000, ..Limits::default() };
        let mut machine = Machine::new(0, limits);
        let mut oracle = Oracle::default();
        let mut now_ms = 0;
        for step in steps {
            apply(&mut machine, &mut oracle, &mut now_ms, step);
        }
        prop_assert_eq!(machine.counter(), oracle.last_token);
    }
}

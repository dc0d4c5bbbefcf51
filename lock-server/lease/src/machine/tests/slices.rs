//! Slices: decisions do not show what they leave.

use proptest::prelude::*;

use super::*;
use crate::Mode;

/// Number of locks, and of ids.
const LOCKS: u8 = 4;
const IDS: u128 = 12;

/// A lock is handed over before its waiter times out, as without slices.
#[test]
fn what_is_due_of_a_lock_is_handled_in_the_order_of_its_times() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    assert_eq!(machine.acquire(0, request("a", 2, 100)), Reply::Queued);
    machine.end_slice();
    let held = refused(machine.acquire(100, request("a", 3, 0)));
    assert!(matches!(held, StoreError::Held { queue_length: 0, .. }), "{held:?}");
    let delivery = machine.take_deliveries().remove(0);
    assert_eq!((delivery.lease_id, delivery.result.is_ok()), (id(2), true));
}

/// A group has its alarm at one lock, and keeps none of its locks when its wait is over.
#[test]
fn a_group_whose_wait_is_over_is_in_nobodys_way() {
    let mut machine = machine();
    let longer = Acquire { ttl: Ttl::from_ms(500).unwrap(), ..request("a", 1, 0) };
    granted(machine.acquire(0, longer));
    let parts = ["a", "b"].map(|name| request(name, 2, 50)).to_vec();
    assert_eq!(machine.acquire_all(0, parts), Reply::Queued);
    machine.end_slice();
    granted(machine.acquire(60, request("b", 3, 0)));
}

/// A group gets a lock whose lease ended before its wait did.
#[test]
fn a_group_is_served_by_what_is_due_of_its_other_locks() {
    let mut machine = machine();
    granted(machine.acquire(0, request("b", 1, 0)));
    let parts = ["a", "b"].map(|name| request(name, 2, 150)).to_vec();
    assert_eq!(machine.acquire_all(0, parts), Reply::Queued);
    machine.end_slice();
    let held = refused(machine.acquire(160, request("a", 3, 0)));
    assert!(matches!(held, StoreError::Held { .. }), "{held:?}");
    assert!(machine.take_deliveries().remove(0).result.is_ok());
}

/// So is one behind another waiter, whose wait was over before.
#[test]
fn a_group_is_served_behind_a_waiter_that_timed_out() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    assert_eq!(machine.acquire(0, request("a", 2, 50)), Reply::Queued);
    let parts = ["a", "b"].map(|name| request(name, 3, 150)).to_vec();
    assert_eq!(machine.acquire_all(0, parts), Reply::Queued);
    machine.end_slice();
    let held = refused(machine.acquire(160, request("b", 4, 0)));
    assert!(matches!(held, StoreError::Held { .. }), "{held:?}");
    let deliveries = machine.take_deliveries();
    let granted = deliveries.iter().map(|delivery| (delivery.lease_id, delivery.result.is_ok()));
    assert_eq!(granted.collect::<Vec<_>>(), [(id(2), false), (id(3), true)]);
}

/// A client whose wait is over gets its reply before leases that have ended give up their locks;
/// its own lock is settled first.
#[test]
fn waits_end_before_leases() {
    let mut machine = machine();
    for number in 10..20 {
        granted(machine.acquire(0, request(&number.to_string(), number, 0)));
    }
    granted(machine.acquire(10, request("z", 1, 0)));
    assert_eq!(machine.acquire(10, request("z", 2, 95)), Reply::Queued);
    assert_eq!(machine.acquire(10, request("z", 3, 20)), Reply::Queued);
    machine.forget_growth();
    machine.begin_slice(2);
    machine.tick(108);
    let deliveries = machine.take_deliveries();
    let granted = deliveries.iter().map(|delivery| (delivery.lease_id, delivery.result.is_ok()));
    assert_eq!(granted.collect::<Vec<_>>(), [(id(3), false), (id(2), false)]);
}

#[test]
fn a_list_leaves_out_what_is_over() {
    let mut machine = machine();
    granted(machine.acquire(0, request("a", 1, 0)));
    machine.end_slice();
    let query = crate::ListQuery { prefix: String::new(), after: None, limit: 10, owner: None };
    assert_eq!(machine.list(99, &query).locks.len(), 1);
    assert!(machine.list(100, &query).locks.is_empty());
}

#[derive(Clone, Debug)]
enum SliceStep {
    /// Every second id asks for a shared lease.
    Acquire {
        lock: u8,
        id: u128,
        ttl_ms: u64,
        wait_ms: u64,
    },
    Renew {
        lock: u8,
        id: u128,
    },
    Release {
        lock: u8,
        id: u128,
    },
    Pass {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = (usize, SliceStep)> {
    let at = || (0..LOCKS, 1..=IDS);
    let times = (20..120_u64, prop_oneof![Just(0), 10..90_u64]);
    let acquire = (at(), times).prop_map(|((lock, id), (ttl_ms, wait_ms))| SliceStep::Acquire {
        lock,
        id,
        ttl_ms,
        wait_ms,
    });
    let step = prop_oneof![
        4 => acquire,
        1 => at().prop_map(|(lock, id)| SliceStep::Renew { lock, id }),
        1 => at().prop_map(|(lock, id)| SliceStep::Release { lock, id }),
        3 => (1..60_u64).prop_map(|ms| SliceStep::Pass { ms }),
    ];
    (0..3_usize, step)
}

/// Live leases, as their grants say.
#[derive(Default)]
struct GrantedLeases {
    /// Mode and end by lock and id.
    leases: BTreeMap<(u8, u128), (bool, u64)>,
    /// Modes of the requests that wait, by lock and id, and the ends of their waits.
    waits: BTreeMap<(u8, u128), (bool, u64)>,
    last_token: u64,
}

impl GrantedLeases {
    fn live(&self, now_ms: u64, lock: u8) -> impl Iterator<Item = (u128, bool)> {
        let of_lock = self.leases.range((lock, 0)..=(lock, u128::MAX));
        of_lock.filter(move |(_, lease)| lease.1 > now_ms).map(|((_, id), lease)| (*id, lease.0))
    }

    fn grant(&mut self, now_ms: u64, (lock, id): (u8, u128), is_shared: bool, grant: &Grant) {
        let is_new = self.live(now_ms, lock).all(|(other, _)| other != id);
        if is_new {
            assert!(grant.token.get() > self.last_token, "tokens rise");
            self.last_token = grant.token.get();
            let in_the_way = |other: (u128, bool)| !(is_shared && other.1);
            assert!(!self.live(now_ms, lock).any(in_the_way), "{lock} is granted to two");
        }
        self.leases.insert((lock, id), (is_shared, now_ms + grant.remaining_ms));
        self.waits.remove(&(lock, id));
    }

    fn deliver(&mut self, now_ms: u64, machine: &mut Machine) {
        for delivery in machine.take_deliveries() {
            let at = (delivery.lock.as_str().parse().unwrap(), delivery.lease_id.uuid().as_u128());
            let Some((is_shared, _)) = self.waits.remove(&at) else { panic!("not waiting") };
            if let Ok(grant) = &delivery.result {
                self.grant(now_ms, at, is_shared, grant);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_decision_shows_what_a_slice_left(steps in proptest::collection::vec(step(), 1..150)) {
        let mut machine = machine();
        let mut known = GrantedLeases::default();
        let mut now_ms = 0;
        for (slice, step) in steps {
            machine.forget_growth();
            machine.begin_slice(slice);
            match step {
                SliceStep::Pass { ms } => now_ms += ms,
                SliceStep::Acquire { lock: l, id: number, ttl_ms, wait_ms } => {
                    let is_shared = number % 2 == 0;
                    let mode = if is_shared { Mode::Shared } else { Mode::Exclusive };
                    let ttl = Ttl::from_ms(ttl_ms).unwrap();
                    let request =
                        Acquire { mode, ttl, ..request(&l.to_string(), number, wait_ms) };
                    let reply = machine.acquire(now_ms, request);
                    known.deliver(now_ms, &mut machine);
                    match reply {
                        Reply::Done(Ok(grant)) => {
                            known.grant(now_ms, (l, number), is_shared, &grant);
                        }
                        Reply::Queued => {
                            known.waits.insert((l, number), (is_shared, now_ms + wait_ms));
                        }
                        Reply::Done(Err(StoreError::Held { .. })) => {
                            let waits = known.waits.keys().any(|(lock, _)| *lock == l);
                            let held = known.live(now_ms, l).next().is_some();
                            prop_assert!(waits || held, "{l} is free and refused");
                        }
                        Reply::Done(Err(_)) => {}
                    }
                }
                SliceStep::Renew { lock: l, id: number } => {
                    let renewed = machine.renew(now_ms, &lock(&l.to_string()), id(number), None);
                    known.deliver(now_ms, &mut machine);
                    let lease = known.leases.get(&(l, number)).copied();
                    let lives = lease.is_some_and(|(_, until_ms)| until_ms > now_ms);
                    prop_assert_eq!(renewed.is_ok(), lives, "{:?}", renewed);
                    if let (Ok(grant), Some((is_shared, _))) = (renewed, lease) {
                        known.grant(now_ms, (l, number), is_shared, &grant);
                    }
                }
                SliceStep::Release { lock: l, id: number } => {
                    // What is due comes first: the release may end what that granted.
                    machine.show(now_ms, &lock(&l.to_string()));
                    known.deliver(now_ms, &mut machine);
                    let released = machine.release(now_ms, &lock(&l.to_string()), id(number));
                    let lives = known.live(now_ms, l).any(|(other, _)| other == number);
                    prop_assert_eq!(released.is_ok(), lives, "{:?}", released);
                    known.leases.remove(&(l, number));
                }
            }
            known.deliver(now_ms, &mut machine);
        }
        machine.begin_slice(usize::MAX);
        machine.tick(now_ms);
        known.deliver(now_ms, &mut machine);
        for ((l, number), (_, until_ms)) in &known.leases {
            let held = machine.holder(&lock(&l.to_string()), id(*number)).is_some();
            prop_assert_eq!(held, *until_ms > now_ms);
        }
        prop_assert!(known.waits.values().all(|(_, until_ms)| *until_ms > now_ms));
    }
}

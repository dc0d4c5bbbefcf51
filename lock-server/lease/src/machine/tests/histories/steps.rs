//! Steps of a random history.

use fence_protocol::SessionId;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::super::*;
use super::{LOCKS, name};
use crate::{Acquire, Mode};

#[derive(Clone, Debug)]
pub(super) enum HistoryStep {
    /// The session names only its owner; the last session of that owner is used.
    Acquire(Acquire),
    AcquireAll(Vec<Acquire>),
    Renew {
        lock: u8,
        id: u128,
    },
    Release {
        lock: u8,
        id: u128,
    },
    Withdraw {
        lock: u8,
        id: u128,
    },
    /// Withdraws the request for several that was granted last from the queue.
    WithdrawGroup,
    Revoke {
        lock: u8,
        id: Option<u128>,
    },
    Mint,
    Restart,
    Begin {
        session: u8,
    },
    Heartbeat {
        session: u8,
    },
    End {
        session: u8,
    },
    Block {
        session: u8,
    },
    Pass {
        ms: u64,
    },
}

fn takeover() -> impl Strategy<Value = Takeover> {
    prop_oneof![
        3 => Just(Takeover::Never),
        2 => Just(Takeover::EarlierSelf),
        1 => (1..40_u128).prop_map(|number| Takeover::Of(id(number))),
    ]
}

/// Most requests agree on the kind of a lock.
fn mode(lock: u8, chance: u8) -> Mode {
    match (lock, chance) {
        (0 | 1, 0..=3) | (2, 8) => Mode::Exclusive,
        (0 | 1, 4..=7) | (2, 9) => Mode::Shared,
        (_, 9) => Mode::Permit { size: 3 },
        _ => Mode::Permit { size: 2 },
    }
}

/// Ids share a few owners, each with a few incarnations and some without one; two in five requests
/// name a session.
fn request_of(lock: u8, number: u128, wait_ms: u64, chance: u8, lock_delay_ms: u64) -> Acquire {
    let incarnation = Owner::new((number / 3 % 4).to_string()).unwrap();
    let session = SessionId::new(uuid_of(number % 3 + 3)).unwrap();
    Acquire {
        owner: Owner::new(format!("worker-{}", number % 3)).unwrap(),
        incarnation: (!number.is_multiple_of(4)).then_some(incarnation),
        session: (number % 5 < 2).then_some(session),
        mode: mode(lock, chance),
        lock_delay_ms,
        ..request(name(lock).as_str(), number, wait_ms)
    }
}

/// Half of the requests wait.
fn patience() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..200_u64]
}

fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 1 => 1..120_u64]
}

fn acquire() -> impl Strategy<Value = HistoryStep> {
    (0..LOCKS, 1..40_u128, patience(), 0..10_u8, delay(), takeover()).prop_map(
        |(lock, number, wait_ms, chance, delay_ms, takeover)| {
            let request = request_of(lock, number, wait_ms, chance, delay_ms);
            let is_exclusive = request.mode == Mode::Exclusive;
            let takeover = if is_exclusive { takeover } else { Takeover::Never };
            HistoryStep::Acquire(Acquire { takeover, ..request })
        },
    )
}

fn acquire_all() -> impl Strategy<Value = HistoryStep> {
    let locks = subsequence((0..LOCKS).collect::<Vec<_>>(), 1..=usize::from(LOCKS)).prop_shuffle();
    (locks, 1..40_u128, patience(), proptest::array::uniform3(0..10_u8), delay()).prop_map(
        |(locks, number, wait_ms, chances, delay_ms)| {
            let part = |(lock, chance)| request_of(lock, number, wait_ms, chance, delay_ms);
            HistoryStep::AcquireAll(locks.into_iter().zip(chances).map(part).collect())
        },
    )
}

pub(super) fn step() -> impl Strategy<Value = HistoryStep> {
    let lock = 0..LOCKS;
    let number = 1..40_u128;
    let of_a_lease = (lock.clone(), number.clone());
    prop_oneof![
        6 => acquire(),
        4 => acquire_all(),
        2 => of_a_lease.clone().prop_map(|(lock, id)| HistoryStep::Renew { lock, id }),
        4 => of_a_lease.clone().prop_map(|(lock, id)| HistoryStep::Release { lock, id }),
        2 => of_a_lease.prop_map(|(lock, id)| HistoryStep::Withdraw { lock, id }),
        1 => Just(HistoryStep::WithdrawGroup),
        2 => (lock, proptest::option::of(number))
            .prop_map(|(lock, id)| HistoryStep::Revoke { lock, id }),
        1 => Just(HistoryStep::Mint),
        1 => Just(HistoryStep::Restart),
        3 => (0..3_u8).prop_map(|session| HistoryStep::Begin { session }),
        3 => (0..3_u8).prop_map(|session| HistoryStep::Heartbeat { session }),
        1 => (0..3_u8).prop_map(|session| HistoryStep::End { session }),
        1 => (0..3_u8).prop_map(|session| HistoryStep::Block { session }),
        3 => (1..80_u64).prop_map(|ms| HistoryStep::Pass { ms }),
    ]
}

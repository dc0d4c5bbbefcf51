use fence_protocol::{Owner, Ttl};
use service_kit::ids;

use super::*;

/// Each as the node tells it that holds this lease with this token, or none.
fn view(n: usize, told: &[Option<(LeaseId, u64)>]) -> View {
    let seen = |(lease, token): (LeaseId, u64)| SeenLease {
        lease,
        info: HolderInfo {
            owner: Owner::new("me").unwrap(),
            token: Token::new(token).unwrap(),
            held_ms: 0,
            expires_in_ms: 1_000,
        },
        ttl_ms: 1_000,
        renewals: 0,
        metadata: String::new(),
    };
    let seen = |told: &Option<(LeaseId, u64)>| Seen { p: 9, live: told.map(seen), ended: vec![] };
    View { n, seen: told.iter().map(seen).collect(), spent_ms: 0 }
}

fn request(lease: LeaseId) -> Acquire {
    let owner = Owner::new("me").unwrap();
    let ttl = Ttl::from_ms(1_000).unwrap();
    Acquire::new(LockName::new("l").unwrap(), lease, owner, ttl)
}

/// Two leases, the first with the higher id.
fn two() -> (LeaseId, LeaseId) {
    let one = ids::lease_id();
    let other = ids::lease_id();
    (one.max(other), one.min(other))
}

#[test]
fn a_node_that_does_not_answer_counts_for_nobody() {
    let (l, m) = two();
    let seen = view(3, &[Some((l, 5)), Some((m, 6))]);
    assert_eq!(seen.live(), None);
    assert_eq!(seen.standing(&request(l), 0), LockStanding::Free);
    assert_eq!(seen.standing(&request(m), 0), LockStanding::Free);
    assert!(matches!(seen.surely_live(), Err(StoreError::Unavailable(_))));
    assert_eq!(view(3, &[Some((l, 5)), None]).live(), None);
}

#[test]
fn one_lease_with_two_tokens_is_not_live() {
    let (l, _) = two();
    let seen = view(3, &[Some((l, 2)), Some((l, 3)), None]);
    assert_eq!(seen.live(), None);
    assert_eq!(seen.standing(&request(l), 0), LockStanding::Free);
    assert_eq!(seen.surely_live(), Ok(None));
}

#[test]
fn what_most_nodes_hold_is_live_and_its_repeat_has_it_confirmed() {
    let (l, m) = two();
    let seen = view(3, &[Some((l, 2)), Some((m, 3)), Some((m, 3))]);
    assert_eq!(seen.live().map(|live| live.lease), Some(m));
    assert_eq!(seen.standing(&request(m), 0), LockStanding::Mine(Token::new(3).unwrap()));
    let LockStanding::Held { holder, queue_length: 4 } = seen.standing(&request(l), 4) else {
        panic!("it is held");
    };
    assert_eq!(holder.token.get(), 3);
}

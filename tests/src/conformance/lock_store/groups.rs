//! Several locks in one step: all of them or none, in one order wherever groups meet.

use fence_protocol::wire::lock::{LOCKS_PER_ACQUIRE_MAX, LockState};
use lock_server::store::{Kind, SessionRefusal};

use super::*;

mod crowds;
mod waiting;

pub use crowds::*;
pub use waiting::*;

type GroupResult = Result<Vec<Grant>, StoreError>;
/// A group that waits in a task of its own.
type WaitingGroup = JoinHandle<GroupResult>;

/// A request for all of these locks, exclusively.
pub(super) fn parts(wait_ms: u64, locks: &[&str]) -> Vec<Acquire> {
    let lease_id = lease_id();
    locks.iter().map(|lock| Acquire { lease_id, ..request(lock, LONG_MS, wait_ms) }).collect()
}

/// The same with a mode each.
pub(super) fn with_modes(parts: Vec<Acquire>, modes: &[Mode]) -> Vec<Acquire> {
    assert_eq!(parts.len(), modes.len());
    parts.into_iter().zip(modes).map(|(part, mode)| Acquire { mode: *mode, ..part }).collect()
}

async fn take_all(store: &Store, parts: Vec<Acquire>) -> Vec<Grant> {
    store.acquire_all(parts).await.expect("all of them are free")
}

/// Starts a group that must wait, and returns when it has its places.
pub(super) async fn enqueue_all(store: &Store, parts: Vec<Acquire>) -> WaitingGroup {
    let lock = parts[0].lock.clone();
    let lease = parts[0].lease_id;
    let own = store.clone();
    let waiting = tokio::spawn(async move { own.acquire_all(parts).await });
    until_true("the group's places", || async {
        let state = state_of(store, &lock).await;
        waiting.is_finished() || state.queue.iter().any(|waiter| waiter.lease_id == lease)
    })
    .await;
    if waiting.is_finished() {
        let outcome = waiting.await;
        panic!("the group did not wait: {outcome:?}");
    }
    waiting
}

pub(super) async fn all_granted(waiting: WaitingGroup) -> Vec<Grant> {
    soon("the grants", waiting).await.expect("no panic").expect("grants")
}

async fn release_all(store: &Store, parts: &[Acquire]) {
    for part in parts {
        released(store, part.lock.as_str(), part.lease_id).await;
    }
}

/// The lock that refused, and why.
fn refusal(outcome: GroupResult) -> (String, StoreError) {
    match outcome {
        Err(StoreError::Part { lock, refusal }) => (lock.as_str().to_owned(), *refusal),
        other => panic!("expected a refusal of one lock: {other:?}"),
    }
}

async fn is_held(store: &Store, lock: &str) -> bool {
    store.show(&name(lock)).await.unwrap().holder.is_some()
}

/// A token each, in the order of the request, under one id.
pub async fn a_group_is_granted_as_one(store: &Store) {
    let before = grant(store, "group/before", LONG_MS).await.token;
    let asked = parts(0, &["group/c", "group/a", "group/b"]);
    let grants = take_all(store, asked.clone()).await;
    assert_eq!(grants.len(), 3);
    let mut last = before;
    for (grant, part) in grants.iter().zip(&asked) {
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        assert_eq!((grant.lease_id, &grant.owner), (part.lease_id, &part.owner));
        let holder = store.show(&part.lock).await.unwrap().holder.unwrap();
        assert_eq!((holder.lease_id, holder.info.token), (grant.lease_id, grant.token));
        refused(store, request(part.lock.as_str(), LONG_MS, 0)).await;
    }
    assert!(grant(store, "group/after", LONG_MS).await.token > last);
    let one = take_all(store, parts(0, &["group/alone"])).await;
    assert_eq!(one.len(), 1);
}

/// If one lock is refused, nothing is taken, remembered or queued at the others, and a refusal that
/// waiting cannot change comes at once.
pub async fn a_group_is_all_or_nothing(store: &Store) {
    let held = grant(store, "none/b", LONG_MS).await;
    let pool = take(store, permit("none/pool", 2, 0)).await;
    let locks = ["none/a", "none/b", "none/c"];
    match refusal(store.acquire_all(parts(0, &locks)).await) {
        (lock, StoreError::Held { holder, .. }) => {
            assert_eq!((lock.as_str(), holder.token), ("none/b", held.token));
        }
        other => panic!("{other:?}"),
    }
    let kind = store.acquire_all(parts(LONG_MS, &["none/a", "none/pool", "none/c"])).await;
    let (lock, why) = refusal(soon("a refusal at once", async { kind }).await);
    assert_eq!(lock, "none/pool");
    assert_eq!(why, StoreError::OtherKind(Kind::Semaphore { size: 2 }));
    let mut wish = parts(0, &["none/a", "none/c"]);
    wish[1].min_token = Token::new(Token::MAX).ok();
    match store.acquire_all(wish).await.unwrap_err() {
        StoreError::Exhausted => {}
        StoreError::Part { refusal, .. } if *refusal == StoreError::Exhausted => {}
        other => panic!("{other:?}"),
    }
    let mut bound = parts(LONG_MS, &["none/a", "none/c"]);
    let unknown = crate::key_file::session_id();
    bound.iter_mut().for_each(|part| part.session = Some(unknown));
    let (_, why) = refusal(store.acquire_all(bound).await);
    assert!(matches!(why, StoreError::Session(SessionRefusal { .. })), "{why:?}");
    for lock in ["none/a", "none/c"] {
        let shown = store.show(&name(lock)).await.unwrap();
        assert_eq!((shown.state, shown.queue_length), (LockState::Free, 0), "{lock}");
        assert_eq!(shown.history, Vec::new(), "{lock}");
    }
    assert_eq!(queue_length(store, "none/b").await, 0);
    // No lock of the refused group is in the way of another kind.
    take(store, permit("none/a", 3, 0)).await;
    released(store, "none/pool", pool.lease_id).await;
    released(store, "none/b", held.lease_id).await;
    take_all(store, parts(0, &["none/b", "none/c"])).await;
}

/// L3: a repeat, as after a lost reply, learns of the grants that it has; others may not use the
/// id.
pub async fn a_group_is_granted_once(store: &Store) {
    let asked = parts(0, &["group-once/a", "group-once/b"]);
    let tokens = |grants: Vec<Grant>| grants.iter().map(|grant| grant.token).collect::<Vec<_>>();
    let first = tokens(take_all(store, asked.clone()).await);
    assert_eq!(tokens(take_all(store, asked.clone()).await), first);
    let patient: Vec<_> =
        asked.iter().map(|part| Acquire { wait_ms: LONG_MS, ..part.clone() }).collect();
    let again = soon("an answer at once", store.acquire_all(patient)).await.unwrap();
    assert_eq!(tokens(again), first);
    assert_eq!(queue_length(store, "group-once/a").await, 0);
    let theirs: Vec<_> =
        asked.iter().map(|part| Acquire { owner: owner("thief"), ..part.clone() }).collect();
    let (_, why) = refusal(store.acquire_all(theirs).await);
    assert_eq!(why, StoreError::IdConflict { owner: owner("conformance") });
    assert_eq!(tokens(take_all(store, asked.clone()).await), first);
    release_all(store, &asked).await;
}

/// L3: not as a whole, and not the part that is left, whichever lease of it ended.
pub async fn an_ended_group_is_not_granted_again(store: &Store) {
    let locks = ["group-ended/a", "group-ended/b", "group-ended/c"];
    for (ended, lock) in locks.iter().enumerate() {
        let asked = parts(LONG_MS, &locks);
        take_all(store, asked.clone()).await;
        released(store, lock, asked[ended].lease_id).await;
        let outcome = soon("a refusal at once", store.acquire_all(asked.clone())).await;
        let (named, why) = refusal(outcome);
        assert_eq!(named, *lock);
        assert_eq!(
            why,
            StoreError::Lost { reason: EndReason::Released, why: None, is_known: true }
        );
        assert!(!is_held(store, lock).await, "half a group was granted again");
        assert_eq!(queue_length(store, lock).await, 0);
        for (place, part) in asked.iter().enumerate().filter(|(place, _)| *place != ended) {
            let lease = store.renew(&part.lock, part.lease_id, None).await;
            assert!(lease.is_ok(), "part {place}: {lease:?}");
            released(store, part.lock.as_str(), part.lease_id).await;
        }
        let (_, why) = refusal(store.acquire_all(asked).await);
        assert!(matches!(why, StoreError::Lost { .. }), "{why:?}");
    }
    // An id that holds only one of the locks has no known outcome for the other.
    let single = with_modes(parts(0, &locks[..2]), &[Mode::Shared, Mode::Shared]);
    take(store, single[0].clone()).await;
    let (lock, why) = refusal(store.acquire_all(single).await);
    assert!(matches!(why, StoreError::Lost { .. }), "{why:?}");
    assert_eq!(lock, locks[1]);
    assert!(!is_held(store, locks[1]).await, "half a group was granted");
}

/// Once granted, each lease is renewed, ends and is handed on by itself.
pub async fn the_leases_of_a_group_are_independent(store: &Store) {
    let locks = ["apart/a", "apart/b", "apart/c", "apart/d"];
    let asked = parts(0, &locks);
    let lease = asked[0].lease_id;
    let grants = take_all(store, asked).await;
    let longer = Ttl::from_ms(LONG_MS).ok();
    let kept = store.renew(&name("apart/a"), lease, longer).await.unwrap();
    assert_eq!(kept.token, grants[0].token);
    let waits = enqueue(store, request("apart/b", LONG_MS, LONG_MS)).await;
    released(store, "apart/b", lease).await;
    assert!(granted(waits).await.token > grants[3].token);
    store.revoke(&name("apart/c"), Revoke::default()).await.unwrap();
    assert!(is_held(store, "apart/d").await);
    shorten(store, "apart/d", lease).await;
    until_free(store, "apart/d").await;
    for (lock, reason) in [
        ("apart/b", EndReason::Released),
        ("apart/c", EndReason::Revoked),
        ("apart/d", EndReason::Expired),
    ] {
        assert_eq!(lost(store.renew(&name(lock), lease, None).await), reason, "{lock}");
    }
    store.renew(&name("apart/a"), lease, None).await.unwrap();
}

/// Each part shares its lock as it says: a permit beside permits, a reader beside readers.
pub async fn a_group_has_modes(store: &Store) {
    let modes = [Mode::Shared, Mode::Permit { size: 2 }, Mode::Exclusive];
    let locks = ["modes/read", "modes/pool", "modes/slot-1"];
    let one = with_modes(parts(0, &locks), &modes);
    let grants = take_all(store, one.clone()).await;
    assert_eq!(grants.iter().map(|grant| grant.mode).collect::<Vec<_>>(), modes);
    let locks = ["modes/read", "modes/pool", "modes/slot-2"];
    let two = with_modes(parts(0, &locks), &modes);
    take_all(store, two.clone()).await;
    let three = with_modes(parts(0, &["modes/read", "modes/pool", "modes/slot-3"]), &modes);
    let (lock, _) = refusal(store.acquire_all(three).await);
    assert_eq!(lock, "modes/pool");
    let waits = with_modes(
        parts(LONG_MS, &["modes/slot-3", "modes/pool", "modes/read"]),
        &[Mode::Exclusive, Mode::Permit { size: 2 }, Mode::Shared],
    );
    let waiting = enqueue_all(store, waits.clone()).await;
    released(store, "modes/pool", one[0].lease_id).await;
    let third = all_granted(waiting).await;
    assert!(third[0].token < third[1].token && third[1].token < third[2].token);
    assert_eq!(store.show(&name("modes/read")).await.unwrap().lease_count, 3);
}

/// As many as one request may name.
pub async fn a_large_group_is_one_step(store: &Store) {
    let locks: Vec<String> =
        (0..LOCKS_PER_ACQUIRE_MAX).map(|n| format!("many-locks/{n}")).collect();
    let locks: Vec<&str> = locks.iter().map(String::as_str).collect();
    let asked = parts(LONG_MS, &locks);
    let grants = take_all(store, asked.clone()).await;
    assert!(grants.windows(2).all(|pair| pair[0].token < pair[1].token));
    let next = parts(LONG_MS, &locks);
    let waiting = enqueue_all(store, next.clone()).await;
    for part in &asked[1..] {
        released(store, part.lock.as_str(), part.lease_id).await;
        assert!(!is_held(store, part.lock.as_str()).await, "granted in parts");
    }
    released(store, locks[0], asked[0].lease_id).await;
    let grants = all_granted(waiting).await;
    assert_eq!(grants.len(), LOCKS_PER_ACQUIRE_MAX);
    release_all(store, &next).await;
}

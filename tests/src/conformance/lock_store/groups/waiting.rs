//! Groups that wait: they hold nothing, keep their places, and hold up no other waiter once they
//! leave.

use std::pin::Pin;

use fence_protocol::SessionId;
use fence_protocol::wire::lock::LockState;
use lock_server::store::ListQuery;

use super::*;

/// A waiting group has places in queues, not leases: the free locks stay free and unlisted, holders
/// stay, and no other client overtakes it.
pub async fn a_waiting_group_holds_nothing_and_keeps_its_places(store: &Store) {
    let busy = grant(store, "places/b", LONG_MS).await;
    let asked = parts(LONG_MS, &["places/a", "places/b", "places/c"]);
    let group = enqueue_all(store, asked.clone()).await;
    for lock in ["places/a", "places/c"] {
        let shown = store.show(&name(lock)).await.unwrap();
        assert_eq!((shown.state, shown.lease_count, shown.queue_length), (LockState::Free, 0, 1));
        assert_eq!(shown.queue[0].lease_id, asked[0].lease_id);
        let late = store.acquire(request(lock, LONG_MS, 0)).await;
        assert!(matches!(late, Err(StoreError::Kept { .. })), "overtaken: {late:?}");
    }
    let query = ListQuery { prefix: "places/".to_owned(), after: None, limit: 10, owner: None };
    let listed = store.list(query).await.unwrap().locks;
    assert_eq!(listed.iter().map(|line| line.lock.as_str()).collect::<Vec<_>>(), ["places/b"]);
    let late = store.acquire_all(parts(0, &["places/c", "places/d"])).await;
    let (lock, why) = refusal(late);
    assert!(matches!(why, StoreError::Kept { .. }), "{why:?}");
    assert_eq!(lock, "places/c");
    let behind = enqueue(store, request("places/c", LONG_MS, LONG_MS)).await;
    released(store, "places/b", busy.lease_id).await;
    let shown = store.show(&name("places/c")).await.unwrap();
    assert_eq!(shown.holder.unwrap().lease_id, asked[0].lease_id, "granted in the same step");
    let grants = all_granted(group).await;
    assert!(grants.windows(2).all(|pair| pair[0].token < pair[1].token));
    assert!(grants.iter().all(|grant| grant.token > busy.token));
    assert!(!behind.is_finished(), "overtaken");
    release_all(store, &asked).await;
    granted(behind).await;
}

/// A client that lost its connection asks again with the same id: its places are the old ones.
pub async fn a_waiting_group_that_repeats_keeps_its_places(store: &Store) {
    let busy = grant(store, "again/b", LONG_MS).await;
    let asked = parts(LONG_MS, &["again/a", "again/b"]);
    let original = enqueue_all(store, asked.clone()).await;
    let behind = enqueue_all(store, parts(LONG_MS, &["again/a", "again/b"])).await;
    let own = store.clone();
    let same = asked.clone();
    let mut repeat = Box::pin(async move { own.acquire_all(same).await });
    tokio::select! {
        biased;
        outcome = &mut repeat => panic!("it did not wait: {outcome:?}"),
        // The store answers these one after the other, long after it has taken the repeat in.
        () = async {
            for _ in 0..20 {
                store.show(&name("again/a")).await.unwrap();
            }
        } => {}
    }
    let repeat = tokio::spawn(repeat);
    assert_eq!(queue_length(store, "again/a").await, 2);
    released(store, "again/b", busy.lease_id).await;
    until("one of the two calls to be answered", || async {
        (original.is_finished() || repeat.is_finished()).then_some(())
    })
    .await;
    let holder = store.show(&name("again/a")).await.unwrap().holder.unwrap();
    assert_eq!(holder.lease_id, asked[0].lease_id);
    let answer = if original.is_finished() { original } else { repeat };
    assert_eq!(all_granted(answer).await[0].token, holder.info.token);
    assert!(!behind.is_finished(), "two groups at once");
    release_all(store, &asked).await;
    all_granted(behind).await;
}

/// A group with a lock that is busy, and behind it another waiter at a lock that is free.
struct Blocked {
    asked: Vec<Acquire>,
    group: WaitingGroup,
    /// Alone at the first lock, which is free.
    behind: Waiting,
    /// At the last one, which is free, and at a lock without other waiters.
    behind_group: WaitingGroup,
    locks: [String; 3],
    busy: Grant,
}

async fn blocked(
    store: &Store,
    way: &str,
    patience_ms: u64,
    session: Option<SessionId>,
) -> Blocked {
    let locks = ["a", "b", "c"].map(|end| format!("blocked-{way}/{end}"));
    let busy = grant(store, &locks[1], LONG_MS).await;
    let mut asked = parts(patience_ms, &[&locks[0], &locks[1], &locks[2]]);
    asked.iter_mut().for_each(|part| part.session = session);
    let group = enqueue_all(store, asked.clone()).await;
    let behind = enqueue(store, request(&locks[0], LONG_MS, LONG_MS)).await;
    let free = format!("blocked-{way}/d");
    let behind_group = enqueue_all(store, parts(LONG_MS, &[&locks[2], &free])).await;
    Blocked { asked, group, behind, behind_group, locks, busy }
}

/// Checks that the waiter behind the group has the lock, and that the busy lock is as it was.
async fn freed(store: &Store, blocked: Blocked) {
    let Blocked { behind, behind_group, locks, busy, asked, .. } = blocked;
    granted(behind).await;
    all_granted(behind_group).await;
    let shown = store.show(&name(&locks[1])).await.unwrap();
    assert_eq!((shown.holder.unwrap().lease_id, shown.queue_length), (busy.lease_id, 0));
    released(store, &locks[1], busy.lease_id).await;
    until_free(store, &locks[1]).await;
    let holder = store.show(&name(&locks[0])).await.unwrap().holder.unwrap();
    assert_ne!(holder.lease_id, asked[0].lease_id);
}

/// Its caller has gone: it leaves every queue, also those of the locks that were free.
pub async fn a_group_that_leaves_frees_those_behind_it(store: &Store) {
    let blocked = blocked(store, "leaves", LONG_MS, None).await;
    blocked.group.abort();
    freed(store, blocked).await;
}

/// The group times out: its error names one lock that it did not get.
pub async fn a_group_that_loses_patience_frees_those_behind_it(store: &Store) {
    let mut blocked = blocked(store, "patience", 12 * SHORT_MS, None).await;
    let ended = soon("the time-out", &mut blocked.group).await.unwrap();
    let (lock, why) = refusal(ended);
    assert!(matches!(why, StoreError::Held { .. }), "{why:?}");
    assert_eq!(lock, blocked.locks[1]);
    blocked.group = tokio::spawn(async { Ok(Vec::new()) });
    freed(store, blocked).await;
}

/// A release of its id at any of its locks takes it out of all queues, for good.
pub async fn a_group_that_is_released_frees_those_behind_it(store: &Store) {
    for place in 0..3 {
        let mut blocked = blocked(store, &format!("released-{place}"), LONG_MS, None).await;
        let asked = blocked.asked.clone();
        let outcome = store.release(&asked[place].lock, asked[place].lease_id).await;
        assert!(matches!(outcome, Err(StoreError::Lost { .. })), "{outcome:?}");
        let ended = soon("the group to be refused", &mut blocked.group).await.unwrap();
        let why = match ended {
            Err(StoreError::Part { refusal, .. }) => *refusal,
            other => other.unwrap_err(),
        };
        assert_eq!(
            why,
            StoreError::Lost { reason: EndReason::Released, why: None, is_known: true }
        );
        blocked.group = tokio::spawn(async { Ok(Vec::new()) });
        freed(store, blocked).await;
        let (_, why) = refusal(store.acquire_all(asked).await);
        assert!(matches!(why, StoreError::Lost { .. }), "{why:?}");
    }
}

/// The end of its session, or its block, takes the group out of every queue.
pub async fn a_group_whose_session_ends_frees_those_behind_it(store: &Store) {
    for way in ["session-ends", "session-blocked"] {
        let id = begin(store, LONG_MS).await;
        let mut blocked = blocked(store, way, LONG_MS, Some(id)).await;
        assert_eq!(store.heartbeat(id).await.unwrap().lease_count, 3);
        match way {
            "session-ends" => drop(store.end_session(id).await.unwrap()),
            _ => drop(store.block_session(id, owner("host is replaced")).await.unwrap()),
        }
        let ended = soon("the group to be refused", &mut blocked.group).await.unwrap();
        let why = match ended {
            Err(StoreError::Part { refusal, .. }) => *refusal,
            other => other.unwrap_err(),
        };
        assert!(matches!(why, StoreError::Session(_)), "{why:?}");
        blocked.group = tokio::spawn(async { Ok(Vec::new()) });
        freed(store, blocked).await;
    }
}

/// Its leases are kept by heartbeats and end together.
pub async fn a_group_of_a_session_is_bound_to_it(store: &Store) {
    let id = begin(store, LONG_MS).await;
    let locks = ["bound-group/a", "bound-group/b", "bound-group/c"];
    let mut asked = parts(0, &locks);
    asked.iter_mut().for_each(|part| {
        part.session = Some(id);
        part.ttl = Ttl::from_ms(SHORT_MS).unwrap();
    });
    let grants = take_all(store, asked.clone()).await;
    assert!(grants.iter().all(|grant| grant.remaining_ms > SHORT_MS), "times of their own");
    assert_eq!(store.heartbeat(id).await.unwrap().lease_count, 3);
    let shown = store.show_session(id).await.unwrap();
    assert_eq!(shown.leases.iter().map(|lease| lease.lock.as_str()).collect::<Vec<_>>(), locks);
    released(store, locks[1], asked[0].lease_id).await;
    let waits = enqueue_all(store, parts(LONG_MS, &locks)).await;
    assert_eq!(store.end_session(id).await.unwrap().lease_count, 2);
    let next = all_granted(waits).await;
    assert!(next[0].token > grants[2].token);
    let late = store.renew(&name(locks[2]), asked[0].lease_id, None).await;
    assert_eq!(lost(late), EndReason::SessionEnded);
}

/// Waits without a task of its own, so that the case decides when the caller looks.
async fn wait_unwatched<'a>(
    store: &'a Store,
    asked: &[Acquire],
) -> Pin<Box<dyn Future<Output = GroupResult> + Send + 'a>> {
    let mut waiting = Box::pin({
        let asked = asked.to_vec();
        async move { store.acquire_all(asked).await }
    });
    tokio::select! {
        outcome = &mut waiting => panic!("it did not wait: {outcome:?}"),
        () = until_queued(store, asked[0].lock.as_str(), 1) => {}
    }
    waiting
}

async fn has_all(store: &Store, asked: &[Acquire]) -> bool {
    for part in asked {
        let holder = store.show(&part.lock).await.unwrap().holder;
        if holder.is_none_or(|holder| holder.lease_id != part.lease_id) {
            return false;
        }
    }
    true
}

/// The grants were made, and their caller went away before it looked: every one of them is handed
/// on at once.
pub async fn an_undelivered_grant_of_a_group_is_rolled_back(store: &Store) {
    let locks = ["undelivered/a", "undelivered/b", "undelivered/c"];
    let busy = grant(store, locks[1], LONG_MS).await;
    let asked = parts(LONG_MS, &locks);
    let waiting = wait_unwatched(store, &asked).await;
    released(store, locks[1], busy.lease_id).await;
    until_true("the grants", || has_all(store, &asked)).await;
    let behind = enqueue(store, request(locks[2], LONG_MS, LONG_MS)).await;
    drop(waiting);
    granted(behind).await;
    for lock in &locks[..2] {
        soon("the lock", store.acquire(request(lock, LONG_MS, LONG_MS))).await.unwrap();
    }
    let (_, why) = refusal(store.acquire_all(asked).await);
    assert!(matches!(why, StoreError::Lost { .. }), "{why:?}");
}

/// The caller lost its connection, retried and got the grants: the late notice that the first
/// call is gone takes none of them away.
pub async fn a_retried_grant_of_a_group_is_not_rolled_back(store: &Store) {
    let locks = ["received/a", "received/b"];
    let busy = grant(store, locks[1], LONG_MS).await;
    let asked = parts(LONG_MS, &locks);
    let waiting = wait_unwatched(store, &asked).await;
    released(store, locks[1], busy.lease_id).await;
    until_true("the grants", || has_all(store, &asked)).await;
    let again = take_all(store, asked.clone()).await;
    drop(waiting);
    for _ in 0..50 {
        assert!(has_all(store, &asked).await, "a lease was taken from its holder");
    }
    let kept = store.renew(&asked[1].lock, asked[1].lease_id, None).await.unwrap();
    assert_eq!(kept.token, again[1].token);
}

/// Two groups that name two busy locks in opposite orders: the first one is granted first.
pub async fn crossing_groups_wait_in_one_order(store: &Store) {
    let one = grant(store, "cross/a", LONG_MS).await;
    let two = grant(store, "cross/b", LONG_MS).await;
    let first = parts(LONG_MS, &["cross/a", "cross/b"]);
    let second = parts(LONG_MS, &["cross/b", "cross/a"]);
    let waits_first = enqueue_all(store, first.clone()).await;
    let waits_second = enqueue_all(store, second.clone()).await;
    for lock in ["cross/a", "cross/b"] {
        let queue = store.show(&name(lock)).await.unwrap().queue;
        let order: Vec<_> = queue.iter().map(|waiter| waiter.lease_id).collect();
        assert_eq!(order, [first[0].lease_id, second[0].lease_id], "{lock}");
    }
    released(store, "cross/b", two.lease_id).await;
    assert!(!is_held(store, "cross/b").await, "granted to a waiter behind the first");
    released(store, "cross/a", one.lease_id).await;
    all_granted(waits_first).await;
    assert!(!waits_second.is_finished());
    release_all(store, &first).await;
    let grants = all_granted(waits_second).await;
    assert!(grants[0].token < grants[1].token, "in the order of the request");
}

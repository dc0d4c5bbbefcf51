//! Kinds of lock and requests for several locks, at servers that share a Redis.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LockName, Owner, Ttl};
use fence_tests::key_file::{lease_id, session_id};
use fence_tests::redis_server::Redis;
use fence_tests::store_options::patient;
use fence_tests::wait::{soon, until_true};
use lease::StoredWaiter;
use lock_server::engines::options::StoreOptions;
use lock_server::store::{Acquire, Grant, Limits, LockStore, Mode, NewSession, StoreError};
use service_kit::Kit;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

type Store = Arc<dyn LockStore>;
type GrantResult = Result<Vec<Grant>, StoreError>;

const LONG_MS: u64 = 600_000;

/// A liveness that no test outlasts: a server that is slow on a busy machine is not taken for dead.
pub(super) const LASTING: Duration = Duration::from_secs(60);
/// A liveness that a test awaits the end of.
pub(super) const BRIEF: Duration = Duration::from_secs(5);

/// A server's store.
pub(super) async fn server(redis: &Redis) -> Store {
    server_with(redis, LASTING).await
}

/// A server's store that counts as dead when it was silent for so long, and gives others as long to
/// claim.
pub(super) async fn server_with(redis: &Redis, liveness: Duration) -> Store {
    let limits = Limits { ended_retention_ms: 100, session_leases: 2, ..Limits::default() };
    let options = StoreOptions { limits, liveness, ..patient() };
    let url = redis.url().parse().unwrap();
    lock_server::engines::open(&url, &options, &Kit::new("shared")).await.unwrap()
}

pub(super) fn name(lock: &str) -> LockName {
    LockName::new(lock).unwrap()
}

pub(super) fn request(lock: &str, ttl_ms: u64, wait_ms: u64) -> Acquire {
    let owner = Owner::new("shared").unwrap();
    let ttl = Ttl::from_ms(ttl_ms).unwrap();
    Acquire { wait_ms, ..Acquire::new(name(lock), lease_id(), owner, ttl) }
}

fn group(locks: &[&str]) -> Vec<Acquire> {
    let lease_id = lease_id();
    locks.iter().map(|lock| Acquire { lease_id, ..request(lock, LONG_MS, LONG_MS) }).collect()
}

pub(super) async fn queue_of(store: &Store, lock: &str, length: usize) {
    until_true("the queue", || async {
        store.show(&name(lock)).await.unwrap().queue_length == length
    })
    .await;
}

/// The servers of the requests in the queue of a lock.
pub(crate) async fn servers_of(redis: &Redis, lock: &str) -> Vec<u32> {
    let items = format!("{{fence:default}}:lock:{lock}#");
    let waiters: Vec<Vec<u8>> = redis.run(&["ZRANGE", &items, "0", "-1"]).await;
    let server = |waiter: &Vec<u8>| {
        let end = waiter.iter().position(|byte| *byte == 0).expect("a place");
        lease::from_bytes::<StoredWaiter>(&waiter[end + 1..]).unwrap().origin().0
    };
    waiters.iter().map(server).collect()
}

/// Waits at the last place of every queue.
async fn enqueue(store: &Store, parts: &[Acquire]) -> JoinHandle<GrantResult> {
    let behind = store.show(&parts[0].lock).await.unwrap().queue_length;
    let own = store.clone();
    let asked = parts.to_vec();
    let waiting = tokio::spawn(async move { own.acquire_all(asked).await });
    queue_of(store, parts[0].lock.as_str(), behind + 1).await;
    waiting
}

async fn all_granted(waiting: JoinHandle<GrantResult>) -> Vec<Grant> {
    soon("the grants", waiting).await.unwrap().unwrap()
}

/// A server that dies with the group that waits there, from one moment to the next.
async fn enqueue_at_a_dying_server(
    redis: &Redis,
    parts: &[Acquire],
    liveness: Duration,
) -> Runtime {
    let runtime = Runtime::new().unwrap();
    let url = redis.url();
    let asked = parts.to_vec();
    runtime.spawn(async move {
        let options = StoreOptions { liveness, ..patient() };
        let kit = Kit::new("dying");
        let store =
            lock_server::engines::open(&url.parse().unwrap(), &options, &kit).await.unwrap();
        store.acquire_all(asked).await
    });
    runtime
}

/// The first of its own queue, and behind a group in another one that is free: it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_waiter_overtakes_a_waiting_group() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let first = store.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let last = store.acquire(request("c", LONG_MS, 0)).await.unwrap();
    let ahead = enqueue(&store, &group(&["b", "c"])).await;
    let behind = enqueue(&store, &group(&["a", "b"])).await;
    store.release(&name("a"), first.lease_id).await.unwrap();
    assert!(store.show(&name("b")).await.unwrap().holder.is_none(), "overtaken");
    // What is remembered of the locks goes long before what waits for them.
    let _: () = redis.run(&["SET", "canary", "1", "PX", "300"]).await;
    until_true("the time of idle records to pass", || async {
        redis.run::<u64>(&["EXISTS", "canary"]).await == 0
    })
    .await;
    for lock in ["a", "b"] {
        let newcomer = store.acquire(request(lock, LONG_MS, 0)).await;
        assert!(matches!(newcomer, Err(StoreError::Kept { .. })), "{newcomer:?}");
    }
    store.release(&name("c"), last.lease_id).await.unwrap();
    let grants = all_granted(ahead).await;
    store.release(&name("b"), grants[0].lease_id).await.unwrap();
    all_granted(behind).await;
}

/// An id that holds one of the locks already is not granted the others: that would be a second
/// grant. Nor does a group get past the bound of its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_refused_as_a_whole() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let asked = group(&["a", "b", "c"]);
    store.acquire(asked[0].clone()).await.unwrap();
    let outcome = store.acquire_all(asked).await;
    assert!(
        matches!(&outcome, Err(StoreError::Part { lock, refusal })
        if lock.as_str() == "b" && matches!(**refusal, StoreError::Lost { .. })),
        "{outcome:?}"
    );
    let session_id = session_id();
    let owner = Owner::new("shared").unwrap();
    let ttl = Ttl::from_ms(LONG_MS).unwrap();
    let new = NewSession { session_id, owner, ttl, metadata: None, principal: None };
    store.create_session(new).await.unwrap();
    let bound = |part| Acquire { session: Some(session_id), ..part };
    let outcome = store.acquire_all(group(&["d", "e", "f"]).into_iter().map(bound).collect()).await;
    assert!(
        matches!(&outcome, Err(StoreError::Part { refusal, .. })
        if matches!(**refusal, StoreError::Limit { limit: 2, .. })),
        "{outcome:?}"
    );
    store.acquire_all(group(&["d", "e"]).into_iter().map(bound).collect()).await.unwrap();
    assert_eq!(store.end_session(session_id).await.unwrap().lease_count, 2);
}

/// A group that waits at one server is granted by another, in the order of arrival at both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_two_servers_stand_in_one_order() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let two = server(&redis).await;
    let first = one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let second = two.acquire(request("b", LONG_MS, 0)).await.unwrap();
    let of_two = group(&["b", "a", "c"]);
    let of_one = group(&["c", "a", "b"]);
    let waits_at_two = enqueue(&two, &of_two).await;
    let waits_at_one = enqueue(&one, &of_one).await;
    one.release(&name("a"), first.lease_id).await.unwrap();
    assert!(one.show(&name("c")).await.unwrap().holder.is_none(), "held while it waits");
    one.release(&name("b"), second.lease_id).await.unwrap();
    let grants = all_granted(waits_at_two).await;
    assert!(second.token < grants[0].token, "{grants:?}");
    assert!(grants.is_sorted_by_key(|grant| grant.token), "{grants:?}");
    for part in &of_two {
        assert!(!waits_at_one.is_finished());
        one.release(&part.lock, part.lease_id).await.unwrap();
    }
    let grants = all_granted(waits_at_one).await;
    assert!(grants.is_sorted_by_key(|grant| grant.token), "{grants:?}");
}

/// The group is granted, and no server claims it: it is rolled back at each of its locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_no_server_claims_is_rolled_back_as_a_whole() {
    let redis = Redis::start().await;
    let one = server_with(&redis, BRIEF).await;
    let first = one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let delayed = |part| Acquire { lock_delay_ms: LONG_MS, ..part };
    let lost: Vec<Acquire> = group(&["a", "b"]).into_iter().map(delayed).collect();
    // It counts as alive for long enough: the group is granted.
    let dying = enqueue_at_a_dying_server(&redis, &lost, 2 * BRIEF).await;
    queue_of(&one, "b", 1).await;
    let own = one.clone();
    // The lock is free, and reserved by the order of the queue.
    let refused = one.acquire(request("b", LONG_MS, 0)).await;
    assert!(matches!(refused, Err(StoreError::Kept { queue_length: 1 })), "{refused:?}");
    let behind = tokio::spawn(async move { own.acquire(request("b", LONG_MS, LONG_MS)).await });
    queue_of(&one, "b", 2).await;
    dying.shutdown_background();
    one.release(&name("a"), first.lease_id).await.unwrap();
    let granted = soon("the waiter behind the group", behind).await.unwrap().unwrap();
    let next = soon("the other lock", one.acquire(request("a", LONG_MS, LONG_MS))).await.unwrap();
    // Two tokens for the group; and no delay for a grant that no client received.
    assert!(granted.token.get() > first.token.get() + 2 && next.token > granted.token);
    for lock in ["a", "b"] {
        let ended = &one.show(&name(lock)).await.unwrap().history[0];
        assert_eq!((ended.lease_id, ended.reason), (lost[0].lease_id, EndReason::Expired));
    }
}

/// Once a server is known to be dead, its group is not granted on the way to those that live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_servers_group_is_passed_over() {
    let redis = Redis::start().await;
    let one = server_with(&redis, BRIEF).await;
    let first = one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let dying = enqueue_at_a_dying_server(&redis, &group(&["a", "b"]), BRIEF).await;
    queue_of(&one, "b", 1).await;
    let own = one.clone();
    let behind = tokio::spawn(async move { own.acquire(request("a", LONG_MS, LONG_MS)).await });
    queue_of(&one, "a", 2).await;
    dying.shutdown_background();
    queue_of(&one, "a", 1).await;
    // No other caller has to wait for its group at the lock that it only reserved.
    one.acquire(request("b", LONG_MS, 0)).await.unwrap();
    one.release(&name("a"), first.lease_id).await.unwrap();
    soon("the waiter", behind).await.unwrap().unwrap();
    let history = one.show(&name("a")).await.unwrap().history;
    let ended: Vec<_> = history.iter().map(|ended| ended.lease_id).collect();
    assert_eq!(ended, [first.lease_id], "no other was granted in between");
}

/// A waiter behind a dead server's group at a lock that is free is granted when its server is known
/// to be dead: nothing else happens at that lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_servers_group_holds_no_waiter_up() {
    let redis = Redis::start().await;
    let one = server_with(&redis, BRIEF).await;
    one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let shared = |wait_ms| Acquire { mode: Mode::Shared, ..request("read", LONG_MS, wait_ms) };
    one.acquire(shared(0)).await.unwrap();
    let dying = enqueue_at_a_dying_server(&redis, &group(&["a", "b", "read"]), BRIEF).await;
    queue_of(&one, "b", 1).await;
    let own = one.clone();
    let behind = tokio::spawn(async move { own.acquire(request("b", LONG_MS, LONG_MS)).await });
    queue_of(&one, "b", 2).await;
    let own = one.clone();
    let asked = shared(LONG_MS);
    let reader = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(&one, "read", 2).await;
    dying.shutdown_background();
    soon("the waiter behind a dead group", behind).await.unwrap().unwrap();
    soon("a reader behind a dead writer", reader).await.unwrap().unwrap();
}

/// A dead writer at the front does not keep readers out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_writer_keeps_no_reader_out() {
    let redis = Redis::start().await;
    let one = server_with(&redis, BRIEF).await;
    let shared = |wait_ms| Acquire { mode: Mode::Shared, ..request("read", LONG_MS, wait_ms) };
    one.acquire(shared(0)).await.unwrap();
    let dying = enqueue_at_a_dying_server(&redis, &group(&["read"]), BRIEF).await;
    queue_of(&one, "read", 1).await;
    assert!(matches!(one.acquire(shared(0)).await, Err(StoreError::Held { .. })));
    dying.shutdown_background();
    soon("a reader", async {
        while one.acquire(shared(0)).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(one.show(&name("read")).await.unwrap().lease_count, 2);
}

/// A client that lost its server continues at another, with its old places.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_moves_to_the_server_where_it_is_repeated() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let first = one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let moves = group(&["a", "b"]);
    let dying = enqueue_at_a_dying_server(&redis, &moves, LASTING).await;
    queue_of(&one, "a", 1).await;
    let later = enqueue(&one, &group(&["b", "a"])).await;
    dying.shutdown_background();
    let reversed: Vec<Acquire> = moves.iter().rev().cloned().collect();
    let outcome = one.acquire_all(reversed).await;
    assert!(
        matches!(&outcome, Err(StoreError::Part { refusal, .. })
        if matches!(**refusal, StoreError::IdConflict { .. })),
        "{outcome:?}"
    );
    let own = one.clone();
    let asked = moves.clone();
    let moved = tokio::spawn(async move { own.acquire_all(asked).await });
    until_true("the new server", || async {
        let servers = servers_of(&redis, "a").await;
        servers.len() == 2 && servers[0] == servers[1]
    })
    .await;
    one.release(&name("a"), first.lease_id).await.unwrap();
    let grants = all_granted(moved).await;
    assert!(grants[0].token < grants[1].token, "{grants:?}");
    assert!(!later.is_finished());
    for part in &moves {
        one.release(&part.lock, part.lease_id).await.unwrap();
    }
    all_granted(later).await;
}

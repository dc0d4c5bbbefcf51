//! Two lock-servers on one Redis: one queue, one order of tokens.

use fence_protocol::Code;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::soon;
use serde_json::json;

use super::lock_server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_two_servers_stand_in_one_queue() {
    let redis = Redis::start().await;
    let one = lock_server(&redis).await;
    let two = lock_server(&redis).await;
    let servers = [one.locks(), two.locks()];
    let mut last = servers[0].grant("fifo", 60_000).await;
    servers[1].acquire("fifo", json!({})).await.problem(Code::LockHeld);
    let mut queue = Vec::new();
    for place in 1..=6 {
        let locks = servers[place % 2].clone();
        let owner = format!("waiter {place}");
        queue.push(tokio::spawn(async move {
            let ask = json!({"ttl_ms": 60_000, "wait_ms": 60_000, "owner": owner});
            locks.acquire("fifo", ask).await.lease()
        }));
        servers[0].queue_of("fifo", place).await;
    }
    for (index, waiting) in queue.into_iter().enumerate() {
        // Released at either server, whichever the next one waits at.
        servers[(index / 2) % 2].release("fifo", last.lease_id).await.expect(200);
        let next = soon("the next grant", waiting).await.unwrap();
        assert_eq!(next.owner.as_str(), format!("waiter {}", index + 1));
        assert!(next.token > last.token);
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_at_one_server_wakes_the_waiter_of_another() {
    let redis = Redis::start().await;
    let one = lock_server(&redis).await;
    let two = lock_server(&redis).await;
    let first = one.locks().grant("wakes", 3_000).await;
    let ask = json!({"ttl_ms": 60_000, "wait_ms": 60_000});
    let next = soon("the grant after expiry", two.locks().acquire("wakes", ask)).await.lease();
    assert!(next.token > first.token);
}

/// A server dies with the first of the queue: its waiter costs no more than its liveness time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_servers_waiters_are_passed_over() {
    let redis = Redis::start().await;
    let server = || Setup::lock_server(&redis.url()).args(&["--liveness", "6s"]);
    let one = server().start().await;
    let mut two = server().start().await;
    let locks = one.locks();
    let first = locks.grant("dead", 60_000).await;
    let dying = two.locks();
    let lost = tokio::spawn(async move {
        dying.try_acquire("dead", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await
    });
    locks.queue_of("dead", 1).await;
    let own = locks.clone();
    let alive = tokio::spawn(async move {
        own.acquire("dead", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await.lease()
    });
    locks.queue_of("dead", 2).await;
    two.process.kill();
    assert!(soon("the cut connection", lost).await.unwrap().is_err());
    locks.release("dead", first.lease_id).await.expect(200);
    let next = soon("the living waiter", alive).await.unwrap();
    assert!(next.token > first.token);
}

/// Once its liveness time is over, a dead server's waiters cost nothing at all: none of them is
/// granted on the way to the one that lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_server_that_is_known_dead_are_skipped_at_once() {
    let redis = Redis::start().await;
    let server = || Setup::lock_server(&redis.url()).args(&["--liveness", "6s"]);
    let one = server().start().await;
    let mut two = server().start().await;
    let locks = one.locks();
    let dying = two.locks();
    let first = locks.grant("known-dead", 60_000).await;
    let ask = json!({"wait_ms": 60_000, "ttl_ms": 60_000});
    for place in 1..=3 {
        let dying = dying.clone();
        let ask = ask.clone();
        drop(tokio::spawn(async move { dying.try_acquire("known-dead", ask).await }));
        locks.queue_of("known-dead", place).await;
    }
    let own = locks.clone();
    let alive = tokio::spawn(async move { own.acquire("known-dead", ask).await.lease() });
    locks.queue_of("known-dead", 4).await;
    two.process.kill();
    locks.queue_of("known-dead", 1).await;
    locks.release("known-dead", first.lease_id).await.expect(200);
    soon("the living waiter", alive).await.unwrap();
    let history = locks.show("known-dead").await.history;
    let ended: Vec<_> = history.iter().map(|ended| ended.lease_id).collect();
    assert_eq!(ended, [first.lease_id], "no other was granted in between");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_one_server_is_renewed_and_released_at_another() {
    let redis = Redis::start().await;
    let mut one = lock_server(&redis).await;
    let two = lock_server(&redis).await;
    let ask =
        json!({"lease_id": fence_tests::key_file::lease_id(), "ttl_ms": 60_000, "owner": "me"});
    let lease = one.locks().acquire("moves", ask.clone()).await.lease();
    one.process.kill();
    let locks = two.locks();
    assert_eq!(locks.acquire("moves", ask.clone()).await.lease().token, lease.token);
    assert_eq!(locks.renew("moves", lease.lease_id).await.lease().token, lease.token);
    locks.release("moves", lease.lease_id).await.expect(200);
    locks.acquire("moves", ask).await.problem(Code::LeaseLost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_are_apart() {
    let redis = Redis::start().await;
    let setup = |name: &str| {
        fence_tests::servers::Setup::lock_server(&redis.url()).args(&["--namespace", name])
    };
    let one = setup("one").start().await;
    let two = setup("two").start().await;
    let lease = one.locks().grant("same", 60_000).await;
    assert!(lease.fencing_token.contains("ns=\"one\""), "{}", lease.fencing_token);
    two.locks().grant("same", 60_000).await;
}

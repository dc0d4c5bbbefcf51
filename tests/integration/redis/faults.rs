//! The network to Redis, and Redis itself, at their worst.

use fence_protocol::Code;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use serde_json::json;

use super::lock_server;

async fn behind(proxy: &FaultProxy) -> Server {
    Setup::lock_server(&format!("redis://{}", proxy.address()))
        .args(&["--store-timeout", "8s", "--ended-retention", "10m"])
        .start()
        .await
}

async fn until_ready(server: &Server) {
    let api = server.locks().0;
    until_true("readyz", || async { api.get("/readyz").await.status == 200 }).await;
}

/// The script ran, its reply was lost: the outcome is unknown, and the repeat finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_unknown_and_the_repeat_gets_the_same_grant() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let other = lock_server(&redis).await;
    locks.grant("warm", 60_000).await;
    proxy.set(Fault::DropReplies);
    let ask = json!({"lease_id": lease_id(), "ttl_ms": 60_000, "owner": "me"});
    let reply = soon("an answer", locks.acquire("lost", ask.clone())).await;
    let problem = reply.problem(Code::OutcomeUnknown);
    assert!(problem.retryable && problem.hint.contains("lease_id"), "{problem:?}");
    proxy.set(Fault::None);
    proxy.cut();
    let token = other.locks().acquire("lost", ask.clone()).await.lease().token;
    until_true("the same grant from the first server", || async {
        let reply = locks.acquire("lost", ask.clone()).await;
        !matches!(reply.status, 503 | 504) && {
            assert_eq!(reply.lease().token, token);
            true
        }
    })
    .await;
}

/// A caller that gave no id cannot retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_without_an_id_leaves_no_lease() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let other = lock_server(&redis).await;
    locks.grant("warm", 60_000).await;
    proxy.set(Fault::DropReplies);
    for (path, body) in [
        ("/v1/locks/one/acquire", json!({"ttl_ms": 600_000})),
        ("/v1/acquire", json!({"ttl_ms": 600_000, "locks": [{"lock": "a"}, {"lock": "b"}]})),
    ] {
        let reply = soon("an answer", locks.0.post(path, &body)).await;
        assert!(matches!(reply.status, 503 | 504), "{}", reply.status);
    }
    assert!(other.locks().show("one").await.holder.is_some(), "it was granted all the same");
    proxy.set(Fault::None);
    proxy.cut();
    for lock in ["one", "a", "b"] {
        until_true("the lease to be rolled back", || async {
            other.locks().show(lock).await.holder.is_none()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_release_is_unknown_and_the_repeat_learns_it() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    proxy.set(Fault::DropReplies);
    let reply = soon("an answer", locks.release("a", lease.lease_id)).await;
    reply.problem(Code::OutcomeUnknown);
    proxy.set(Fault::None);
    proxy.cut();
    until_true("the repeat to learn it", || async {
        let reply = locks.release("a", lease.lease_id).await;
        !matches!(reply.status, 503 | 504) && {
            assert_eq!(
                reply.problem(Code::LeaseLost).extension("reason"),
                Some("released".to_owned())
            );
            true
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_refuses_is_unavailable_and_comes_back() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    proxy.set(Fault::Refuse);
    until_true("503", || async {
        let reply = locks.renew("a", lease.lease_id).await;
        if reply.status == 503 {
            reply.problem(Code::StoreUnavailable);
            assert!(!reply.header("retry-after").is_empty());
        }
        reply.status == 503
    })
    .await;
    until_true("readyz to fail", || async { locks.0.get("/readyz").await.status == 503 }).await;
    locks.0.get("/livez").await.expect(200);
    proxy.set(Fault::None);
    until_ready(&server).await;
    let renewed = until("a renewal", || async {
        let reply = locks.renew("a", lease.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await;
    assert_eq!(renewed.token, lease.token);
}

/// A Redis that says nothing costs its callers a bounded time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_redis_is_unknown_in_bounded_time() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    proxy.set(Fault::Blackhole);
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    proxy.set(Fault::None);
    proxy.cut();
    until_ready(&server).await;
    until_true("a renewal", || async { locks.renew("a", lease.lease_id).await.status == 200 })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_redis_is_unknown_in_bounded_time() {
    let redis = Redis::start().await;
    let server = Setup::lock_server(&redis.url()).args(&["--store-timeout", "3s"]).start().await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    redis.process().pause();
    let reply = soon("an answer", locks.renew("a", lease.lease_id)).await;
    redis.process().resume();
    assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    until_true("a renewal", || async { locks.renew("a", lease.lease_id).await.status == 200 })
        .await;
}

/// The connection breaks again and again under those who wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_no_waiter() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = behind(&proxy).await;
    let locks = server.locks();
    let other = lock_server(&redis).await.locks();
    drop(other);
    let first = locks.grant("a", 60_000).await;
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("a", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await
    });
    locks.queue_of("a", 1).await;
    for _ in 0..3 {
        proxy.cut();
        until_true("a renewal", || async { locks.renew("a", first.lease_id).await.status == 200 })
            .await;
    }
    locks.release("a", first.lease_id).await.expect(200);
    let next = soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > first.token);
}

/// A Redis that is not there, and one that accepts and says nothing: one sentence with the URL.
#[tokio::test]
async fn an_unreachable_redis_at_start_is_reported() {
    let redis = Redis::start().await;
    let silent = FaultProxy::before(&redis.address()).await;
    silent.set(Fault::Blackhole);
    let absent = format!("127.0.0.1:{}", fence_tests::ports::unused());
    for address in [absent, silent.address()] {
        let url = format!("redis://{address}");
        for setup in [Setup::lock_server(&url), Setup::fenced_store(&url)] {
            let output = setup.refused().await;
            assert_eq!(output.code, 1, "{output:?}");
            assert!(output.stderr.contains(&url), "{}", output.stderr);
            assert!(output.stdout.is_empty(), "it said that it listens: {}", output.stdout);
        }
    }
}

//! A lock server that is paused for a while, as a suspended machine is, and then resumes.

use std::time::Duration;

use fence_protocol::Code;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use crate::redis::kinds::servers_of;

/// A time to live that no test outlasts, and the longest wait that a request may ask for.
const LONG_MS: u64 = 300_000;
/// A server that is taken for dead soon after it is paused.
const MORTAL: [&str; 2] = ["--liveness", "2s"];

async fn two_servers(redis: &Redis) -> (Server, Server) {
    let setup = Setup::lock_server(&redis.url()).args(&MORTAL);
    (setup.start().await, setup.start().await)
}

/// Its waiter left it and asked another server, with the same id, and was granted there. What it
/// does about its broken connection when it resumes rolls back no grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_not_take_back_what_another_server_granted() {
    let redis = Redis::start().await;
    let (one, two) = two_servers(&redis).await;
    let other = two.locks();
    let held = other.grant("moved", LONG_MS).await;
    let ask = json!({"lease_id": lease_id(), "owner": "me", "ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    let first = one.locks();
    let asked = ask.clone();
    let given_up = tokio::spawn(async move { first.try_acquire("moved", asked).await });
    other.queue_of("moved", 1).await;
    one.process.pause();
    given_up.abort();
    let before = servers_of(&redis, "moved").await;
    let second = two.locks();
    let asked = ask.clone();
    let again = tokio::spawn(async move { second.try_acquire("moved", asked).await });
    // It moves in the queue, to the server that is alive.
    until_true("the repeat to take its place over", || async {
        servers_of(&redis, "moved").await != before
    })
    .await;
    other.release("moved", held.lease_id).await.expect(200);
    let granted = soon("the grant", again).await.unwrap().unwrap().lease();
    one.process.resume();
    // It learns that its connection broke, and has withdrawn by the time that it answers this.
    until_true("the other server to resume", || async {
        one.locks().0.get("/readyz").await.status == 200
    })
    .await;
    for _ in 0..20 {
        one.locks().show("moved").await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let holder = other.show("moved").await.holder.expect("an acknowledged lease was rolled back");
    assert_eq!(holder.lease_id, granted.lease_id);
    let renewed = other.renew("moved", granted.lease_id).await.lease();
    assert_eq!(renewed.token, granted.token);
}

/// While it was paused it was taken for dead and its waiters were passed over. When it resumes they
/// wait again, and no waiter waits for a lock that is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_waiters_wait_on() {
    let redis = Redis::start().await;
    let (one, two) = two_servers(&redis).await;
    let other = two.locks();
    let mut waiting = Vec::new();
    let mut held = Vec::new();
    // A waiter of the other server behind one of this: it sees when that is passed over.
    let seen = other.grant("seen", LONG_MS).await;
    let mut behind = Vec::new();
    for (place, locks) in [one.locks(), two.locks()].into_iter().enumerate() {
        behind.push(tokio::spawn(async move {
            let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
            locks.try_acquire("seen", ask).await
        }));
        other.queue_of("seen", place + 1).await;
    }
    for number in 0..10 {
        let lock = format!("passed/{number}");
        held.push(other.grant(&lock, LONG_MS).await);
        let locks = one.locks();
        let name = lock.clone();
        waiting.push(tokio::spawn(async move {
            let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
            locks.try_acquire(&name, ask).await
        }));
        other.queue_of(&lock, 1).await;
    }
    one.process.pause();
    other.queue_of("seen", 1).await;
    for lease in &held {
        other.release(lease.lock.as_str(), lease.lease_id).await.expect(200);
        assert!(other.show(lease.lock.as_str()).await.holder.is_none());
    }
    one.process.resume();
    for (lease, waiter) in held.iter().zip(waiting) {
        let granted = soon("a waiter that was passed over", waiter).await.unwrap().unwrap().lease();
        assert!(granted.token > lease.token);
    }
    other.release("seen", seen.lease_id).await.expect(200);
    soon("the waiter behind", behind.remove(1)).await.unwrap().unwrap().lease();
}

/// Redis goes away while a client waits, and is unreachable when the patience ends. Whether the
/// waiter is still granted the lock is not known, and is not reported as if nothing had been done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_that_ends_without_redis_is_an_unknown_outcome() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let store = format!("redis://{}", proxy.address());
    let server = Setup::lock_server(&store).args(&MORTAL).start().await;
    let second = Setup::lock_server(&redis.url()).args(&MORTAL).start().await;
    let other = second.locks();
    let held = other.grant("away", LONG_MS).await;
    let ask = json!({"lease_id": lease_id(), "owner": "me", "ttl_ms": LONG_MS, "wait_ms": 5_000});
    let locks = server.locks();
    let asked = ask.clone();
    let waiting = tokio::spawn(async move { locks.acquire("away", asked).await });
    other.queue_of("away", 1).await;
    proxy.set(Fault::Refuse);
    let answer = soon("the end of the patience", waiting).await.unwrap();
    answer.problem(Code::OutcomeUnknown);
    proxy.set(Fault::None);
    other.release("away", held.lease_id).await.expect(200);
    // The repeat finds out, and no client is left that holds the lock without knowing it.
    let repeat = other.acquire("away", ask).await;
    assert!(matches!(repeat.status, 200 | 410), "{repeat:?}");
    if repeat.status == 410 {
        let next = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
        soon("the lock to be free", other.acquire("away", next)).await.lease();
    }
}

//! Promises of a server over a link whose replies come late: `ttl_ms` is what remains when the
//! reply is sent on, not when the script ran.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};

const TTL_MS: u64 = 30_000;
/// Each way.
const LATE_MS: u64 = 150;

/// At least the way back is off the time that was granted.
fn is_less(reply: &Value, field: &str) {
    let left_ms = reply[field].as_u64().unwrap();
    assert!(left_ms + LATE_MS <= TTL_MS, "{left_ms} of {TTL_MS} ms, {LATE_MS} ms late: {reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_counts_the_way_back() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let url = format!("redis://{}", proxy.address());
    let args = ["--store-timeout", "10s", "--clock-jump-limit", "10s", "--liveness", "30s"];
    let server = Setup::lock_server(&url).args(&args).start().await;
    let locks = server.locks();
    let post = async |path: &str, body: Value| {
        let reply = soon("a reply", locks.0.post(path, &body)).await;
        reply.expect(200).json()
    };
    proxy.set(Fault::Delay(Duration::from_millis(LATE_MS)));

    let lease = lease_id();
    let ask = json!({"lease_id": lease, "ttl_ms": TTL_MS});
    for _ in 0..2 {
        is_less(&post("/v1/locks/a/acquire", ask.clone()).await, "ttl_ms");
    }
    is_less(&post("/v1/locks/a/renew", json!({"lease_id": lease})).await, "ttl_ms");
    let several = json!({"ttl_ms": TTL_MS, "locks": [{"lock": "b"}, {"lock": "c"}]});
    for reply in post("/v1/acquire", several).await["leases"].as_array().unwrap() {
        is_less(reply, "ttl_ms");
    }
    let session = post("/v1/sessions", json!({"owner": "me", "ttl_ms": TTL_MS})).await;
    is_less(&session, "expires_in_ms");
    let id = session["session_id"].as_str().unwrap();
    let beat = post(&format!("/v1/sessions/{id}/heartbeat"), json!({})).await;
    is_less(&beat, "expires_in_ms");

    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        own.acquire("a", json!({"ttl_ms": TTL_MS, "wait_ms": 60_000})).await
    });
    locks.queue_of("a", 1).await;
    post("/v1/locks/a/release", json!({"lease_id": lease})).await;
    is_less(&soon("the grant", waiting).await.unwrap().expect(200).json(), "ttl_ms");
}

/// A server starts over such a link, and comes back after a cut: each question has its own time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_is_a_link() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let url = format!("redis://{}", proxy.address());
    // Per piece: a script comes in three of them, so its reply takes 0.4 s.
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let args = ["--clock-jump-limit", "10s", "--event-history", "0"];
    let server = Setup::lock_server(&url).args(&args).start().await;
    let locks = server.locks();
    let granted = || async {
        let lock = format!("a/{}", lease_id());
        locks.acquire(&lock, json!({"ttl_ms": TTL_MS})).await.status == 200
    };
    until_true("a grant", granted).await;
    proxy.cut();
    until_true("a grant after the cut", granted).await;
}

/// A question that is not answered at the start is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_question_without_a_reply_is_named() {
    let redis = Redis::start().await;
    for (word, step) in [
        ("run_id", "its lineage"),
        ("NOMKSTREAM", "the rights of \"default\""),
        ("Commits groups of writes", "the script commit.lua"),
    ] {
        let proxy = FaultProxy::before(&redis.address()).await;
        proxy.set(Fault::DropRepliesAfter(word));
        let url = format!("redis://{}", proxy.address());
        let said = Setup::lock_server(&url).args(&["--store-timeout", "5s"]).refused().await;
        assert!(said.stderr.contains("no reply in time"), "{word}: {}", said.stderr);
        assert!(said.stderr.contains(step), "{word}: {}", said.stderr);
    }
}

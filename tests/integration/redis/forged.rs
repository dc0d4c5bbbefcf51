//! Messages that some other client publishes on the channels of lock servers: each makes a server
//! read a record, and nothing else.

use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{soon, until};
use serde_json::json;

use super::lock_server;

/// Publishes messages to the only server that there is.
pub(super) async fn publish(redis: &Redis, messages: &[String]) {
    let channels: Vec<String> = until("the channel of the server", || async {
        let found = redis.run::<Vec<String>>(&["PUBSUB", "CHANNELS", "{fence:default}:c:*"]).await;
        (!found.is_empty()).then_some(found)
    })
    .await;
    assert_eq!(channels.len(), 1, "{channels:?}");
    for message in messages {
        let received: u64 = redis.run(&["PUBLISH", &channels[0], message]).await;
        assert_eq!(received, 1, "{message}");
    }
}

/// Publishes messages, and then one about `marker`, a lock that the server has a waiter for and
/// whose record is deleted here: once that waiter is granted, the messages before were read.
pub(super) async fn forge(redis: &Redis, messages: &[String], marker: &str) {
    let _: u64 = redis.run(&["DEL", &format!("{{fence:default}}:lock:{marker}")]).await;
    publish(redis, messages).await;
    publish(redis, &[format!("lock:{marker}")]).await;
}

/// Whatever is said of waiters, they keep their place and get what they wait for; and a lease that
/// was granted is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_throw_no_waiter_out() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let held = locks.grant("b", 60_000).await;
    let group = lease_id();
    let both = json!({"lease_id": group, "ttl_ms": 60_000, "wait_ms": 60_000, "owner": "group",
        "locks": [{"lock": "a"}, {"lock": "b"}]});
    let own = locks.clone();
    let waiting = tokio::spawn(async move { own.0.post("/v1/acquire", &both).await });
    for lock in ["a", "b"] {
        locks.queue_of(lock, 1).await;
    }
    let session = fence_tests::key_file::session_id();
    let records = ["lock:a", "lock:b", "lock:none", "lock:a,b", "session:7"].map(str::to_owned);
    let mut messages: Vec<String> = records.into_iter().collect();
    messages.push(format!("session:{session}"));
    messages.push(format!("lock:b\t{group}"));
    messages.extend(["", "lock:", "lock", "lock:../x", "ping", "a", "\n"].map(str::to_owned));
    for round in 0..10 {
        let marker = format!("marker/{round}");
        locks.grant(&marker, 60_000).await;
        let own = locks.clone();
        let lock = marker.clone();
        let marks = tokio::spawn(async move {
            own.acquire(&lock, json!({"ttl_ms": 60_000, "wait_ms": 60_000})).await
        });
        locks.queue_of(&marker, 1).await;
        forge(&redis, &messages, &marker).await;
        soon("the marker", marks).await.unwrap().lease();
        assert_eq!(locks.show("a").await.queue_length, 1);
        assert_eq!(locks.show("b").await.queue_length, 1);
    }
    locks.renew("b", held.lease_id).await.expect(200);
    locks.release("b", held.lease_id).await.expect(200);
    let granted = soon("the grants", waiting).await.unwrap().expect(200).json();
    assert_eq!(granted["leases"].as_array().map(Vec::len), Some(2));
}

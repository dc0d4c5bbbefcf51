//! Messages that some other client publishes on the channels of lock servers: each makes a server ask
//! Redis, and nothing else.

use fence_protocol::LeaseId;
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use super::lock_server;

/// Publishes words to the only server that there is, and then one that names a waiter of its own, which
/// waits for `marker`: that waiter has asked again when this returns, so the words before were read.
pub(super) async fn forge(redis: &Redis, words: &[String], marker: (&str, LeaseId)) {
    let (lock, lease) = marker;
    let queue = format!("{{fence:default}}:q:{lock}");
    let _: u64 = redis.run(&["PERSIST", &queue]).await;
    let channels: Vec<String> = redis.run(&["PUBSUB", "CHANNELS", "{fence:default}:c:*"]).await;
    assert_eq!(channels.len(), 1, "{channels:?}");
    for word in words.iter().chain([&format!("{lock}\t{lease}")]) {
        let heard: u64 = redis.run(&["PUBLISH", &channels[0], word]).await;
        assert_eq!(heard, 1, "{word}");
    }
    until_true("the waiter to ask again", || async {
        redis.run::<i64>(&["PTTL", &queue]).await > 0
    })
    .await;
}

/// Whatever is said of waiters, they keep their place and get what they wait for; and a lease that was
/// granted is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_throw_no_waiter_out() {
    let redis = Redis::start().await;
    let server = lock_server(&redis).await;
    let locks = server.locks();
    let held = locks.grant("b", 60_000).await;
    locks.grant("marker", 60_000).await;
    let [group, marker] = [lease_id(), lease_id()];
    let (own, both) = (
        locks.clone(),
        json!({"lease_id": group, "ttl_ms": 60_000,
        "wait_ms": 60_000, "owner": "group", "locks": [{"lock": "a"}, {"lock": "b"}]}),
    );
    let waiting = tokio::spawn(async move { own.0.post("/v1/acquire", &both).await });
    let (own, ask) = (
        locks.clone(),
        json!({"lease_id": marker, "ttl_ms": 60_000,
        "wait_ms": 60_000}),
    );
    let marks = tokio::spawn(async move { own.acquire("marker", ask).await });
    for lock in ["a", "b", "marker"] {
        locks.queue_of(lock, 1).await;
    }
    // The waiter for both is known by the first of its locks, "a": a message that names that has it ask
    // again, and would hide what the others do.
    let mut words: Vec<String> = ["b", "a,b", "b,a", "marker", "none"]
        .iter()
        .flat_map(|lock| [group, marker, held.lease_id].map(|lease| format!("{lock}\t{lease}")))
        .collect();
    words.extend(["b", "none"].map(|lock| format!("{lock}\t{group}\tb,a")));
    words.extend(["", "\t", "a", "a\tx", "ping\t", "a\tb\tc\td", "\n"].map(str::to_owned));
    for _ in 0..10 {
        forge(&redis, &words, ("marker", marker)).await;
        assert_eq!(locks.show("a").await.queue_length, 1);
        assert_eq!(locks.show("b").await.queue_length, 1);
    }
    locks.renew("b", held.lease_id).await.expect(200);
    locks.release("b", held.lease_id).await.expect(200);
    let granted = soon("the grants", waiting).await.unwrap().expect(200).json();
    assert_eq!(granted["leases"].as_array().map(Vec::len), Some(2));
    marks.abort();
}

//! A text of the operator's before every key.

use fence_tests::event_stream::EventStream;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};
use serde_json::json;

async fn server(redis: &Redis, prefix: &str) -> Server {
    Setup::lock_server(&redis.url()).args(&["--key-prefix", prefix]).start().await
}

async fn keys(redis: &Redis, pattern: &str) -> Vec<String> {
    redis.run(&["KEYS", pattern]).await
}

/// Every key and channel, of locks, waiters, sessions and events.
#[tokio::test]
async fn every_key_and_channel_has_the_prefix() {
    let redis = Redis::start().await;
    let one = server(&redis, "app1:").await;
    let two = server(&redis, "app1:").await;
    let mut stream = EventStream::open(&two.base, "", "").await;
    let session = json!({"owner": "me", "ttl_ms": 60_000});
    let session = one.locks().0.post("/v1/sessions", &session).await.expect(200).json();
    let held = one.locks().acquire("a", json!({"session_id": session["session_id"]})).await.lease();
    let waits = two.locks();
    let waiting = tokio::spawn(async move { waits.acquire("a", json!({"wait_ms": 20_000})).await });
    until_true("the waiter to have its place", || async {
        one.locks().show("a").await.queue_length == 1
    })
    .await;
    let all = keys(&redis, "*").await;
    let named = |key: &String| key.starts_with("app1:{fence:default}:");
    assert!(all.len() >= 8 && all.iter().all(named), "{all:?}");
    let channels = until("the channels of both", || async {
        let found = redis.run::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await;
        (found.len() >= 2).then_some(found)
    })
    .await;
    let named = |channel: &String| channel.starts_with("app1:{fence:default}:c:");
    assert!(channels.len() == 2 && channels.iter().all(named), "{channels:?}");
    one.locks().release("a", held.lease_id).await.expect(200);
    assert!(waiting.await.unwrap().lease().token > held.token, "handed over");
    stream.next().await;
}

/// Two installations in one Redis know nothing of each other, and each has its own counter.
#[tokio::test]
async fn prefixes_are_apart() {
    let redis = Redis::start().await;
    for prefix in [&["--key-prefix", "app1:"][..], &["--key-prefix", "app2:"], &[]] {
        let fresh = ["init", "--fresh", "--store", &redis.url()];
        let said = fence_tests::process::run("lock-server", &[&fresh, prefix].concat()).await;
        assert_eq!(said.code, 0, "{said:?}");
    }
    let plain = Setup::lock_server(&redis.url()).start().await;
    for server in [server(&redis, "app1:").await, server(&redis, "app2:").await, plain] {
        assert_eq!(server.locks().grant("a", 60_000).await.token.get(), 1, "each is the first");
    }
    let again = ["init", "--fresh", "--store", &redis.url(), "--key-prefix", "app1:"];
    let said = fence_tests::process::run("lock-server", &again).await;
    assert!(said.code == 1 && said.stderr.contains("is in use"), "{said:?}");
}

/// The user that the page makes for a prefix is confined to it.
#[tokio::test]
async fn a_user_is_confined_to_the_prefix() {
    let redis = Redis::start().await;
    let user = fence_tests::redis_users::User {
        name: "app1",
        password: "s3cret",
        prefix: "app1:",
        namespace: "default",
    };
    user.make(&redis).await;
    let setup = Setup::lock_server(&user.url(&redis));
    let own = setup.clone().args(&["--key-prefix", "app1:"]).start().await;
    own.locks().grant("a", 60_000).await;
    for args in [&["--key-prefix", "app2:"][..], &[]] {
        let said = setup.clone().args(args).refused().await;
        assert!(said.stderr.contains("lacks rights"), "{said:?}");
    }
    for bad in ["a b", "{a}", "a*"] {
        let said = setup.clone().args(&["--key-prefix", bad]).refused().await;
        assert!(said.code == 64 && said.stderr.contains("is no key prefix"), "{said:?}");
    }
}

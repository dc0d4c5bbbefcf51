//! Scripts, and names that are Fencepost's own: what a client must not reach by any way round.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::servers::Setup;
use serde_json::json;

use super::{Port, port, setup};

const MARKS: &str = "{fence:default}:guard:marks";
/// Stores an empty result in the last of two keys, which deletes it.
const SECOND_STORE: &str = "redis.call('GEOADD', KEYS[1], 1, 1, 'x') \
     return redis.call('GEORADIUS', KEYS[1], 15, 37, 0, 'km', 'STORE', KEYS[1], 'STORE', ARGV[1])";
const SECOND_STORE_BY_MEMBER: &str = "redis.call('GEOADD', KEYS[1], 1, 1, 'x') \
     return redis.call('GEORADIUSBYMEMBER', KEYS[1], 'x', 1, 'km', 'STORE', KEYS[1], \
     'STOREDIST', ARGV[1])";
/// Takes a consumer's name for the keyword.
const SECOND_STREAMS: &str = "redis.call('XGROUP', 'CREATE', KEYS[1], 'g', '$', 'MKSTREAM') \
     return redis.call('XREADGROUP', 'GROUP', 'g', 'STREAMS', 'STREAMS', ARGV[1], '>')";

/// A guard with keys `a:…` that need no token.
async fn open_port(redis: &Redis) -> Port {
    port(&setup(&redis.url()).args(&["--rule", "a:**=@open"])).await
}

/// A script with one key of its own deletes no marks, whichever keyword its key is hidden behind.
#[tokio::test]
async fn a_script_does_not_delete_the_guards_marks() {
    let redis = Redis::start().await;
    let guard = open_port(&redis).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut holder = RespClient::fenced(&guard.address, &new.credential).await;
    assert_eq!(holder.call(&["SET", &new.key("a"), "new"]).await, Resp::simple("OK"));
    let before: Vec<String> = redis.run(&["HGETALL", MARKS]).await;
    let mut client = RespClient::connect(&guard.address).await;
    for script in [SECOND_STORE, SECOND_STORE_BY_MEMBER, SECOND_STREAMS] {
        for target in [MARKS, "{fence:default}:guard:state", &new.key("a")] {
            let reply = client.call(&["EVAL", script, "1", "a:geo", target]).await;
            assert!(reply.expect_error("DENIED").contains("scripts may not run"), "{script}");
            client.call(&["DEL", "a:geo"]).await;
        }
    }
    let after: Vec<String> = redis.run(&["HGETALL", MARKS]).await;
    assert_eq!(after, before);
    let mut late = RespClient::connect(&guard.address).await;
    late.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
    assert_eq!(holder.call(&["GET", &new.key("a")]).await, Resp::bulk("new"));
}

/// The lock server's record of a live lease stays, and so the lock is granted once.
#[tokio::test]
async fn a_script_does_not_delete_a_lock_servers_record() {
    let redis = Redis::start().await;
    let guard = open_port(&redis).await;
    let locks = Setup::lock_server(&redis.url()).start().await;
    let held = locks.locks().grant("orders/1", 60_000).await;
    let mut client = RespClient::connect(&guard.address).await;
    for record in ["{fence:default}:lock:orders/1", "{fence:default}:token"] {
        for script in [SECOND_STORE, SECOND_STORE_BY_MEMBER] {
            let reply = client.call(&["EVAL", script, "1", "a:geo", record]).await;
            assert!(reply.error().is_some(), "{reply:?}");
        }
        assert_eq!(redis.run::<i64>(&["EXISTS", record]).await, 1, "{record} is gone");
    }
    let again = locks.locks().acquire("orders/1", json!({"ttl_ms": 60_000})).await;
    assert_eq!(again.status, 423, "{again:?}");
    locks.locks().renew("orders/1", held.lease_id).await.expect(200);
}

/// Commands that scripts may not run work from the client itself, before and after a script.
#[tokio::test]
async fn commands_that_are_computed_work_beside_scripts() {
    let redis = Redis::start().await;
    let guard = open_port(&redis).await;
    let mut client = RespClient::connect(&guard.address).await;
    let script = ["EVAL", "return redis.call('INCR', KEYS[1])", "1", "a:n"];
    client.call(&["GEOADD", "a:geo", "1", "1", "x"]).await;
    client.call(&["RPUSH", "a:list", "2", "1"]).await;
    client.call(&["XGROUP", "CREATE", "a:stream", "g", "$", "MKSTREAM"]).await;
    let radius = ["GEORADIUS", "a:geo", "1", "1", "9", "km", "STORE", "a:to"];
    let group = ["XREADGROUP", "GROUP", "g", "STREAMS", "STREAMS", "a:stream", ">"];
    for _ in 0..2 {
        assert!(client.call(&script).await.integer() > 0);
        assert_eq!(client.call(&radius).await, Resp::Integer(1));
        assert_eq!(client.call(&["SORT", "a:list", "STORE", "a:sorted"]).await, Resp::Integer(2));
        let reply = client.call(&group).await;
        assert!(reply.error().is_none(), "{reply:?}");
        assert!(client.call(&["SCAN", "0"]).await.is_error("NOTOKEN"));
    }
    // In one transaction, and with a script in another.
    let replies = client.pipeline(&[&["MULTI"], &radius, &["EXEC"]]).await;
    assert_eq!(replies[2].items(), [Resp::Integer(1)]);
    let get: &[&str] = &["GET", "a:n"];
    let publish: &[&str] = &["PUBLISH", "news", "x"];
    let replies = client.pipeline(&[&["MULTI"], &script, get, publish, &["EXEC"]]).await;
    assert_eq!(replies[4].items().len(), 3);
    for (first, second) in [(&script[..], &radius[..]), (&radius, &script)] {
        let replies = client.pipeline(&[&["MULTI"], first, second, &["EXEC"]]).await;
        assert!(replies[2].expect_error("DENIED").contains("transaction with a script"));
        replies[3].expect_error("EXECABORT");
    }
    assert!(client.call(&script).await.integer() > 0);
}

/// A client without a token neither receives nor forges the messages of lock servers.
#[tokio::test]
async fn fencepost_s_own_channels_are_refused() {
    let redis = Redis::start().await;
    let guard = open_port(&redis).await;
    let _locks = Setup::lock_server(&redis.url()).start().await;
    let own = "{fence:default}:c:1";
    let mut client = RespClient::connect(&guard.address).await;
    for words in [
        &["SUBSCRIBE", own][..],
        &["SSUBSCRIBE", own],
        &["PSUBSCRIBE", "*"],
        &["PSUBSCRIBE", "{fence:*"],
        &["SUBSCRIBE", "__keyspace@0__:{fence:default}:token"],
        &["PUBLISH", own, "x"],
        &["SPUBLISH", own, "x"],
        &["PUBSUB", "NUMSUB", own],
    ] {
        client.call(words).await.expect_error("DENIED");
    }
    // Names of keys are seen with a token.
    client.call(&["SUBSCRIBE", "__keyevent@0__:expired"]).await.expect_error("NOTOKEN");
    let publish = "return redis.call('PUBLISH', ARGV[1], 'x')";
    let reply = client.call(&["EVAL", publish, "0", own]).await;
    assert!(reply.error().is_some(), "{reply:?}");
    // All else is as it was; in RESP2's subscriber mode, too.
    let mut listener = RespClient::connect(&guard.address).await;
    assert_eq!(listener.call(&["SUBSCRIBE", "news"]).await.items()[2], Resp::Integer(1));
    listener.call(&["SUBSCRIBE", own]).await.expect_error("DENIED");
    listener.call(&["PSUBSCRIBE", "__keyevent@0__:*"]).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["EVAL", publish, "0", "news"]).await, Resp::Integer(1));
    assert_eq!(listener.reply().await.items()[2], Resp::bulk("x"));
    // On RESP3 a script would end the subscriptions of its own connection.
    client.call(&["HELLO", "3"]).await;
    client.call(&["SUBSCRIBE", "news"]).await;
    client.call(&["EVAL", publish, "0", "news"]).await.expect_error("DENIED");
    assert_eq!(client.call(&["PUBLISH", "other", "x"]).await, Resp::Integer(0));
}

/// A token that is presented again is verified again.
#[tokio::test]
async fn a_stale_token_is_refused_when_it_is_presented_again() {
    let redis = Redis::start().await;
    let guards = super::ports(&redis, 2).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut late = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(late.call(&["AUTH", "fence", &old.credential]).await, Resp::simple("OK"));
    guards[1].server.guard().sealed("orders/1", &new.credential).await;
    late.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
    late.call(&["FENCE", "SET", &old.credential]).await.expect_error("FENCED");
    late.call(&["GET", &old.key("a")]).await.expect_error("FENCED");
}

/// Users of connections that ran a script do not stay in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_of_script_connections_are_removed() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = open_port(&redis).await;
    for _ in 0..20 {
        let mut clients = Vec::new();
        for _ in 0..50 {
            let mut client = RespClient::connect(&guard.address).await;
            client.send(&["EVAL", "return 1", "0"]).await;
            clients.push(client);
        }
        for mut client in clients {
            assert_eq!(client.reply().await, Resp::Integer(1));
        }
    }
    fence_tests::wait::until_true("the users to be gone", async || {
        redis.run::<Vec<String>>(&["ACL", "USERS"]).await.len() == 1
    })
    .await;
}

//! FLUSHDB, FLUSHALL and SORT with BY or GET: commands over keys that they do not name.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::{Port, bare_open_setup, port, ports, setup};

const OWN: [&str; 2] = ["{fence:other}:string", "app1:{fence:other}:set"];

async fn open_port(redis: &Redis, args: &[&str]) -> Port {
    port(&bare_open_setup(&redis.url()).args(args)).await
}

/// Keys of Fencepost and of others, in two databases.
async fn fill(redis: &Redis) {
    let mut connection = redis.connect().await.unwrap();
    for db in ["0", "3"] {
        for line in [
            &format!("SELECT {db}")[..],
            "MSET a 1 {fence 2 {fenced:x} 3 x{y}{fence:z} 4",
            "SET {fence:other}:string text PX 1000000",
            "SADD app1:{fence:other}:set x y",
        ] {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            for word in words {
                command.arg(word);
            }
            let _: redis::Value = command.query_async(&mut connection).await.unwrap();
        }
    }
}

async fn keys(redis: &Redis, db: &str) -> Vec<String> {
    let script = "redis.call('SELECT', ARGV[1]) return redis.call('KEYS', '*')";
    let mut keys: Vec<String> = redis.run(&["EVAL", script, "0", db]).await;
    keys.retain(|key| !key.starts_with("{fence:default}"));
    keys.sort();
    keys
}

#[tokio::test]
async fn a_flush_leaves_fencepost_s_own_keys() {
    let redis = Redis::start().await;
    let guard = open_port(&redis, &[]).await;
    let mut shared = RespClient::connect(&guard.address).await;
    let mut own = RespClient::connect(&guard.address).await;
    own.call(&["EVAL", "return 1", "0"]).await;
    let mut queued = RespClient::connect(&guard.address).await;
    for client in [&mut shared, &mut own] {
        for words in [&["FLUSHDB"][..], &["flushdb", "async"], &["FLUSHDB", "SYNC"]] {
            fill(&redis).await;
            assert_eq!(client.call(words).await, Resp::simple("OK"), "{words:?}");
            assert_eq!(keys(&redis, "0").await, [OWN[1], OWN[0]].map(str::to_owned));
            assert_eq!(keys(&redis, "3").await.len(), 6, "another database stays");
        }
        client.call(&["SELECT", "3"]).await;
        assert_eq!(client.call(&["FLUSHDB"]).await, Resp::simple("OK"));
        assert_eq!(keys(&redis, "3").await.len(), 2);
        client.call(&["FLUSHDB", "NOW"]).await.expect_error("ERR");
    }
    fill(&redis).await;
    let replies =
        queued.pipeline(&[&["MULTI"], &["FLUSHALL"], &["SET", "b", "1"], &["EXEC"]]).await;
    assert_eq!(replies[3].items(), [Resp::simple("OK"), Resp::simple("OK")]);
    assert_eq!(keys(&redis, "0").await.len(), 3);
    assert_eq!(keys(&redis, "3").await.len(), 2);
    let left: i64 = redis.run(&["PTTL", OWN[0]]).await;
    assert!((1..=1_000_000).contains(&left), "{left}");
    assert_eq!(redis.run::<String>(&["GET", OWN[0]]).await, "text");
    assert_eq!(redis.run::<i64>(&["SCARD", OWN[1]]).await, 2);
}

/// A token of each rule, and of no more locks than a connection can hold.
#[tokio::test]
async fn a_flush_needs_a_token_of_every_rule() {
    let redis = Redis::start().await;
    let rules = ["--rule", "a:**=orders/1", "--rule", "b:**=orders/2", "--rule", "c:**=@open"];
    let guard = open_port(&redis, &rules).await;
    let one = Grant::new(5, "1");
    let two = Grant::new(5, "2");
    redis.run::<()>(&["MSET", "a:x", "1", "c:x", "1"]).await;
    let mut client = RespClient::connect(&guard.address).await;
    client.call(&["FLUSHDB"]).await.expect_error("NOTOKEN");
    client.call(&["AUTH", &one.credential]).await;
    let refused = client.call(&["FLUSHALL"]).await;
    assert!(refused.expect_error("NOTOKEN").contains("orders/2"), "{refused:?}");
    assert_eq!(redis.run::<i64>(&["EXISTS", "a:x", "c:x"]).await, 2);
    let once = client.call(&["FENCE", &two.credential, "FLUSHDB"]).await;
    assert_eq!(once, Resp::simple("OK"));
    assert_eq!(redis.run::<i64>(&["EXISTS", "a:x", "c:x"]).await, 0);
    for rule in ["d:{id}:**=d/{id}", "d:**=@deny", "d:{id}=@open"] {
        let guard = open_port(&redis, &["--rule", rule]).await;
        let mut client = RespClient::fenced(&guard.address, &one.credential).await;
        let refused = client.call(&["FLUSHDB"]).await;
        assert!(refused.expect_error("DENIED").contains(rule), "{refused:?}");
    }
    let fenced = port(&setup(&redis.url())).await;
    RespClient::connect(&fenced.address).await.call(&["FLUSHDB"]).await.expect_error("DENIED");
}

/// A late FLUSHDB deletes nothing of the next holder.
#[tokio::test]
async fn a_late_flush_is_fenced() {
    let redis = Redis::start().await;
    let guard = open_port(&redis, &["--rule", "**=orders/1"]).await;
    let guards = ports(&redis, 1).await;
    let old = Grant::new(40, "1");
    let new = Grant::new(50, "1");
    let mut late = RespClient::fenced(&guard.address, &old.credential).await;
    assert_eq!(late.call(&["FLUSHDB"]).await, Resp::simple("OK"));
    let mut holder = RespClient::fenced(&guards[0].address, &new.credential).await;
    assert_eq!(holder.call(&["SET", &new.key("a"), "new"]).await, Resp::simple("OK"));
    late.call(&["FLUSHDB"]).await.expect_error("FENCED");
    assert_eq!(holder.call(&["GET", &new.key("a")]).await, Resp::bulk("new"));
}

/// SORT reads keys by name of data where all that begin so may be read.
#[tokio::test]
async fn sort_reads_what_its_connection_may_read() {
    let redis = Redis::start().await;
    let guard = open_port(&redis, &["--rule", "k:{id}:**=orders/{id}"]).await;
    redis.run::<()>(&["MSET", "w:a", "2", "w:b", "1", "k:1:a", "2", "k:1:b", "1"]).await;
    redis.run::<()>(&["RPUSH", "list", "a", "b"]).await;
    let grant = Grant::new(5, "1");
    let mut client = RespClient::connect(&guard.address).await;
    let mut own = RespClient::fenced(&guard.address, &grant.credential).await;
    own.call(&["EVAL", "return 1", "0"]).await;
    let sorted = Resp::Array(vec![Resp::bulk("1"), Resp::bulk("2")]);
    for client in [&mut client, &mut own] {
        let reply = client.call(&["SORT", "list", "BY", "w:*", "GET", "w:*"]).await;
        assert_eq!(reply, sorted);
        for pattern in ["k:*", "k:2:*", "k*", "*", "{*", "{fence:default}:*"] {
            client.call(&["SORT", "list", "GET", pattern]).await.expect_error("DENIED");
            client.call(&["SORT", "list", "BY", pattern, "GET", "#"]).await.expect_error("DENIED");
        }
    }
    let mine = &["SORT_RO", "list", "BY", "k:1:*", "GET", "k:1:*"];
    assert_eq!(own.call(mine).await, sorted);
    client.call(mine).await.expect_error("DENIED");
}

/// A flush that cannot put Fencepost's own keys back, or cannot reach a database, deletes nothing.
#[tokio::test]
async fn a_flush_that_cannot_restore_deletes_nothing() {
    let redis = Redis::start().await;
    fill(&redis).await;
    // Before Valkey no port starts without SELECT.
    let select = (!redis.is_valkey().await).then_some("select");
    for lacking in ["restore", "dump", "flushdb"].into_iter().chain(select) {
        let rule = format!("-{lacking}");
        redis
            .run::<()>(&[
                "ACL", "SETUSER", "guard", "reset", "on", ">g", "~*", "&*", "+@all", &rule,
            ])
            .await;
        let url = format!("redis://guard:g@{}", redis.address());
        let guard = port(&bare_open_setup(&url)).await;
        let mut client = RespClient::connect(&guard.address).await;
        let names: &[&str] =
            if lacking == "select" { &["FLUSHALL"] } else { &["FLUSHALL", "FLUSHDB"] };
        for name in names {
            let reply = client.call(&[name]).await;
            assert!(reply.error().is_some(), "{name} without {lacking}: {reply:?}");
            assert_eq!(keys(&redis, "0").await.len(), 6, "{name} without {lacking}");
        }
    }
}

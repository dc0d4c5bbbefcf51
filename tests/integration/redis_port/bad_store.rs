//! A Redis that is down, slow, read-only or full: an error in the protocol's own form, and a
//! connection that works again when Redis does.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::{Grant, patient};
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::until;

use super::{Port, port, ports, setup};

/// Waits until a new holder is admitted and can write.
async fn writes_again(guard: &Port, grant: &Grant) {
    until("a write through the guard", || async {
        let mut client = RespClient::try_connect(&guard.address).await.ok()?;
        let words = ["AUTH", "fence", &grant.credential];
        let auth = patient(client.try_call(&words)).await.ok()?;
        let write = patient(client.try_call(&["SET", &grant.key("a"), "1"])).await.ok()?;
        (auth == Resp::simple("OK") && write == Resp::simple("OK")).then_some(())
    })
    .await;
}

/// Asserts an error that says that nothing was done, or that the outcome is unknown; or a closed
/// connection.
#[track_caller]
fn assert_reported(reply: &std::io::Result<Resp>) {
    if let Ok(reply) = reply {
        let is_reported = ["UNAVAILABLE", "UNKNOWN"].iter().any(|code| reply.is_error(code));
        assert!(is_reported, "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_down_and_comes_back() {
    let mut redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
    assert_eq!(client.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("OK"));
    redis.kill();
    assert_reported(&client.try_call(&["SET", &grant.key("a"), "2"]).await);
    assert_reported(&client.try_call(&["SET", &grant.key("a"), "3"]).await);
    let mut other = RespClient::connect(&guards[0].address).await;
    let reply = other.try_call(&["AUTH", "fence", &grant.credential]).await;
    assert_reported(&reply);
    redis.start_again().await;
    writes_again(&guards[0], &grant).await;
    // A connection that was not closed is as good as a new one.
    if let Ok(reply) = other.try_call(&["AUTH", "fence", &grant.credential]).await {
        assert_eq!(reply, Resp::simple("OK"));
        assert_eq!(other.call(&["SET", &grant.key("a"), "4"]).await, Resp::simple("OK"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_redis_keeps_the_order() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
    client.call(&["SET", &grant.key("n"), "0"]).await;
    redis.process().pause();
    for _ in 0..100 {
        client.send(&["INCR", &grant.key("n")]).await;
    }
    let mut other = RespClient::connect(&guards[0].address).await;
    let reply = other.call(&["AUTH", "fence", &grant.credential]).await;
    assert!(reply == Resp::simple("OK") || reply.is_error("UNAVAILABLE"), "{reply:?}");
    redis.process().resume();
    for number in 1..=100 {
        assert_eq!(client.reply().await, Resp::Integer(number));
    }
}

/// Nothing can be registered in a Redis that takes no writes: no new token is admitted, and the old
/// holder, whose mark was not passed, continues to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_full() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(1, "1");
    let new = Grant::new(2, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "1"]).await, Resp::simple("OK"));
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    client.call(&["SET", &old.key("a"), "2"]).await.expect_error("OOM");
    assert_eq!(client.call(&["GET", &old.key("a")]).await, Resp::bulk("1"));
    let mut next = RespClient::connect(&guards[1].address).await;
    let reply = next.call(&["AUTH", "fence", &new.credential]).await;
    reply.expect_error("UNAVAILABLE");
    let reply = next.call(&["SET", &new.key("a"), "3"]).await;
    assert!(reply.error().is_some(), "{reply:?}");
    assert_eq!(client.call(&["GET", &old.key("a")]).await, Resp::bulk("1"));
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "2"]).await, Resp::simple("OK"));
    assert_eq!(next.call(&["AUTH", "fence", &new.credential]).await, Resp::simple("OK"));
    assert_eq!(next.call(&["SET", &new.key("a"), "3"]).await, Resp::simple("OK"));
}

/// It was turned into a replica: whatever it says, nothing is admitted and nothing written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_read_only() {
    let redis = Redis::start().await;
    let master = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let old = Grant::new(1, "1");
    let new = Grant::new(2, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "1"]).await, Resp::simple("OK"));
    let address = master.address();
    let (host, port) = address.split_once(':').unwrap();
    let _: () = redis.run(&["REPLICAOF", host, port]).await;
    for words in [&["SET", "orders:1:a", "2"][..], &["INCR", "orders:1:n"]] {
        if let Ok(reply) = client.try_call(words).await {
            assert!(reply.error().is_some(), "{reply:?}");
        }
    }
    let mut next = RespClient::connect(&guards[0].address).await;
    let reply = next.try_call(&["AUTH", "fence", &new.credential]).await;
    assert_reported(&reply);
}

#[tokio::test]
async fn a_redis_that_may_evict_marks_is_refused_at_the_start() {
    let redis = Redis::with(&[("maxmemory-policy", "allkeys-lru")]).await;
    let output = setup(&redis.url()).refused().await;
    assert!(output.stderr.contains("allkeys-lru"), "{}", output.stderr);
    assert!(!output.stdout.contains("redis port"), "{}", output.stdout);
}

/// A port without a Redis behind it, or at an address that is taken.
#[tokio::test]
async fn a_port_that_cannot_be_opened() {
    let redis = Redis::start().await;
    let taken = redis.address();
    let setup = super::bare_setup(&redis.url()).args(&["--redis-listen", &taken]);
    let output = setup.refused().await;
    assert!(output.stderr.contains(&taken), "{}", output.stderr);
    let output = super::bare_setup("memory:").args(&["--redis-listen", "127.0.0.1:0"]);
    let output = output.refused().await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains("--redis-listen"), "{}", output.stderr);
    drop(port(&super::setup(&redis.url())).await);
}

/// A transaction needs a connection of its own. Where Redis gives none, MULTI is refused, and what
/// the driver has sent behind it must not be carried out piece by piece on the one that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_a_refused_multi_is_not_carried_out() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(1, "1");
    let n = grant.key("n");
    let mut direct = RespClient::connect(&redis.address()).await;
    for begin in [&["MULTI"][..], &["WATCH", &n]] {
        let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
        assert_eq!(client.call(&["SET", &n, "0"]).await, Resp::simple("OK"));
        direct.call(&["CONFIG", "SET", "maxclients", "1"]).await;
        let commands = [begin, &["INCR", &n], &["INCR", &n], &["EXEC"]];
        let bytes: Vec<u8> = commands.iter().flat_map(|words| request(words)).collect();
        client.send_raw(&bytes).await;
        client.finish_sending().await;
        let replies = client.until_closed().await;
        direct.call(&["CONFIG", "SET", "maxclients", "10000"]).await;
        assert!(replies.iter().all(|reply| reply.error().is_some()), "{begin:?}: {replies:?}");
        assert_eq!(direct.call(&["GET", &n]).await, Resp::bulk("0"), "{begin:?}");
    }
}

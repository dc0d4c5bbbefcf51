//! What a connection holds at Redis, over a change of its tokens: it is kept, or the change is refused,
//! or EXEC fails. The table is in docs/reference/redis-connections.md.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::until_true;

use super::{keeping_ports, ports};

/// Each way to present a newer token, on a connection that holds another.
fn ways(credential: &str) -> [Vec<&str>; 3] {
    [
        vec!["AUTH", "fence", credential],
        vec!["FENCE", "SET", credential],
        vec!["HELLO", "3", "AUTH", "fence", credential],
    ]
}

/// Presents a token once the guard knows that the connection of the one before was ended.
async fn present(client: &mut RespClient, words: &[&str]) {
    let client = tokio::sync::Mutex::new(client);
    until_true("the newer token to be taken", async || {
        client.lock().await.call(words).await.error().is_none()
    })
    .await;
}

/// The keys have changed under another holder, whom the connection that watched them never met.
#[tokio::test]
async fn a_watch_that_was_lost_fails_the_transaction() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    for (index, id) in ["auth", "set", "hello"].into_iter().enumerate() {
        let (old, new, last) = (Grant::new(10, id), Grant::new(20, id), Grant::new(30, id));
        let key = old.key("a");
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        assert_eq!(client.call(&["WATCH", &key]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["GET", &key]).await, Resp::Null);
        let mut other = RespClient::fenced(&guards[1].address, &new.credential).await;
        assert_eq!(other.call(&["SET", &key, "2"]).await, Resp::simple("OK"));
        present(&mut client, &ways(&last.credential)[index]).await;
        // Redis queues the UNWATCH: it comes too late to save the transaction.
        let words: [&[&str]; 4] = [&["MULTI"], &["UNWATCH"], &["SET", &key, "lost"], &["EXEC"]];
        let replies = client.pipeline(&words).await;
        assert_eq!(replies[3], Resp::Null, "{id}: {replies:?}");
        assert_eq!(client.call(&["GET", &key]).await, Resp::bulk("2"), "{id}");
        // The next one is like any other.
        client.call(&["WATCH", &key]).await;
        let replies = client.pipeline(&[&["MULTI"], &["SET", &key, "3"], &["EXEC"]]).await;
        assert_eq!(replies[2].items(), [Resp::simple("OK")], "{id}");
    }
}

/// The client gives the transaction up in one of the ways that end a WATCH in Redis.
#[tokio::test]
async fn a_watch_that_was_lost_ends_as_any_other() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let (unwatch, reset): (&[&[&str]], &[&[&str]]) = (&[&["UNWATCH"]], &[&["RESET"]]);
    let discard: &[&[&str]] = &[&["MULTI"], &["DISCARD"]];
    for (id, ends) in [("unwatch", unwatch), ("discard", discard), ("reset", reset)] {
        let (old, new, last) = (Grant::new(10, id), Grant::new(20, id), Grant::new(30, id));
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        client.call(&["WATCH", &old.key("a")]).await;
        RespClient::fenced(&guards[1].address, &new.credential).await;
        present(&mut client, &["AUTH", "fence", &last.credential]).await;
        client.pipeline(ends).await;
        assert_eq!(client.call(&["AUTH", &last.credential]).await, Resp::simple("OK"));
        let replies =
            client.pipeline(&[&["MULTI"], &["SET", &last.key("a"), "1"], &["EXEC"]]).await;
        assert_eq!(replies[2].items(), [Resp::simple("OK")], "{id}: {replies:?}");
    }
}

/// Redis goes on watching when EXEC or DISCARD is refused for want of a MULTI.
#[tokio::test]
async fn the_tokens_of_a_connection_that_watches_are_not_changed() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let (old, new) = (Grant::new(10, "1"), Grant::new(20, "1"));
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["WATCH", &old.key("a")]).await;
    for refused in ["EXEC", "DISCARD"] {
        client.call(&[refused]).await.expect_error("ERR");
    }
    for way in ways(&new.credential) {
        client.call(&way).await.expect_error("DENIED");
    }
    client.call(&["FENCE", "CLEAR"]).await.expect_error("DENIED");
    client.call(&["SELECT", "1"]).await.expect_error("DENIED");
    let once = client.call(&["FENCE", &old.credential, "SET", &old.key("a"), "1"]).await;
    assert_eq!(once, Resp::simple("OK"));
    let replies = client.pipeline(&[&["MULTI"], &["SET", &old.key("a"), "2"], &["EXEC"]]).await;
    assert_eq!(replies[2], Resp::Null, "it was watched: {replies:?}");
    assert_eq!(client.call(&ways(&new.credential)[0]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn what_would_be_lost_refuses_the_change() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let (old, new) = (Grant::new(10, "1"), Grant::new(20, "1"));
    let tracking: &[&[&str]] =
        &[&["CLIENT", "TRACKING", "ON", "OPTIN"], &["CLIENT", "CACHING", "YES"]];
    let subscription: &[&[&str]] = &[&["SUBSCRIBE", "news"]];
    for begin in [tracking, subscription] {
        let mut client = RespClient::connect(&guards[0].address).await;
        client.call(&["HELLO", "3", "AUTH", "fence", &old.credential]).await;
        client.pipeline(begin).await;
        for way in ways(&new.credential) {
            client.call(&way).await.expect_error("DENIED");
        }
        client.call(&["HELLO", "2"]).await.expect_error("DENIED");
    }
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["MULTI"]).await;
    client.call(&ways(&new.credential)[0]).await.expect_error("DENIED");
    client.call(&["EXEC"]).await.expect_error("EXECABORT");
    client.call(&["CLIENT", "REPLY", "OFF"]).await.expect_error("DENIED");
}

#[tokio::test]
async fn what_belongs_to_the_client_is_kept() {
    let redis = Redis::start().await;
    let guards = keeping_ports(&redis, 2).await;
    let (old, new, last) = (Grant::new(10, "1"), Grant::new(20, "1"), Grant::new(30, "1"));
    let mut client = RespClient::connect(&guards[0].address).await;
    client.call(&["HELLO", "3", "AUTH", "fence", &old.credential, "SETNAME", "me"]).await;
    assert_eq!(client.call(&["SELECT", "3"]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["HSET", &old.key("h"), "a", "1"]).await, Resp::Integer(1));
    let sha = client.call(&["SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])"]).await.text();
    RespClient::fenced(&guards[1].address, &new.credential).await;
    present(&mut client, &["AUTH", "fence", &last.credential]).await;
    let hash = Resp::Map(vec![(Resp::bulk("a"), Resp::bulk("1"))]);
    assert_eq!(client.call(&["HGETALL", &last.key("h")]).await, hash, "database and protocol");
    assert_eq!(client.call(&["CLIENT", "GETNAME"]).await, Resp::bulk("me"));
    assert_eq!(client.call(&["EVALSHA", &sha, "1", &last.key("b")]).await, Resp::Null);
}

/// The id of the newest connection on which WAIT came last.
pub(super) async fn waited_on(redis: &Redis) -> Option<u64> {
    let list: String = redis.run(&["CLIENT", "LIST"]).await;
    let waited = list.lines().filter(|line| line.contains(" cmd=wait "));
    let id = |line: &str| line.split(' ').next()?.strip_prefix("id=")?.parse().ok();
    waited.filter_map(id).max()
}

/// WAIT counts what its own connection wrote: behind a write on another one it needs a newer one.
#[tokio::test]
async fn wait_counts_what_was_written_on_another_connection() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let (own, other) = (Grant::new(10, "1"), Grant::new(10, "2"));
    let mut client = RespClient::fenced(&guards[0].address, &own.credential).await;
    assert_eq!(client.call(&["WAIT", "0", "0"]).await, Resp::Integer(0));
    let before = waited_on(&redis).await;
    assert_eq!(client.call(&["WAIT", "0", "0"]).await, Resp::Integer(0));
    assert_eq!(waited_on(&redis).await, before, "no other write: it stays");
    client.call(&["FENCE", &other.credential, "SET", &other.key("a"), "1"]).await;
    assert_eq!(client.call(&["WAIT", "0", "0"]).await, Resp::Integer(0));
    assert_ne!(waited_on(&redis).await, before);
}

/// HELLO does all that it was asked for, or nothing.
#[tokio::test]
async fn a_hello_with_a_bad_name_logs_nobody_in() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let mut client = RespClient::connect(&guards[0].address).await;
    let words = ["HELLO", "3", "AUTH", "fence", &grant.credential, "SETNAME", "a b"];
    client.call(&words).await.expect_error("ERR");
    client.call(&["SET", &grant.key("a"), "1"]).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["FENCE", "SHOW"]).await.items(), []);
}

/// A token that went stale unseen is not confirmed because it was presented before.
#[tokio::test]
async fn an_equal_token_that_is_stale_by_now_is_refused() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let (old, new) = (Grant::new(10, "1"), Grant::new(20, "1"));
    let client = RespClient::fenced(&guards[0].address, &old.credential).await;
    RespClient::fenced(&guards[1].address, &new.credential).await;
    let client = tokio::sync::Mutex::new(client);
    until_true("the stale token to be refused", async || {
        client.lock().await.call(&["AUTH", "fence", &old.credential]).await.is_error("FENCED")
    })
    .await;
}

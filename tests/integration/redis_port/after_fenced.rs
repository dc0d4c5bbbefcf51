//! `--after-fenced`: a connection whose token was refused is closed once its client has received
//! the error, and so are those with the same token that rest.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::soon;

use super::{Port, port, ports, receive_until_guard_has_all, setup};

/// An old holder's client at the first guard, whose token was refused by the second.
async fn handed_over(guards: &[Port], id: &str) -> (RespClient, Grant, Grant) {
    let old = Grant::new(10, id);
    let new = Grant::new(20, id);
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "1"]).await, Resp::simple("OK"));
    RespClient::fenced(&guards[1].address, &new.credential).await;
    (client, old, new)
}

async fn is_closed(client: &mut RespClient) -> bool {
    soon("the end", client.next()).await.is_err()
}

fn is_refused(reply: &Resp) -> bool {
    reply.is_error("FENCED") || reply.is_error("UNKNOWN")
}

/// Nothing of the pipeline is executed, not even with a newer token in it, and every command of it
/// receives a reply before the end.
#[tokio::test]
async fn the_rest_of_a_pipeline_is_refused_and_the_connection_closed() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let (mut client, old, _) = handed_over(&guards, "1").await;
    let last = Grant::new(30, "1");
    let a = old.key("a");
    let b = old.key("b");
    let first = client.call(&["SET", &a, "late"]).await;
    assert!(is_refused(&first), "{first:?}");
    assert!(is_closed(&mut client).await);
    let (mut client, ..) = handed_over(&guards, "2").await;
    let a2 = Grant::new(10, "2").key("a");
    let last = Grant { id: "2".to_owned(), ..last };
    let replies = client
        .pipeline(&[
            &["SET", &a2, "late"],
            &["MULTI"],
            &["SET", &a2, "later"],
            &["EXEC"],
            &["AUTH", "fence", &last.credential],
            &["PING"],
            &["SUBSCRIBE", "news"],
            &["QUIT"],
        ])
        .await;
    assert!(replies.iter().all(is_refused), "{replies:?}");
    assert!(is_closed(&mut client).await);
    assert_eq!(redis.run::<String>(&["GET", &a]).await, "1");
    assert_eq!(redis.run::<String>(&["GET", &a2]).await, "1");
    assert_eq!(redis.run::<i64>(&["EXISTS", &b]).await, 0);
}

/// One failed command refreshes a pool; a connection alone is not closed before its client has
/// received the error.
#[tokio::test]
async fn connections_with_the_same_token_are_closed_together() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let address = &guards[0].address;
    let mut pool = Vec::new();
    for _ in 0..8 {
        let mut client = RespClient::fenced(address, &old.credential).await;
        client.call(&["SET", &old.key("a"), "1"]).await;
        pool.push(client);
    }
    // Connections of their own: one rests, the others hold what the client must not lose unseen.
    pool[0].pipeline(&[&["MULTI"], &["EXEC"]]).await;
    let mut watching = RespClient::fenced(address, &old.credential).await;
    watching.call(&["WATCH", &old.key("a")]).await;
    let mut queueing = RespClient::fenced(address, &old.credential).await;
    queueing.pipeline(&[&["MULTI"], &["SET", &old.key("a"), "late"]]).await;
    let mut other = RespClient::fenced(address, &Grant::new(10, "2").credential).await;
    RespClient::fenced(&guards[1].address, &new.credential).await;
    let reply = pool[7].call(&["SET", &old.key("a"), "late"]).await;
    assert!(is_refused(&reply), "{reply:?}");
    for client in &mut pool {
        assert!(is_closed(client).await);
    }
    let reply = watching.call(&["MULTI"]).await;
    assert!(is_refused(&reply) && is_closed(&mut watching).await, "{reply:?}");
    let reply = queueing.call(&["EXEC"]).await;
    assert!(is_refused(&reply) && is_closed(&mut queueing).await, "{reply:?}");
    assert_eq!(other.call(&["PING"]).await, Resp::simple("PONG"));
    assert_eq!(redis.run::<String>(&["GET", &old.key("a")]).await, "1");
}

/// Commands that Lettuce 6 and go-redis 9 send on a new connection of a pool; both fetch the
/// credentials each time.
fn handshakes(credential: &str) -> [Vec<Vec<&str>>; 2] {
    let hello = vec!["HELLO", "3", "AUTH", "fence", credential];
    let named = [&hello[..], &["SETNAME", "worker"]].concat();
    let library = |name| vec!["CLIENT", "SETINFO", "LIB-NAME", name];
    let version = vec!["CLIENT", "SETINFO", "LIB-VER", "1.0.0"];
    [
        vec![hello, library("Lettuce"), version.clone(), vec!["PING"]],
        vec![named, library("go-redis(,go1.23)"), version],
    ]
}

async fn connected(address: &str, handshake: &[Vec<&str>]) -> RespClient {
    let mut client = RespClient::connect(address).await;
    let words: Vec<&[&str]> = handshake.iter().map(Vec::as_slice).collect();
    for reply in client.pipeline(&words).await {
        assert!(reply.error().is_none(), "{reply:?}");
    }
    client
}

/// Neither driver can be run by these tests, so their pools are played by what they send.
#[tokio::test]
async fn pools_of_other_drivers_present_the_newest_lease() {
    const SIZE: usize = 16;
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    for driver in 0..handshakes("").len() {
        let id = driver.to_string();
        let [old, between, new] = [10, 20, 30].map(|token| Grant::new(token, &id));
        let address = &guards[0].address;
        let key = old.key("journal");
        let mut pool = Vec::new();
        for _ in 0..SIZE {
            let mut client = connected(address, &handshakes(&old.credential)[driver]).await;
            assert!(client.call(&["RPUSH", &key, "old"]).await.error().is_none());
            pool.push(client);
        }
        RespClient::fenced(&guards[1].address, &between.credential).await;
        let late = pool[0].call(&["RPUSH", &key, "late"]).await;
        assert!(is_refused(&late), "{late:?}");
        for client in &mut pool {
            assert!(is_closed(client).await);
            // The pool makes another one in its place.
            *client = connected(address, &handshakes(&new.credential)[driver]).await;
            assert!(client.call(&["RPUSH", &key, "new"]).await.error().is_none());
        }
        let journal: Vec<String> = redis.run(&["LRANGE", &key, "0", "-1"]).await;
        assert_eq!(journal, [vec!["old"; SIZE], vec!["new"; SIZE]].concat());
    }
}

/// Replies that were not read yet come before the error, and the error before the end.
#[tokio::test]
async fn what_was_answered_before_is_delivered() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    let large = "x".repeat(6 << 20);
    client.call(&["SET", &old.key("a"), &large]).await;
    client.send(&["GET", &old.key("a")]).await;
    assert!(client.receive_some().await, "no reply began");
    receive_until_guard_has_all(&mut client, &redis).await;
    RespClient::fenced(&guards[1].address, &new.credential).await;
    client.send(&["SET", &old.key("b"), "late"]).await;
    let replies = client.until_closed().await;
    assert_eq!(replies[0], Resp::bulk(&large));
    assert!(replies.len() == 2 && is_refused(&replies[1]), "{}", replies.len());
    assert_eq!(redis.run::<i64>(&["EXISTS", &old.key("b")]).await, 0);
}

/// The token of one command, and one that a login presents, are not the connection's own.
#[tokio::test]
async fn a_refused_token_that_the_connection_does_not_hold_closes_nothing() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &new.credential).await;
    let reply = client.call(&["FENCE", &old.credential, "SET", &old.key("a"), "late"]).await;
    reply.expect_error("FENCED");
    client.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
    assert_eq!(client.call(&["SET", &new.key("a"), "2"]).await, Resp::simple("OK"));
}

/// Another refusal does not end a transaction whose client has not received FENCED yet.
#[tokio::test]
async fn only_the_refusal_of_the_tokens_ends_the_connection() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.pipeline(&[&["MULTI"], &["SET", &old.key("a"), "late"]]).await;
    RespClient::fenced(&guards[1].address, &new.credential).await;
    client.call(&["NO-SUCH-COMMAND"]).await.expect_error("ERR");
    let reply = client.call(&["EXEC"]).await;
    assert!(is_refused(&reply), "{reply:?}");
    assert!(is_closed(&mut client).await);
    assert_eq!(redis.run::<i64>(&["EXISTS", &old.key("a")]).await, 0);
}

#[tokio::test]
async fn a_guard_that_keeps_or_observes_closes_nothing() {
    let redis = Redis::start().await;
    for option in [["--after-fenced", "keep"], ["--mode", "observe"]] {
        let guard = port(&setup(&redis.url()).args(&option)).await;
        let id = option[1];
        let old = Grant::new(10, id);
        let new = Grant::new(20, id);
        let mut client = RespClient::fenced(&guard.address, &old.credential).await;
        client.call(&["SET", &old.key("a"), "1"]).await;
        RespClient::fenced(&guard.address, &new.credential).await;
        for _ in 0..2 {
            let reply = client.call(&["SET", &old.key("a"), "late"]).await;
            assert_eq!(is_refused(&reply), id == "keep", "{reply:?}");
        }
        let last = Grant::new(30, id);
        assert_eq!(client.call(&["AUTH", &last.credential]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["SET", &last.key("a"), "3"]).await, Resp::simple("OK"));
    }
}

//! Limits of a client's own connection, however its client behaves.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::until_true;

use super::{port, setup};

/// Returns whether a connection waits in BLPOP.
async fn is_blocked(redis: &Redis) -> bool {
    let list: String = redis.run(&["CLIENT", "LIST"]).await;
    list.contains(" cmd=blpop ")
}

/// A key that may be read without its token is not written because a script has read it once.
#[tokio::test]
async fn a_script_writes_nothing_that_was_checked_for_reading() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--allow-unfenced-reads"])).await;
    let own = Grant::new(5, "1");
    let other = Grant::new(5, "2");
    let key = own.key("a");
    let foreign = other.key("b");
    let write = format!("return redis.call('SET', '{foreign}', 'unfenced')");
    let read = format!("return redis.call('GET', '{foreign}')");
    let mut client = RespClient::fenced(&guard.address, &own.credential).await;
    let reply = client.call(&["EVAL_RO", &read, "1", &foreign]).await;
    assert!(reply.error().is_none(), "{reply:?}");
    let reply = client.call(&["EVAL", &write, "1", &key]).await;
    assert!(reply.error().is_some(), "{reply:?}");
    client.call(&["MULTI"]).await;
    client.call(&["GET", &foreign]).await;
    client.call(&["EVAL", &write, "1", &key]).await;
    client.call(&["EXEC"]).await;
    assert_eq!(redis.run::<i64>(&["EXISTS", &foreign]).await, 0, "written without its token");
    assert_eq!(client.call(&["SET", &key, "1"]).await, Resp::simple("OK"));
}

/// Commands sent before RESET are answered before it, and nothing afterwards.
#[tokio::test]
async fn a_reset_comes_behind_what_was_sent_before() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    let key = grant.key("n");
    for own in [false, true] {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        client.call(&["SET", &key, "0"]).await;
        if own {
            client.pipeline(&[&["MULTI"], &["EXEC"]]).await;
        }
        let incr: &[&str] = &["INCR", &key];
        let replies = client.pipeline(&[incr, incr, &["RESET"], &["PING"]]).await;
        let expected =
            [Resp::Integer(1), Resp::Integer(2), Resp::simple("RESET"), Resp::simple("PONG")];
        assert_eq!(replies, expected, "own: {own}");
    }
}

/// A client that leaves while a command of it waits in Redis leaves nothing there, whatever it has
/// sent behind that command.
#[tokio::test]
async fn a_client_that_leaves_a_blocked_connection_is_noticed() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    let list = grant.key("list");
    let key = grant.key("n");
    let many = request(&["GET", &key]).repeat(600);
    for behind in [many, request(&["SELECT", "1"])] {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        client.send_raw(&[request(&["BLPOP", &list, "0"]), behind].concat()).await;
        until_true("BLPOP waits", || is_blocked(&redis)).await;
        drop(client);
        until_true("BLPOP is ended", async || !is_blocked(&redis).await).await;
    }
}

/// Its end cannot be read: it lies behind commands that the guard does not receive before Redis has
/// replied.
#[tokio::test]
async fn a_client_that_resets_a_blocked_connection_is_noticed() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(5, "1");
    let key = grant.key("a");
    let first = [request(&["GET", &key]), request(&["BLPOP", &grant.key("list"), "0"])].concat();
    // More than may wait for replies, and 64 KiB.
    let many = request(&["SET", &key, &"x".repeat(1024)]).repeat(1024);
    for next in [Vec::new(), request(&["SELECT", "1"])] {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        client.send_raw(&[&first[..], &next, &many].concat()).await;
        until_true("BLPOP waits", || is_blocked(&redis)).await;
        // It has not read the reply to GET, so its kernel resets the connection.
        drop(client);
        until_true("BLPOP is ended", async || !is_blocked(&redis).await).await;
    }
}

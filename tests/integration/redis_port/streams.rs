//! The stream that a client reads: replies in their order, messages between them, nothing within
//! one.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};

use super::ports;

/// Larger than what the guard and the sockets hold, so that it is handed over in many parts.
const LARGE: usize = 24 << 20;

/// The reply would come on one connection to Redis and the messages on another.
#[tokio::test]
async fn fence_with_a_command_is_refused_where_messages_may_come() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let broadcast: &[&str] = &["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "orders:1:"];
    let tracking: &[&str] = &["CLIENT", "TRACKING", "ON"];
    for begin in [broadcast, tracking, &["SUBSCRIBE", "news"], &["PSUBSCRIBE", "n*"]] {
        let mut client = RespClient::connect(&guards[0].address).await;
        client.call(&["HELLO", "3", "AUTH", "fence", &grant.credential]).await;
        assert!(client.call(begin).await.error().is_none(), "{begin:?}");
        let once = ["FENCE", &grant.credential, "SET", &grant.key("a"), "1"];
        let text = client.call(&once).await.expect_error("DENIED").to_owned();
        assert!(text.contains("subscribes or tracks"), "{text}");
    }
    assert_eq!(redis.run::<i64>(&["EXISTS", &grant.key("a")]).await, 0);
}

/// Large replies, a busy publisher, and replies of the guard itself, all on one connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_and_messages_are_whole() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    // Redis itself would disconnect a subscriber that is so far behind.
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"];
    redis.run::<()>(&limit).await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let mut direct = RespClient::connect(&redis.address()).await;
    let value = "v".repeat(LARGE);
    assert_eq!(direct.call(&["SET", &grant.key("a"), &value]).await, Resp::simple("OK"));
    let mut client = RespClient::connect(&guards[0].address).await;
    client.call(&["HELLO", "3", "AUTH", "fence", &grant.credential]).await;
    client.call(&["SUBSCRIBE", "news"]).await;
    let publisher = tokio::spawn(async move {
        let message = "m".repeat(LARGE / 8);
        for _ in 0..16 {
            assert_eq!(direct.call(&["PUBLISH", "news", &message]).await, Resp::Integer(1));
        }
    });
    let mut messages = 0;
    let mut replies = Vec::new();
    for _ in 0..4 {
        client.send(&["GET", &grant.key("a")]).await;
        client.send(&["CLIENT", "GETNAME"]).await;
        client.send(&["SET", "orders:2:a", "1"]).await;
        client.send(&["FENCE", &grant.credential, "GET", &grant.key("a")]).await;
    }
    while messages < 16 || replies.len() < 16 {
        match client.reply().await {
            Resp::Push(push) => {
                assert!(push[2].text().bytes().all(|byte| byte == b'm'), "a message was broken");
                assert_eq!(push[2].text().len(), LARGE / 8);
                messages += 1;
            }
            reply => replies.push(reply),
        }
    }
    for four in replies.chunks(4) {
        assert!(four[0] == Resp::bulk(&value), "another value came");
        assert_eq!(four[1], Resp::Null);
        four[2].expect_error("NOTOKEN");
        four[3].expect_error("DENIED");
    }
    publisher.await.unwrap();
}

/// The guard replies while a message is handed over in parts, in both protocols.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_does_not_speak_within_a_message() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 1).await;
    let mut direct = RespClient::connect(&redis.address()).await;
    let message = "m".repeat(LARGE);
    for hello in ["2", "3"] {
        let mut client = RespClient::connect(&guards[0].address).await;
        client.call(&["HELLO", hello]).await;
        client.call(&["SUBSCRIBE", "news"]).await;
        assert_eq!(direct.call(&["PUBLISH", "news", &message]).await, Resp::Integer(1));
        assert!(client.receive_some().await, "the message begins");
        client.send(&["SET", "orders:2:a", "1"]).await;
        assert!(client.reply().await.items()[2] == Resp::bulk(&message), "it was broken");
        assert!(client.reply().await.error().is_some());
    }
}

/// In RESP2 a subscription changes which commands Redis takes; so it does for those behind it.
#[tokio::test]
async fn commands_behind_a_subscription_keep_their_order() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let key = grant.key("a");
    for _ in 0..10 {
        let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
        let commands: [&[&str]; 13] = [
            &["SET", &key, "1"],
            &["SUBSCRIBE", "a"],
            &["UNSUBSCRIBE", "a"],
            &["GET", &key],
            &["CLIENT", "GETNAME"],
            &["UNSUBSCRIBE"],
            &["GET", &key],
            &["SUBSCRIBE", "b"],
            &["PING"],
            &["GET", &key],
            &["PUNSUBSCRIBE"],
            &["UNSUBSCRIBE"],
            &["PING"],
        ];
        let replies = client.pipeline(&commands).await;
        let said = |at: usize| replies[at].items()[0].clone();
        assert_eq!((said(1), said(2)), (Resp::bulk("subscribe"), Resp::bulk("unsubscribe")));
        assert_eq!((&replies[3], &replies[4]), (&Resp::bulk("1"), &Resp::Null));
        assert_eq!((said(5), &replies[6]), (Resp::bulk("unsubscribe"), &Resp::bulk("1")));
        assert_eq!((said(7), said(8)), (Resp::bulk("subscribe"), Resp::bulk("pong")));
        assert!(replies[9].expect_error("ERR").contains("Can't execute 'get'"));
        assert_eq!((said(10), said(11)), (Resp::bulk("punsubscribe"), Resp::bulk("unsubscribe")));
        assert_eq!(replies[12], Resp::simple("PONG"));
    }
}

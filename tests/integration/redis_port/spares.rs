//! Connections that are ready before a client needs one of its own, and replies that come together.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::{scaled, until_true};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{ports, setup};

/// Connections that were made for one client alone, with the last command of each: AUTH where no
/// client has one yet.
async fn own_connections(redis: &Redis) -> Vec<String> {
    let list: String = redis.run(&["CLIENT", "LIST"]).await;
    let own = list.lines().filter(|line| line.contains(" user=fence:default:user:"));
    own.map(str::to_owned).collect()
}

/// Waits until one is ready, and no client has one.
async fn only_a_spare(redis: &Redis) -> String {
    until_true("a spare to be ready, and nothing else", || async {
        let own = own_connections(redis).await;
        own.len() == 1 && own[0].contains(" cmd=auth ")
    })
    .await;
    own_connections(redis).await.remove(0)
}

/// Has clients with these tokens asked for a connection of their own.
async fn ask_for_own(address: &str, grant: &Grant) {
    let mut client = RespClient::fenced(address, &grant.credential).await;
    client.call(&["MULTI"]).await;
    client.call(&["EXEC"]).await;
}

/// A client with these tokens, unless the guard has no connection to Redis at the moment.
async fn try_fenced(address: &str, grant: &Grant) -> Option<RespClient> {
    let mut client = RespClient::connect(address).await;
    let reply = client.try_call(&["AUTH", "fence", &grant.credential]).await.ok()?;
    (reply == Resp::simple("OK")).then_some(client)
}

/// Sends a subscription while the guard receives no reply of Redis, and waits until Redis has it.
/// `false` if the guard refuses it, because no connection is ready any more: in a pause of the
/// machine the guard ends its link to a silent Redis, and closes what was ready.
async fn subscribes_without_a_reply(
    redis: &Redis,
    line: &FaultProxy,
    subscriber: &mut RespClient,
    channel: &str,
) -> bool {
    line.set(Fault::HoldReplies);
    subscriber.send(&["SUBSCRIBE", channel]).await;
    let is_there = until_true("the subscription to be at Redis", || async {
        redis.run::<(String, i64)>(&["PUBSUB", "NUMSUB", channel]).await.1 == 1
    });
    tokio::select! {
        () = is_there => true,
        _ = subscriber.next() => false,
    }
}

/// A message is received that is published when the subscription was sent, and not yet confirmed:
/// the guard awaits no reply of Redis before it sends a subscription on.
#[tokio::test]
async fn no_message_overtakes_a_subscription() {
    const ROUNDS: u32 = 5;
    let redis = Redis::start().await;
    let line = FaultProxy::before(&redis.address()).await;
    let guard = super::port(&setup(&format!("redis://{}", line.address()))).await;
    let grant = Grant::new(5, "1");
    for round in 0..ROUNDS {
        let channel = format!("news{round}");
        until_true("a subscription that waits for no reply", || async {
            line.heal();
            let Some(mut own) = try_fenced(&guard.address, &grant).await else { return false };
            let begun = own.try_call(&["MULTI"]).await;
            drop(own);
            // A spare that was closed with the link is replaced when a client asks for the next.
            let room = scaled(Duration::from_secs(10));
            if begun.ok() != Some(Resp::simple("OK"))
                || tokio::time::timeout(room, only_a_spare(&redis)).await.is_err()
            {
                return false;
            }
            let subscriber = try_fenced(&guard.address, &grant).await;
            let Some(mut subscriber) = subscriber else { return false };
            if !subscribes_without_a_reply(&redis, &line, &mut subscriber, &channel).await {
                return false;
            }
            assert_eq!(redis.run::<i64>(&["PUBLISH", &channel, "hello"]).await, 1);
            line.heal();
            assert_eq!(subscriber.reply().await.items()[0], Resp::bulk("subscribe"));
            assert_eq!(subscriber.reply().await.items()[2], Resp::bulk("hello"));
            true
        })
        .await;
    }
}

/// A command behind a large one is sent once there is room, in one write or not.
#[tokio::test]
async fn a_command_behind_a_large_one_is_sent() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(5, "1");
    let key = grant.key("a");
    let value = "x".repeat(5 << 20);
    for is_own in [false, true] {
        let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
        if is_own {
            client.call(&["WATCH", &key]).await;
        }
        for _ in 0..5 {
            let replies = client.pipeline(&[&["SET", &key, &value], &["STRLEN", &key]]).await;
            assert_eq!(replies, [Resp::simple("OK"), Resp::Integer(5 << 20)]);
        }
    }
}

/// A guard that stops leaves no spare in Redis, also where a client holds it up.
#[tokio::test]
async fn a_guard_that_stops_removes_its_spares() {
    let redis = Redis::start().await;
    let guard = super::port(&setup(&redis.url()).args(&["--drain-wait", "3s"])).await;
    let grant = Grant::new(5, "1");
    ask_for_own(&guard.address, &grant).await;
    only_a_spare(&redis).await;
    let mut blocked = RespClient::fenced(&guard.address, &grant.credential).await;
    blocked.send(&["BLPOP", &grant.key("list"), "0"]).await;
    until_true("it to block, and another spare", || async {
        let own = own_connections(&redis).await;
        own.len() == 2 && own.iter().any(|line| line.contains(" cmd=blpop "))
    })
    .await;
    guard.server.process.terminate();
    until_true("the spare to be closed, and its user removed", || async {
        let users: Vec<String> = redis.run(&["ACL", "USERS"]).await;
        own_connections(&redis).await.len() < 2
            && users.iter().filter(|user| user.starts_with("fence:")).count() < 2
    })
    .await;
}

/// A higher token ends what is ready, and nothing is written on it.
#[tokio::test]
async fn a_higher_token_ends_spares() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(5, "1");
    let new = Grant::new(6, "1");
    ask_for_own(&guards[0].address, &old).await;
    let spare = only_a_spare(&redis).await;
    let mut late = RespClient::fenced(&guards[0].address, &old.credential).await;
    let mut holder = RespClient::fenced(&guards[1].address, &new.credential).await;
    assert_eq!(holder.call(&["SET", &new.key("a"), "new"]).await, Resp::simple("OK"));
    let id = spare.split_inclusive(' ').next().unwrap_or_default().to_owned();
    let left = own_connections(&redis).await;
    assert!(left.iter().all(|line| !line.starts_with(&id)), "{spare} is still there: {left:?}");
    late.call(&["MULTI"]).await.expect_error("FENCED");
    assert_eq!(redis.run::<String>(&["GET", &new.key("a")]).await, "new");
}

/// Redis closes connections on which nothing is sent for a while; a client meets none of those.
#[tokio::test]
async fn a_spare_that_redis_closed_is_not_used() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(5, "1");
    ask_for_own(&guards[0].address, &grant).await;
    let spare = only_a_spare(&redis).await;
    let id = spare.split(' ').next().and_then(|id| id.strip_prefix("id=")).unwrap_or_default();
    assert_eq!(redis.run::<i64>(&["CLIENT", "KILL", "ID", id]).await, 1);
    until_true("it to be closed", || async { own_connections(&redis).await.is_empty() }).await;
    let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
    assert_eq!(client.call(&["MULTI"]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("QUEUED"));
    assert_eq!(client.call(&["EXEC"]).await, Resp::Array(vec![Resp::simple("OK")]));
}

/// A client that stops at the first error finds the replies to the rest of its pipeline with it.
#[tokio::test]
async fn replies_of_a_pipeline_come_together() {
    const PAIRS: usize = 40;
    let redis = Redis::start().await;
    let guard = super::port(&setup(&redis.url())).await;
    let own = Grant::new(5, "1");
    let other = Grant::new(5, "2");
    let mut stream = TcpStream::connect(&guard.address).await.unwrap();
    stream.write_all(&request(&["AUTH", "fence", &own.credential])).await.unwrap();
    let mut replies = vec![0; 16 * 1024];
    assert_eq!(stream.read(&mut replies).await.unwrap(), b"+OK\r\n".len());
    let key = own.key("a");
    let foreign = other.key("a");
    let pair = [request(&["SET", &key, "1"]), request(&["SET", &foreign, "2"])].concat();
    stream.write_all(&pair.repeat(PAIRS)).await.unwrap();
    let length = stream.read(&mut replies).await.unwrap();
    let text = String::from_utf8_lossy(&replies[..length]).into_owned();
    let count = |reply: &str| text.lines().filter(|line| line.starts_with(reply)).count();
    assert_eq!((count("+OK"), count("-NOTOKEN")), (PAIRS, PAIRS), "{text}");
}

//! One lock passes from an old holder to a new one, whatever the old one is in the middle of.

use fence_tests::journal::{Entry, Journal, Seal};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_flood::Flood;
use fence_tests::redis_holders::{self, length};
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::seed::rounds;
use fence_tests::wait::until_true;

use super::{port, ports, setup};

/// Everything that an ended or refused connection may answer: errors of the port, or nothing.
#[track_caller]
fn assert_ended(replies: &[Resp]) {
    for reply in replies {
        let is_refused = reply.is_error("FENCED") || reply.is_error("UNKNOWN");
        let is_push = matches!(reply, Resp::Push(_));
        assert!(is_refused || is_push, "after the hand-over: {reply:?}");
    }
}

/// Sends one more command on a connection of an old holder: an error of the port, or closed.
async fn assert_fenced(client: &mut RespClient, words: &[&str]) {
    match client.try_call(words).await {
        Ok(reply) => assert_ended(&[reply]),
        Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::InvalidData, "{error}"),
    }
}

async fn entries(redis: &Redis, grant: &Grant) -> Vec<Entry> {
    redis_holders::entries(&redis.address(), &grant.id).await
}

#[tokio::test]
async fn a_stale_token_is_refused_with_the_mark_and_writes_nothing() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    RespClient::fenced(&guards[0].address, &new.credential).await;
    let mut late = RespClient::connect(&guards[1].address).await;
    let replies = late
        .pipeline(&[&["AUTH", "fence", &old.credential], &["RPUSH", &old.journal(), "33 late"]])
        .await;
    let text = replies[0].expect_error("FENCED").to_owned();
    assert!(text.contains("token 33 is below mark 34 of lock orders/1"), "{text}");
    assert!(replies[1].error().is_some(), "{replies:?}");
    let reply = late.call(&["FENCE", &old.credential, "RPUSH", &old.journal(), "33 late"]).await;
    reply.expect_error("FENCED");
    let mut hello = RespClient::connect(&guards[0].address).await;
    let words = ["HELLO", "3", "AUTH", "fence", &old.credential];
    let replies = hello.pipeline(&[&words, &["RPUSH", &old.journal(), "33 late"]]).await;
    replies[0].expect_error("FENCED");
    assert!(replies[1].error().is_some(), "{replies:?}");
    assert_eq!(entries(&redis, &old).await, []);
}

#[tokio::test]
async fn an_equal_token_is_admitted_with_its_lease_alone() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let grant = Grant::new(34, "1");
    let mut one = RespClient::fenced(&guards[0].address, &grant.credential).await;
    let mut two = RespClient::fenced(&guards[1].address, &grant.credential).await;
    for client in [&mut one, &mut two] {
        assert_eq!(client.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("OK"));
    }
    let other = unsigned(34, "orders/1", lease_id());
    let mut collides = RespClient::connect(&guards[1].address).await;
    let replies =
        collides.pipeline(&[&["AUTH", "fence", &other], &["SET", &grant.key("a"), "2"]]).await;
    replies[0].expect_error("COLLISION");
    assert!(replies[1].error().is_some(), "{replies:?}");
    assert_eq!(one.call(&["GET", &grant.key("a")]).await, Resp::bulk("1"));
}

/// The pop must not happen after the hand-over, though it was asked for long before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_blocked_in_blpop_pops_nothing_after_the_hand_over() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let queue = old.key("queue");
    let mut blocked = RespClient::fenced(&guards[0].address, &old.credential).await;
    blocked.send(&["BLPOP", &queue, "0"]).await;
    until_true("the client to block", || async {
        let info: String = redis.run(&["INFO", "clients"]).await;
        info.contains("blocked_clients:1")
    })
    .await;
    let mut next = RespClient::fenced(&guards[1].address, &new.credential).await;
    assert_eq!(next.call(&["RPUSH", &queue, "item"]).await, Resp::Integer(1));
    match blocked.try_reply().await {
        Ok(reply) => assert_ended(&[reply]),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
    }
    assert_eq!(next.call(&["LRANGE", &queue, "0", "-1"]).await.items(), [Resp::bulk("item")]);
    let mut again = RespClient::connect(&guards[0].address).await;
    again.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
}

#[tokio::test]
async fn a_transaction_across_the_hand_over_is_not_executed() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["WATCH", &old.key("a")]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["MULTI"]).await, Resp::simple("OK"));
    let queued = client.call(&["RPUSH", &old.journal(), "10 late"]).await;
    assert_eq!(queued, Resp::simple("QUEUED"));
    RespClient::fenced(&guards[1].address, &new.credential).await;
    assert_fenced(&mut client, &["EXEC"]).await;
    assert_fenced(&mut client, &["RPUSH", &old.journal(), "10 later"]).await;
    assert_eq!(entries(&redis, &old).await, []);
}

#[tokio::test]
async fn a_subscriber_with_an_old_token_is_ended() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    client.call(&["SUBSCRIBE", &old.key("news")]).await;
    let mut next = RespClient::fenced(&guards[1].address, &new.credential).await;
    next.call(&["PUBLISH", &new.key("news"), "late"]).await;
    match client.try_reply().await {
        Ok(reply) => assert_ended(&[reply]),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
    }
}

/// One hand-over under a flood; everything is written down and judged.
async fn flooded(redis: &Redis, first: &str, second: &str, id: &str) {
    let old = Grant::new(10, id);
    let new = Grant::new(20, id);
    let client = RespClient::fenced(first, &old.credential).await;
    let flood = Flood::start(client, &old, 1_000_000);
    flood.answered(2_000).await;
    RespClient::fenced(second, &new.credential).await;
    let seal = Seal { token: 20, length: length(&redis.address(), id).await };
    let mut again = RespClient::connect(first).await;
    again.call(&["AUTH", "fence", &old.credential]).await.expect_error("FENCED");
    let answers = flood.ended().await;
    let journal = Journal { entries: entries(redis, &old).await, seals: vec![seal], answers };
    journal.check().unwrap();
    let sent = journal.answers.len();
    assert!(journal.entries.len() < sent, "the flood was over before: it shows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_stops_at_the_hand_over() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 2).await;
    for round in 0..rounds(4, 40) {
        let first = &guards[0].address;
        let second = &guards[round % 2].address;
        flooded(&redis, first, second, &round.to_string()).await;
    }
}

/// The old client hangs up while Redis is slow with what it sent: that its connection is forgotten
/// must not come before its end, or its last writes would come after the hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_that_was_hung_up_on_stops_before_it_is_forgotten() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 2).await;
    for round in 0..rounds(3, 30) {
        let id = round.to_string();
        let old = Grant::new(10, &id);
        let new = Grant::new(20, &id);
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        // A connection of its own, which ends with its client.
        assert_eq!(client.call(&["WATCH", &old.key("a")]).await, Resp::simple("OK"));
        client.call(&["SETRANGE", &old.key("slow"), "90000000", "x"]).await;
        // Redis reads 16 KiB at a time, then looks after others.
        let entry = format!("10 {}", "flood".repeat(2_000));
        let slow = request(&["BITCOUNT", &old.key("slow")]);
        let pair = [slow, request(&["RPUSH", &old.journal(), &entry])].concat();
        client.send_raw(&pair.repeat(150)).await;
        until_true("Redis to begin", || async { length(&redis.address(), &id).await > 0 }).await;
        let conns = format!("{{fence:default}}:guard:conns:orders/{id}");
        let registered: u64 = redis.run(&["HLEN", &conns]).await;
        drop(client);
        until_true("the connection to be forgotten", || async {
            redis.run::<u64>(&["HLEN", &conns]).await < registered
        })
        .await;
        RespClient::fenced(&guards[1].address, &new.credential).await;
        let at_seal = length(&redis.address(), &id).await;
        assert!(at_seal < 150, "the flood was over before: it shows nothing");
        for _ in 0..50 {
            assert_eq!(length(&redis.address(), &id).await, at_seal, "a write after the seal");
        }
        let _: u64 = redis.run(&["DEL", &old.key("slow")]).await;
    }
}

/// The new holder's guard is far away: its token is admitted only after the old one's connection
/// was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_stops_before_the_new_holder_is_answered_over_a_slow_line() {
    use fence_tests::fault_proxy::{Fault, FaultProxy};
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let near = port(&setup(&redis.url())).await;
    let line = FaultProxy::before(&redis.address()).await;
    let far = port(&setup(&format!("redis://{}", line.address()))).await;
    line.set(Fault::Delay(std::time::Duration::from_millis(40)));
    for round in 0..rounds(3, 20) {
        flooded(&redis, &near.address, &far.address, &round.to_string()).await;
    }
}

/// The old holder's guard is paused with its commands, and resumes after the hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_a_paused_guard_still_holds_is_never_carried_out() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    for round in 0..rounds(5, 50) {
        let id = round.to_string();
        let old = Grant::new(10, &id);
        let new = Grant::new(20, &id);
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        client.call(&["RPUSH", &old.journal(), "10 first"]).await;
        guards[0].server.process.pause();
        for _ in 0..100 {
            client.send_raw(&request(&["RPUSH", &old.journal(), "10 late"])).await;
        }
        RespClient::fenced(&guards[1].address, &new.credential).await;
        guards[0].server.process.resume();
        client.finish_sending().await;
        assert_ended(&client.until_closed().await);
        assert_eq!(entries(&redis, &old).await.len(), 1);
    }
}

/// Nothing may forget a mark by itself.
#[tokio::test]
async fn no_key_of_the_guard_expires() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
    client.call(&["SET", &grant.key("a"), "1"]).await;
    let keys: Vec<String> = redis.run(&["KEYS", "{fence:default}:guard:*"]).await;
    assert!(keys.iter().any(|key| key.ends_with(":marks")), "{keys:?}");
    for key in keys {
        assert_eq!(redis.run::<i64>(&["PTTL", &key]).await, -1, "{key} expires");
    }
}

/// A holder with two locks loses both at once when one of them passes on, and nothing before.
#[tokio::test]
async fn a_connection_with_two_tokens_ends_when_either_is_stale() {
    let redis = Redis::start().await;
    let guards = ports(&redis, 2).await;
    let a = Grant::new(10, "a");
    let b = Grant::new(11, "b");
    let mut client = RespClient::connect(&guards[0].address).await;
    for grant in [&a, &b] {
        let reply = client.call(&["FENCE", "SET", &grant.credential]).await;
        assert_eq!(reply, Resp::simple("OK"));
    }
    for grant in [&a, &b] {
        assert_eq!(client.call(&["SET", &grant.key("k"), "1"]).await, Resp::simple("OK"));
    }
    let newer = Grant::new(12, "b");
    let mut next = RespClient::fenced(&guards[1].address, &newer.credential).await;
    assert_fenced(&mut client, &["SET", &b.key("k"), "late"]).await;
    assert_eq!(next.call(&["GET", &b.key("k")]).await, Resp::bulk("1"));
    // The other lock is still its own, on a new connection.
    let mut again = RespClient::fenced(&guards[0].address, &a.credential).await;
    assert_eq!(again.call(&["SET", &a.key("k"), "2"]).await, Resp::simple("OK"));
}

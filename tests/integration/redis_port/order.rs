//! One connection of a client may travel over several to Redis; its commands keep their order, and
//! a change of its tokens takes effect between two of them.

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};

use super::{keeping_ports, ports};

const INCR: &str = "return redis.call('INCR', KEYS[1])";

/// Shared, confined, transactions, blocking, and answers of the guard itself, all in one piece.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_pipeline_keeps_its_order() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let n = grant.key("n");
    let list = grant.key("list");
    for _ in 0..5 {
        let mut client = RespClient::fenced(&guards[0].address, &grant.credential).await;
        client.call(&["SET", &n, "0"]).await;
        let round: [&[&str]; 9] = [
            &["INCR", &n],
            &["INCR", &n],
            &["EVAL", INCR, "1", &n],
            &["FENCE", "SHOW"],
            &["MULTI"],
            &["INCR", &n],
            &["EXEC"],
            &["RPUSH", &list, "x"],
            &["BLPOP", &list, "0"],
        ];
        let bytes: Vec<u8> = round.iter().flat_map(|words| request(words)).collect();
        client.send_raw(&bytes.repeat(40)).await;
        for at in 0..40 {
            for step in 1..=3 {
                assert_eq!(client.reply().await, Resp::Integer(4 * at + step));
            }
            assert!(client.reply().await.error().is_none());
            assert_eq!(client.reply().await, Resp::simple("OK"));
            assert_eq!(client.reply().await, Resp::simple("QUEUED"));
            assert_eq!(client.reply().await.items(), [Resp::Integer(4 * at + 4)]);
            assert_eq!(client.reply().await, Resp::Integer(1));
            assert_eq!(client.reply().await.items()[1], Resp::bulk("x"));
        }
    }
}

#[tokio::test]
async fn a_refused_connection_may_present_a_newer_token() {
    let redis = Redis::start().await;
    let guards = keeping_ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let last = Grant::new(30, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "1"]).await, Resp::simple("OK"));
    RespClient::fenced(&guards[1].address, &new.credential).await;
    let reply = client.call(&["SET", &old.key("a"), "late"]).await;
    assert!(reply.is_error("FENCED") || reply.is_error("UNKNOWN"), "{reply:?}");
    client.call(&["SET", &old.key("a"), "later"]).await.expect_error("FENCED");
    assert_eq!(client.call(&["AUTH", "fence", &last.credential]).await, Resp::simple("OK"));
    let replies = client.pipeline(&[&["SET", &last.key("a"), "3"], &["GET", &last.key("a")]]).await;
    assert_eq!(replies, [Resp::simple("OK"), Resp::bulk("3")]);
    // And one whose first token was refused.
    let mut client = RespClient::connect(&guards[1].address).await;
    client.call(&["AUTH", "fence", &new.credential]).await.expect_error("FENCED");
    assert_eq!(client.call(&["AUTH", "fence", &last.credential]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", &last.key("a")]).await, Resp::bulk("3"));
}

/// A higher token for one command, on a connection that holds a lower one, ends that one.
#[tokio::test]
async fn one_command_with_a_higher_token_ends_its_own_connections_token() {
    let redis = Redis::start().await;
    let guards = keeping_ports(&redis, 1).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
    assert_eq!(client.call(&["SET", &old.key("a"), "1"]).await, Resp::simple("OK"));
    let reply = client.call(&["FENCE", &new.credential, "SET", &new.key("a"), "2"]).await;
    assert_eq!(reply, Resp::simple("OK"));
    let reply = client.call(&["SET", &old.key("a"), "late"]).await;
    assert!(reply.is_error("FENCED") || reply.is_error("UNKNOWN"), "{reply:?}");
    assert_eq!(client.call(&["FENCE", "SET", &new.credential]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", &new.key("a")]).await, Resp::bulk("2"));
}

/// Equal tokens in another database are another connection to Redis, and end as well.
#[tokio::test]
async fn a_token_ends_in_every_database() {
    let redis = Redis::start().await;
    let guards = keeping_ports(&redis, 2).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let mut clients = Vec::new();
    for db in ["0", "3"] {
        let mut client = RespClient::fenced(&guards[0].address, &old.credential).await;
        assert_eq!(client.call(&["SELECT", db]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["SET", &old.key("db"), db]).await, Resp::simple("OK"));
        assert_eq!(client.call(&["GET", &old.key("db")]).await, Resp::bulk(db));
        clients.push(client);
    }
    RespClient::fenced(&guards[1].address, &new.credential).await;
    for client in &mut clients {
        let reply = client.call(&["SET", &old.key("db"), "late"]).await;
        assert!(reply.is_error("FENCED") || reply.is_error("UNKNOWN"), "{reply:?}");
    }
}

/// A client that hangs up while its replies wait to be read, and its next command waits for those
/// before it, must not keep the guard's thread busy: others are served there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_in_a_full_pipeline_delays_no_other() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guards = ports(&redis, 1).await;
    let grant = Grant::new(10, "1");
    let mut witness = RespClient::fenced(&guards[0].address, &grant.credential).await;
    let large = "x".repeat(8 << 20);
    assert_eq!(witness.call(&["SET", &grant.key("a"), &large]).await, Resp::simple("OK"));
    for round in 1..=5 {
        let mut leaving = RespClient::fenced(&guards[0].address, &grant.credential).await;
        let get = request(&["GET", &grant.key("a")]);
        let script = request(&["EVAL", INCR, "1", &grant.key("late")]);
        leaving.send_raw(&[get.repeat(3), script].concat()).await;
        assert!(leaving.receive_some().await, "no reply began");
        drop(leaving);
        assert_eq!(witness.call(&["INCR", &grant.key("n")]).await, Resp::Integer(round));
    }
}

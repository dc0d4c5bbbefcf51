//! Peers that fall silent: clients, strangers among them, and a path to Redis that goes dark.

use std::time::Duration;

use fence_tests::fault_proxy::FaultProxy;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::scaled;

use super::{port, setup};

/// The connections that exist lose every byte, and nothing closes them; new ones work. So it is
/// when a firewall forgets connections, or the address moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_connection_that_went_dark_is_replaced() {
    let redis = Redis::start().await;
    let line = FaultProxy::before(&redis.address()).await;
    let guard = port(&setup(&format!("redis://{}", line.address()))).await;
    let grant = Grant::new(10, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let set: &[&str] = &["SET", &grant.key("a"), "1"];
    assert_eq!(client.call(set).await, Resp::simple("OK"));
    line.strand();
    client.send(set).await;
    let room = scaled(Duration::from_secs(90));
    let reply = tokio::time::timeout(room, client.next()).await.expect("an answer").unwrap();
    assert!(reply.is_error("UNKNOWN"), "{reply:?}");
    assert_eq!(client.call(set).await, Resp::simple("OK"));
    let mut second = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(second.call(&["GET", &grant.key("a")]).await, Resp::bulk("1"));
}

/// Replies of the guard for a client that is disconnected: an error, and the end.
async fn assert_cut(client: &mut RespClient, why: &str) {
    let replies = client.until_closed().await;
    let [reply] = &replies[..] else { panic!("{why}: {replies:?}") };
    assert!(reply.error().is_some_and(|text| text.contains(why)), "{reply:?}");
}

#[tokio::test]
async fn half_a_command_has_its_time() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--body-timeout", "500ms"])).await;
    let grant = Grant::new(10, "1");
    let mut half = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut resting = RespClient::fenced(&guard.address, &grant.credential).await;
    half.send_raw(b"*3\r\n$3\r\nSET\r\n").await;
    assert_cut(&mut half, "the rest of a command did not arrive within 500 ms").await;
    assert_eq!(resting.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("OK"));
}

#[tokio::test]
async fn who_rests_for_too_long_is_disconnected() {
    let redis = Redis::start().await;
    let limits = ["--redis-idle-timeout", "8s", "--idle-timeout", "6s"];
    let guard = port(&setup(&redis.url()).args(&limits)).await;
    let grant = Grant::new(10, "1");
    let mut known = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut stranger = RespClient::connect(&guard.address).await;
    let mut subscriber = RespClient::fenced(&guard.address, &grant.credential).await;
    subscriber.call(&["SUBSCRIBE", "news"]).await;
    let mut blocked = RespClient::fenced(&guard.address, &grant.credential).await;
    blocked.send(&["BLPOP", &grant.key("list"), "0"]).await;
    assert_cut(&mut stranger, "no token was presented").await;
    assert_cut(&mut known, "no command was sent for 8000 ms").await;
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    let replies =
        other.pipeline(&[&["PUBLISH", "news", "x"], &["RPUSH", &grant.key("list"), "x"]]).await;
    assert_eq!(replies, [Resp::Integer(1), Resp::Integer(1)]);
    assert_eq!(subscriber.reply().await.items()[2], Resp::bulk("x"));
    assert_eq!(blocked.reply().await.items()[1], Resp::bulk("x"));
}

/// Before it presents a token a client has Redis' own limits, unless it can do something without
/// one.
#[tokio::test]
async fn strangers_have_the_limits_of_redis() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(10, "1");
    let key = grant.key("a");
    let large = "x".repeat(100_000);
    let many: Vec<&str> =
        std::iter::once("DEL").chain(std::iter::repeat_n(key.as_str(), 10)).collect();
    let set: &[&str] = &["SET", &key, &large];
    for (words, why) in
        [(set, "unauthenticated bulk length"), (&many, "unauthenticated multibulk length")]
    {
        let mut client = RespClient::connect(&guard.address).await;
        let _ = client.try_send_raw(&request(words)).await;
        assert_cut(&mut client, why).await;
        let mut client = RespClient::connect(&guard.address).await;
        let once = [&["FENCE", &grant.credential], words].concat();
        assert!(client.call(&once).await.error().is_none(), "{why}");
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        assert!(client.call(words).await.error().is_none(), "{why}");
    }
    let mut client = RespClient::connect(&guard.address).await;
    // A script that is loaded stays in Redis for good.
    for words in [&["EVAL", "return 1", "0"][..], &["SCRIPT", "LOAD", "return 1"]] {
        let script = client.call(words).await;
        assert!(script.error().is_some_and(|line| line.starts_with("DENIED")), "{script:?}");
    }
    let open = port(&setup(&redis.url()).args(&["--rule", "public:**=@open"])).await;
    let mut client = RespClient::connect(&open.address).await;
    assert_eq!(client.call(&["SET", "public:a", &large]).await, Resp::simple("OK"));
}

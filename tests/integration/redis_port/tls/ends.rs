//! Ends of connections over TLS, and clients that do not read.

use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::{until, until_true};

use super::super::receive_until_guard_has_all;
use super::{Secured, is_announced_end, tls_setup};

/// Everything that was replied before is received, then the refusal, then an end that the guard
/// announces: what an attacker on the way cuts off looks different.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_gets_its_error_in_full() {
    let port = Secured::start().await;
    let second = super::super::port(&tls_setup(&port.redis.url(), &port.certificates)).await;
    let old = Grant::new(10, "1");
    let mut client = port.fenced(&old).await;
    let large = "x".repeat(6 << 20);
    client.call(&["SET", &old.key("a"), &large]).await;
    client.send(&["GET", &old.key("a")]).await;
    assert!(client.receive_some().await, "no reply began");
    receive_until_guard_has_all(&mut client, &port.redis).await;
    let new = Grant::new(20, "1");
    let mut owner = RespClient::try_tls(&second.address, &port.tls).await.expect("a connection");
    owner.authenticate(&new.credential).await;
    // In one piece: behind the refusal the guard answers what it has read, and closes.
    let late = [request(&["SET", &old.key("b"), "late"]), request(&["PING"])].concat();
    client.send_raw(&late).await;
    assert!(client.reply().await == Resp::bulk(&large), "another value came back");
    for _ in 0..2 {
        let reply = client.reply().await;
        assert!(reply.is_error("FENCED") || reply.is_error("UNKNOWN"), "{reply:?}");
    }
    assert!(is_announced_end(&mut client).await);
    assert_eq!(port.redis.run::<i64>(&["EXISTS", &old.key("b")]).await, 0);
}

#[tokio::test]
async fn every_end_is_announced() {
    let port = Secured::start().await;
    let mut client = port.connect().await;
    assert_eq!(client.call(&["QUIT"]).await, Resp::simple("OK"));
    assert!(is_announced_end(&mut client).await);
    let mut client = port.connect().await;
    client.send_raw(b"*1\r\n$1000000000000\r\n").await;
    client.reply().await.expect_error("ERR");
    assert!(is_announced_end(&mut client).await);
    let mut client = port.connect().await;
    assert_eq!(client.call(&["PING"]).await, Resp::simple("PONG"));
    client.finish_sending().await;
    assert!(is_announced_end(&mut client).await);
}

/// Announced or not, the guard notices it while the client waits in Redis.
#[tokio::test]
async fn a_client_that_leaves_while_it_waits_is_noticed() {
    let port = Secured::start().await;
    let grant = Grant::new(1, "1");
    for is_announced in [true, false] {
        let mut client = port.fenced(&grant).await;
        client.send(&["BLPOP", &grant.key("list"), "0"]).await;
        let blocked = async || {
            let list: String = port.redis.run(&["CLIENT", "LIST"]).await;
            list.contains(" cmd=blpop ")
        };
        until_true("a client that waits", &blocked).await;
        if is_announced {
            client.finish_sending().await;
        }
        drop(client);
        until_true("its end at Redis", async || !blocked().await).await;
    }
}

/// As much as without TLS, and what is encrypted for each client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_no_client_reads_are_bounded() {
    const BUDGET_BYTES: u64 = 32 << 20;
    const SLACK_BYTES: u64 = 64 << 20;
    let port = Secured::with(&["--max-redis-buffer-bytes", &BUDGET_BYTES.to_string()]).await;
    let grant = Grant::new(1, "1");
    let mut first = port.fenced(&grant).await;
    first.call(&["SET", &grant.key("a"), &"x".repeat(1 << 20)]).await;
    let before = port.guard.server.process.resident_bytes();
    let gets = request(&["GET", &grant.key("a")]).repeat(50);
    let mut silent = Vec::new();
    for _ in 0..4 {
        let mut client = port.fenced(&grant).await;
        // The guard stops reading at some point.
        let push = async {
            for _ in 0..2 {
                let _ = client.try_send_raw(&gets).await;
            }
        };
        let _ = tokio::time::timeout(std::time::Duration::from_millis(300), push).await;
        silent.push(client);
    }
    let grown = port.guard.server.process.resident_bytes().saturating_sub(before);
    assert!(grown < BUDGET_BYTES + SLACK_BYTES, "{} MiB more", grown >> 20);
    let grant = Grant::new(2, "2");
    // A busy guard has to take the replies of Redis to the others first.
    let mut other = until("a connection with the next token", || async {
        let mut client = port.connect().await;
        let reply = client.call(&["AUTH", "fence", &grant.credential]).await;
        (!reply.is_error("UNAVAILABLE")).then(|| {
            assert_eq!(reply, Resp::simple("OK"));
            client
        })
    })
    .await;
    assert_eq!(other.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("OK"));
}

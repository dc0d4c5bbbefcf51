//! The port before a Redis Cluster of three real nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use fence_protocol::wire::fence::StoresReply;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::{until, until_true};
use redis_link::slot_of;

use super::{Port, keeping_setup, port, setup};

mod faults;
mod replies;

/// A cluster and a guard before it.
async fn guarded() -> (RedisCluster, Port) {
    let cluster = RedisCluster::start().await;
    let port = port(&keeping_setup(&cluster.url())).await;
    (cluster, port)
}

/// With `--after-fenced close`, the default.
#[tokio::test]
async fn a_connection_with_a_refused_token_is_closed() {
    let cluster = RedisCluster::start().await;
    let port = port(&setup(&cluster.url())).await;
    let old = Grant::new(10, "1");
    let new = Grant::new(20, "1");
    let key = old.key("a");
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["SET", &key, "new"]).await, Resp::simple("OK"));
    client.call(&["FENCE", &old.credential, "SET", &key, "late"]).await.expect_error("FENCED");
    let words: [&[&str]; 3] =
        [&["SET", &key, "late"], &["AUTH", &new.credential], &["SET", &key, "late"]];
    for reply in late.pipeline(&words).await {
        reply.expect_error("FENCED");
    }
    assert_eq!(late.until_closed().await, []);
    // Commands that are still in the socket when the guard has answered all that it has read. With
    // one of the paddings its buffer ends behind a command.
    let rest = request(&["ECHO", &"x".repeat(43)]);
    assert_eq!(rest.len(), 64);
    for padding in 0..64 {
        let mut late = RespClient::fenced(&port.address, &old.credential).await;
        let first = request(&["SET", &key, &"x".repeat(10 + padding)]);
        late.send_raw(&[first, rest.repeat(600)].concat()).await;
        for _ in 0..=600 {
            late.reply().await.expect_error("FENCED");
        }
        assert_eq!(late.until_closed().await, []);
    }
    assert_eq!(client.call(&["GET", &key]).await, Resp::bulk("new"));
}

/// Keys of `orders/1`, in as many slots, on every node.
fn keys(grant: &Grant, count: usize) -> Vec<String> {
    let mut slots = BTreeSet::new();
    let names = (0..).map(|n| grant.key(&format!("k{n}")));
    names.filter(|name| slots.insert(slot_of(name.as_bytes()))).take(count).collect()
}

#[tokio::test]
async fn what_one_token_touched_no_lower_one_changes() {
    let (cluster, port) = guarded().await;
    let other = super::port(&keeping_setup(&cluster.url())).await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&other.address, &new.credential).await;
    for (index, key) in keys(&old, 200).iter().enumerate() {
        assert_eq!(late.call(&["SET", key, "old"]).await, Resp::simple("OK"), "{key}");
        // Reads raise the mark as writes do.
        match index % 2 {
            0 => assert_eq!(client.call(&["GET", key]).await, Resp::bulk("old")),
            _ => assert_eq!(client.call(&["SET", key, "old"]).await, Resp::simple("OK")),
        }
        let refused = late.call(&["SET", key, "late"]).await;
        let text = refused.expect_error("FENCED");
        assert!(text.contains("token 33 is below mark 34 of lock orders/1; nothing"), "{text}");
        late.call(&["GET", key]).await.expect_error("FENCED");
        let found: String = cluster.run(key, &["GET", key]).await;
        assert_eq!(found, "old", "{key}");
    }
    for index in 0..3 {
        let node = cluster.node(index);
        let marks: Vec<String> = node.run(&["KEYS", "*:mark:orders/1"]).await;
        assert!(marks.len() > 20, "{marks:?}");
        for mark in marks {
            let ttl: i64 = node.run(&["TTL", &mark]).await;
            assert_eq!(ttl, -1, "a mark never expires: {mark}");
        }
    }
}

/// A mark that was deleted, or overwritten, is none that was never written.
#[tokio::test]
async fn a_deleted_mark_is_noticed_in_its_slot() {
    let (cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let key = "orders:1:{half}:a";
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["SET", key, "new"]).await, Resp::simple("OK"));
    let node = cluster.node(cluster.owner(slot_of(key.as_bytes())).await);
    let marks: Vec<String> = node.run(&["KEYS", "*:mark:orders/1"]).await;
    let mark: String = node.run(&["GET", &marks[0]]).await;
    for damage in [&["DEL", &marks[0]][..], &["HSET", &marks[0], "a", "b"]] {
        let _: i64 = node.run(damage).await;
        for client in [&mut late, &mut client] {
            client.call(&["SET", key, "late"]).await.expect_error("UNAVAILABLE");
        }
    }
    let _: i64 = node.run(&["DEL", &marks[0]]).await;
    let _: () = node.run(&["SET", &marks[0], &mark]).await;
    late.call(&["SET", key, "late"]).await.expect_error("FENCED");
    assert_eq!(client.call(&["GET", key]).await, Resp::bulk("new"));
}

/// The limit that the documentation states: a slot is sealed by the first touch, not before.
#[tokio::test]
async fn a_slot_that_was_not_touched_is_not_sealed() {
    let (_cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let keys = keys(&old, 2);
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["SET", &keys[0], "new"]).await, Resp::simple("OK"));
    late.call(&["SET", &keys[0], "late"]).await.expect_error("FENCED");
    assert_eq!(late.call(&["SET", &keys[1], "old"]).await, Resp::simple("OK"));
    assert_eq!(client.call(&["GET", &keys[1]]).await, Resp::bulk("old"));
    late.call(&["SET", &keys[1], "late"]).await.expect_error("FENCED");
}

#[tokio::test]
async fn an_equal_token_of_another_lease_collides() {
    let (_cluster, port) = guarded().await;
    let one = Grant::new(34, "1");
    let two = Grant::new(34, "1");
    let key = one.key("a");
    let mut first = RespClient::fenced(&port.address, &one.credential).await;
    let mut second = RespClient::fenced(&port.address, &two.credential).await;
    assert_eq!(first.call(&["INCR", &key]).await, Resp::Integer(1));
    second.call(&["INCR", &key]).await.expect_error("COLLISION");
    assert_eq!(first.call(&["INCR", &key]).await, Resp::Integer(2));
}

#[tokio::test]
async fn a_command_over_two_locks_needs_both_tokens_and_checks_both() {
    let cluster = RedisCluster::start().await;
    // Both keys have the hash tag {t}.
    let rules = ["--rule", "acct:%7Bt%7D:{id}=acct/{id}"];
    let port = super::port(&keeping_setup(&cluster.url()).args(&rules)).await;
    let credential = |token, lock: &str| unsigned(token, lock, lease_id());
    let a = credential(5, "acct/a");
    let b = credential(7, "acct/b");
    let b_new = credential(8, "acct/b");
    let key_a = "acct:{t}:a";
    let key_b = "acct:{t}:b";
    let mut client = RespClient::fenced(&port.address, &a).await;
    let move_it = ["MSET", key_a, "1", key_b, "1"];
    client.call(&move_it).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["FENCE", "SET", &b]).await, Resp::simple("OK"));
    assert_eq!(client.call(&move_it).await, Resp::simple("OK"));
    let mut newer = RespClient::fenced(&port.address, &b_new).await;
    assert_eq!(newer.call(&["GET", key_b]).await, Resp::bulk("1"));
    let text = client.call(&["MSET", key_a, "2", key_b, "2"]).await;
    assert!(text.expect_error("FENCED").contains("token 7 is below mark 8 of lock acct/b"));
    let found: Vec<String> = cluster.run(key_a, &["MGET", key_a, key_b]).await;
    assert_eq!(found, ["1", "1"], "nothing of it was done");
}

/// Several tokens race over several connections and two guards; in every list the tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_never_fall_in_any_slot() {
    let (cluster, one) = guarded().await;
    let two = super::port(&keeping_setup(&cluster.url())).await;
    let lists = Arc::new(keys(&Grant::new(1, "1"), 6));
    let writers: Vec<_> = (1..=12_u64)
        .map(|token| {
            let address = if token % 2 == 0 { &one.address } else { &two.address }.clone();
            let lists = Arc::clone(&lists);
            tokio::spawn(async move {
                let grant = Grant::new(token, "1");
                let mut client = RespClient::fenced(&address, &grant.credential).await;
                let mut applied = Vec::new();
                for round in 0..40 {
                    for list in lists.iter() {
                        let entry = format!("{token} {round}");
                        match client.call(&["RPUSH", list, &entry]).await {
                            Resp::Integer(_) => applied.push((list.clone(), entry)),
                            other => assert!(other.is_error("FENCED"), "{other:?}"),
                        }
                    }
                }
                applied
            })
        })
        .collect();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    let mut found = Vec::new();
    for list in lists.iter() {
        let entries: Vec<String> = cluster.run(list, &["LRANGE", list, "0", "-1"]).await;
        let tokens: Vec<u64> =
            entries.iter().map(|entry| entry.split(' ').next().unwrap().parse().unwrap()).collect();
        assert!(tokens.is_sorted(), "{list}: {tokens:?}");
        assert_eq!(tokens.last(), Some(&12), "the highest is never refused");
        found.extend(entries.into_iter().map(|entry| (list.clone(), entry)));
    }
    acknowledged.sort();
    found.sort();
    assert_eq!(acknowledged, found, "each acknowledged write was done, and nothing else");
}

#[tokio::test]
async fn what_cannot_be_one_step_is_refused_with_its_reason() {
    let (cluster, port) = guarded().await;
    let grant = Grant::new(34, "1");
    let keys = keys(&grant, 2);
    let a = keys[0].as_str();
    let b = keys[1].as_str();
    let mut client = RespClient::fenced(&port.address, &grant.credential).await;
    for words in [
        &["BLPOP", a, "1"][..],
        &["MULTI"],
        &["EXEC"],
        &["WATCH", a],
        &["SUBSCRIBE", "news"],
        &["EVAL", "return 1", "1", a],
        &["SCRIPT", "LOAD", "return 1"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["DBSIZE"],
        &["FLUSHALL"],
        &["WAIT", "1", "0"],
        &["CLIENT", "TRACKING", "ON"],
        &["BITFIELD", a, "GET", "i64", "0"],
    ] {
        let reply = client.call(words).await;
        let text = reply.expect_error("DENIED");
        assert!(text.len() > 40, "a reason: {text}");
    }
    // To its clients the port is one Redis.
    let slots = client.call(&["CLUSTER", "SLOTS"]).await;
    assert_eq!(slots.expect_error("ERR"), "ERR This instance has cluster support disabled");
    client.call(&["MSET", a, "1", b, "1"]).await.expect_error("CROSSSLOT");
    client.call(&["SELECT", "1"]).await.expect_error("ERR");
    let many: Vec<&str> = std::iter::once("RPUSH").chain(std::iter::repeat_n(a, 7000)).collect();
    client.call(&many).await.expect_error("DENIED");
    let most: Vec<&str> = std::iter::once("RPUSH").chain(std::iter::repeat_n(a, 6900)).collect();
    assert_eq!(client.call(&most).await, Resp::Integer(6899));
    let marks: Vec<String> = cluster.run(a, &["KEYS", "*fence*:mark:*"]).await;
    let mark = marks.first().expect("the mark of this slot");
    for words in [&["DEL", mark][..], &["SET", mark, "1"], &["RENAME", a, mark], &["GET", mark]] {
        client.call(words).await.expect_error("DENIED");
    }
    assert_eq!(client.call(&["PING"]).await, Resp::simple("PONG"));
}

#[tokio::test]
async fn a_connection_presents_its_tokens_in_every_way() {
    let (_cluster, port) = guarded().await;
    let grant = Grant::new(34, "1");
    let key = grant.key("a");
    let mut client = RespClient::connect(&port.address).await;
    client.call(&["SET", &key, "1"]).await.expect_error("NOTOKEN");
    client.call(&["GET", &key]).await.expect_error("NOTOKEN");
    client.call(&["AUTH", "hunter2"]).await.expect_error("WRONGTOKEN");
    let ok = Resp::simple("OK");
    assert_eq!(client.call(&["FENCE", &grant.credential, "SET", &key, "1"]).await, ok);
    client.call(&["SET", &key, "1"]).await.expect_error("NOTOKEN");
    assert_eq!(client.call(&["FENCE", "SET", &grant.credential]).await, ok);
    assert_eq!(client.call(&["SET", &key, "2"]).await, ok);
    let shown = client.call(&["FENCE", "SHOW"]).await;
    assert_eq!(shown.items()[0].items()[..2], [Resp::bulk("orders/1"), Resp::bulk("34")]);
    assert_eq!(client.call(&["FENCE", "CLEAR"]).await, ok);
    client.call(&["SET", &key, "3"]).await.expect_error("NOTOKEN");
    let hello = client.call(&["HELLO", "3", "AUTH", "fence", &grant.credential]).await;
    assert!(
        matches!(&hello, Resp::Map(pairs) if pairs.contains(&(Resp::bulk("proto"), Resp::Integer(3))))
    );
    assert_eq!(client.call(&["GET", &key]).await, Resp::bulk("2"));
    assert_eq!(client.call(&["GET", &grant.key("none")]).await, Resp::Null);
    let hello = client.call(&["HELLO", "4"]).await;
    hello.expect_error("NOPROTO");
    assert_eq!(client.call(&["RESET"]).await, Resp::simple("RESET"));
    client.call(&["GET", &key]).await.expect_error("NOTOKEN");
    let replies = client.pipeline(&[&["PING"], &["ECHO", "a"], &["QUIT"]]).await;
    assert_eq!(replies, [Resp::simple("PONG"), Resp::bulk("a"), ok]);
    assert_eq!(client.until_closed().await, []);
    let mut garbage = RespClient::connect(&port.address).await;
    garbage.send_raw(b"*1\r\n$x\r\n").await;
    garbage.reply().await.expect_error("ERR");
    assert_eq!(garbage.until_closed().await, []);
}

/// The limits on strangers and on silence are those before one Redis, and so is a HELLO that fails.
#[tokio::test]
async fn clients_have_the_limits_of_the_other_port() {
    let cluster = RedisCluster::start().await;
    let limits = ["--body-timeout", "5s", "--redis-idle-timeout", "15s"];
    let budget = ["--max-redis-buffer-bytes", "8388608", "--max-command-bytes", "8388608"];
    let port = port(&keeping_setup(&cluster.url()).args(&limits).args(&budget)).await;
    let grant = Grant::new(34, "1");
    let key = grant.key("a");
    let large = "x".repeat(2 << 20);
    let mut stranger = RespClient::connect(&port.address).await;
    let hello = ["HELLO", "3", "AUTH", "fence", &grant.credential, "SETNAME", "a b"];
    stranger.call(&hello).await.expect_error("ERR");
    assert_eq!(stranger.call(&["FENCE", "SHOW"]).await.items(), []);
    let _ = stranger.try_send_raw(&request(&["SET", &key, &large])).await;
    let said = stranger.until_closed().await;
    assert!(said[0].expect_error("ERR").contains("unauthenticated bulk length"), "{said:?}");
    let half = &request(&["SET", &key, &large])[..1 << 20];
    let mut silent = Vec::new();
    for _ in 0..16 {
        let mut client = RespClient::fenced(&port.address, &grant.credential).await;
        let _ = client.try_send_raw(half).await;
        silent.push(client);
    }
    let mut client = RespClient::fenced(&port.address, &grant.credential).await;
    assert_eq!(client.call(&["SET", &key, &large]).await, Resp::simple("OK"));
    let said = silent[15].until_closed().await;
    assert!(said[0].expect_error("ERR").contains("did not arrive within 5000 ms"), "{said:?}");
    let said = client.until_closed().await;
    assert!(said[0].expect_error("ERR").contains("no command was sent for 15000 ms"), "{said:?}");
}

#[tokio::test]
async fn observe_mode_counts_and_lets_pass() {
    let cluster = RedisCluster::start().await;
    let port = port(&keeping_setup(&cluster.url()).args(&["--mode", "observe"])).await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let key = new.key("a");
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["SET", &key, "1"]).await, Resp::simple("OK"));
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    assert_eq!(late.call(&["INCR", &key]).await, Resp::Integer(2));
    let mut anonymous = RespClient::connect(&port.address).await;
    assert_eq!(anonymous.call(&["INCR", &key]).await, Resp::Integer(3));
    let reply = port.server.guard().0.get("/v1/stores").await.expect(200);
    let stores: StoresReply = reply.read();
    let counted: Vec<_> =
        stores.would_refuse.iter().map(|line| (line.code.as_str(), line.total)).collect();
    assert_eq!(counted, [("stale-token", 1), ("token-required", 1)]);
}

/// The objects live in one slot, at the node that owns it, and follow when it moves.
#[tokio::test]
async fn the_objects_follow_their_slot() {
    let (cluster, port) = guarded().await;
    let guard = port.server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &new, "new").await.expect(201);
    let slot = slot_of(b"{fence:default}");
    let from = cluster.owner(slot).await;
    cluster.move_slot(slot, from, (from + 1) % 3).await;
    until_true("the guard to follow", || async {
        let reply = guard.put("a", &old, "late").await;
        assert!(matches!(reply.status, 412 | 503 | 504), "{}", reply.status);
        reply.status == 412
    })
    .await;
    let found = until("an answer", || async {
        let reply = guard.fenced_get("a", &new).await;
        (reply.status == 200).then_some(reply)
    })
    .await;
    assert_eq!(found.body.as_ref(), b"new");
}

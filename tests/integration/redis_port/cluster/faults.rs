//! Slots that move, nodes that die, scripts that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::wait::until_true;
use redis_link::slot_of;

use super::{guarded, keys};
use crate::redis_port::{keeping_setup, port, setup};

/// A stale token stays stale and a current one loses nothing while a slot goes from node to node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_it_is_written() {
    let (cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let list = format!("orders:1:{{{}}}:list", "moving");
    let slot = slot_of(list.as_bytes());
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["RPUSH", &list, "first"]).await, Resp::Integer(1));
    for extra in 0..30 {
        let key = format!("orders:1:{{moving}}:{extra}");
        assert_eq!(client.call(&["SET", &key, "x"]).await, Resp::simple("OK"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let [written, refused] = [0, 1];
    let counts = Arc::clone(&seen);
    let key = list.clone();
    let writer = tokio::spawn(async move {
        let mut acknowledged = vec!["first".to_owned()];
        let mut n = 0_u64;
        while !stopped.load(Ordering::Relaxed) {
            n += 1;
            let entry = n.to_string();
            match client.call(&["RPUSH", &key, &entry]).await {
                Resp::Integer(_) => {
                    acknowledged.push(entry);
                    counts[written].fetch_add(1, Ordering::Relaxed);
                }
                other => assert!(other.is_error("TRYAGAIN"), "{other:?}"),
            }
            let reply = late.call(&["RPUSH", &key, "late"]).await;
            if reply.is_error("FENCED") {
                counts[refused].fetch_add(1, Ordering::Relaxed);
            } else {
                assert!(reply.is_error("TRYAGAIN"), "{reply:?}");
            }
        }
        acknowledged
    });
    let mut from = cluster.owner(slot).await;
    let mut moves = 0;
    while moves < 6 || seen.iter().any(|count| count.load(Ordering::Relaxed) <= 20) {
        moves += 1;
        assert!(moves < 1_000 && !writer.is_finished(), "written and refused: {seen:?}");
        let to = (from + 1) % 3;
        cluster.move_slot(slot, from, to).await;
        from = to;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = writer.await.unwrap();
    let found: Vec<String> = cluster.run(&list, &["LRANGE", &list, "0", "-1"]).await;
    assert_eq!(found, acknowledged, "each once, in order, and nothing else");
}

/// A slot that no node calls its own, because each of two says that it is the other's, is as one on
/// its way. A direction of Redis would lead a client that follows it past the guard.
#[tokio::test]
async fn nodes_that_do_not_agree_lead_no_client_past_the_guard() {
    let (cluster, port) = guarded().await;
    let new = Grant::new(34, "1");
    let key = "orders:1:{torn}:a";
    let slot = slot_of(key.as_bytes());
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    let from = cluster.owner(slot).await;
    let to = (from + 1) % 3;
    cluster.disown(slot, from, to).await;
    client.call(&["SET", key, "early"]).await.expect_error("TRYAGAIN");
    cluster.finish_move(slot, from, to).await;
    assert_eq!(client.call(&["SET", key, "late"]).await, Resp::simple("OK"));
}

/// Between the move of the mark and the move of the key, in either order, no script runs where it
/// would miss the other.
#[tokio::test]
async fn a_mark_on_the_other_side_is_not_missed() {
    let (cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let key = "orders:1:{half}:a";
    let slot = slot_of(key.as_bytes());
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["SET", key, "new"]).await, Resp::simple("OK"));
    let from = cluster.owner(slot).await;
    let to = (from + 1) % 3;
    let marks: Vec<String> = cluster.node(from).run(&["KEYS", "*:mark:orders/1"]).await;
    assert_eq!(marks.len(), 1, "{marks:?}");
    cluster.begin_move(slot, from, to).await;
    late.call(&["SET", key, "late"]).await.expect_error("FENCED");
    assert!(cluster.move_key(slot, from, to, Some(&marks[0])).await);
    // The mark is over there, and the key is here; a new key would be over there.
    for words in [["SET", key, "late"], ["SET", "orders:1:{half}:new", "late"], ["GET", key, ""]] {
        let words = words.split(|word| word.is_empty()).next().unwrap();
        let reply = late.call(words).await;
        assert!(reply.is_error("TRYAGAIN") || reply.is_error("FENCED"), "{words:?}: {reply:?}");
    }
    assert!(cluster.move_key(slot, from, to, Some(key)).await);
    let sets: Vec<String> = cluster.node(from).run(&["KEYS", "*:marks:all"]).await;
    assert_eq!(sets.len(), 1, "{sets:?}");
    let reply = late.call(&["SET", key, "late"]).await;
    assert!(reply.is_error("TRYAGAIN"), "the set of marks is still here: {reply:?}");
    assert!(cluster.move_key(slot, from, to, Some(&sets[0])).await);
    // All of it is over there: the node that takes the slot over runs the script.
    late.call(&["SET", key, "late"]).await.expect_error("FENCED");
    assert_eq!(client.call(&["SET", key, "newer"]).await, Resp::simple("OK"));
    cluster.finish_move(slot, from, to).await;
    late.call(&["SET", key, "late"]).await.expect_error("FENCED");
    assert_eq!(client.call(&["GET", key]).await, Resp::bulk("newer"));
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let (cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    for key in keys(&new, 12) {
        assert_eq!(client.call(&["SET", &key, "1"]).await, Resp::simple("OK"));
    }
    for index in 0..3 {
        let _: () = cluster.node(index).run(&["SCRIPT", "FLUSH"]).await;
    }
    for key in keys(&new, 12) {
        late.call(&["SET", &key, "late"]).await.expect_error("FENCED");
        assert_eq!(client.call(&["INCR", &key]).await, Resp::Integer(2));
    }
}

/// A node that is down costs its own slots alone, and takes its marks along and back again.
#[tokio::test]
async fn a_node_dies_and_comes_back() {
    let (mut cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let all = keys(&new, 30);
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    for key in &all {
        assert_eq!(client.call(&["SET", key, "1"]).await, Resp::simple("OK"));
    }
    let mut lost = Vec::new();
    for key in &all {
        if cluster.owner(slot_of(key.as_bytes())).await == 0 {
            lost.push(key.clone());
        }
    }
    assert!(!lost.is_empty() && lost.len() < all.len());
    cluster.node_mut(0).kill();
    for key in &all {
        let reply = client.call(&["INCR", key]).await;
        match lost.contains(key) {
            false => assert_eq!(reply, Resp::Integer(2), "{key}"),
            true => {
                let codes = ["UNAVAILABLE", "UNKNOWN", "CLUSTERDOWN"];
                assert!(codes.iter().any(|code| reply.is_error(code)), "{reply:?}");
            }
        }
    }
    cluster.node_mut(0).start_again().await;
    cluster.settled().await;
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    for key in &all {
        until_true("the slot to be served", || async {
            let mut client = RespClient::fenced(&port.address, &new.credential).await;
            client.call(&["GET", key]).await.error().is_none()
        })
        .await;
        late.call(&["SET", key, "late"]).await.expect_error("FENCED");
    }
}

/// A command whose reply does not come is reported as unknown, and never sent twice.
#[tokio::test]
async fn a_node_that_stalls_leaves_the_outcome_unknown() {
    let (cluster, port) = guarded().await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let list = new.key("list");
    let owner = cluster.owner(slot_of(list.as_bytes())).await;
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    assert_eq!(client.call(&["RPUSH", &list, "1"]).await, Resp::Integer(1));
    cluster.node(owner).process().pause();
    let reply = client.call(&["RPUSH", &list, "2"]).await;
    let text = reply.expect_error("UNKNOWN");
    assert!(text.contains("unknown outcome"), "{text}");
    cluster.node(owner).process().resume();
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    until_true("the node to be used again", || async {
        let mut client = RespClient::fenced(&port.address, &new.credential).await;
        client.call(&["LLEN", &list]).await.error().is_none()
    })
    .await;
    late.call(&["RPUSH", &list, "late"]).await.expect_error("FENCED");
    let found: Vec<String> = cluster.run(&list, &["LRANGE", &list, "0", "-1"]).await;
    assert_eq!(found, ["1", "2"], "it was only slow");
}

/// A replica takes over: its marks came along with the data that it has.
#[tokio::test]
async fn a_replica_takes_over() {
    let mut cluster = RedisCluster::start().await;
    let replica = cluster.add_replica(0).await;
    let port = port(&keeping_setup(&cluster.url())).await;
    let old = Grant::new(33, "1");
    let new = Grant::new(34, "1");
    let mut client = RespClient::fenced(&port.address, &new.credential).await;
    let mut ours = None;
    for key in keys(&new, 30) {
        assert_eq!(client.call(&["SET", &key, "1"]).await, Resp::simple("OK"));
        if cluster.owner(slot_of(key.as_bytes())).await == 0 {
            ours = Some(key);
        }
    }
    let key = ours.expect("a key of the first node");
    until_true("the replica to have it", || async {
        let there: u64 = cluster.node(replica).run(&["DBSIZE"]).await;
        there == cluster.node(0).run::<u64>(&["DBSIZE"]).await
    })
    .await;
    cluster.node_mut(0).kill();
    until_true("the replica to serve", || async {
        let mut client = RespClient::fenced(&port.address, &new.credential).await;
        let reply = client.call(&["GET", &key]).await;
        reply == Resp::bulk("1")
    })
    .await;
    let mut late = RespClient::fenced(&port.address, &old.credential).await;
    late.call(&["SET", &key, "late"]).await.expect_error("FENCED");
}

/// A setup that cannot be a guard's cluster is refused at the start, with the reason.
#[tokio::test]
async fn a_cluster_that_cannot_be_trusted_is_refused() {
    let plain = fence_tests::redis_server::Redis::start().await;
    let url = format!("redis-cluster://{}", plain.address());
    let said = setup(&url).refused().await;
    assert!(said.stderr.contains("is not part of a cluster"), "{}", said.stderr);
    let cluster = RedisCluster::start().await;
    let _: () = cluster.node(2).run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let said = setup(&cluster.url()).refused().await;
    assert!(said.stderr.contains("may evict marks"), "{}", said.stderr);
    let _: () = cluster.node(2).run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    let _: () = cluster.node(1).run(&["CLUSTER", "DELSLOTS", "6000"]).await;
    let address = cluster.node(1).address();
    let said = setup(&format!("redis-cluster://{address}")).refused().await;
    assert!(said.stderr.contains("no slot 6000"), "{}", said.stderr);
}

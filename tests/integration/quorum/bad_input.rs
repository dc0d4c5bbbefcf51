//! Nodes that cannot be a quorum, or can no longer work: one sentence says which and why, nothing
//! is lost, and what is put right works again by itself. With the program as an operator starts it.

use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Locks, Reply};
use fence_tests::key_file::lease_id;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until;
use serde_json::json;

use super::opening::LONG_MS;

async fn readiness(server: &Server) -> (u16, String) {
    let reply = server.locks().0.get("/readyz?verbose").await;
    (reply.status, String::from_utf8(reply.body.to_vec()).unwrap())
}

/// Waits until the page has one line that begins like this and contains that.
async fn until_line(server: &Server, begins: &str, contains: &str) -> String {
    until(&format!("a line {begins} … {contains}"), || async {
        let (_, text) = readiness(server).await;
        let line = text.lines().find(|line| line.starts_with(begins) && line.contains(contains));
        line.map(ToOwned::to_owned)
    })
    .await
}

async fn until_all_vote(server: &Server) {
    until("all nodes to vote", || async {
        let (status, text) = readiness(server).await;
        (status == 200 && !text.contains("[!]redis-quorum")).then_some(())
    })
    .await;
}

/// The lease, once a majority can be had.
async fn grant(locks: &Locks, lock: &str) -> LeaseReply {
    let ask = json!({"lease_id": lease_id(), "ttl_ms": LONG_MS, "wait_ms": 0});
    let reply = until("a grant", || async {
        let reply = locks.acquire(lock, ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    })
    .await;
    reply.lease()
}

/// Renews it as soon as that can be done: it lives, with its token.
async fn lives(locks: &Locks, lock: &str, lease: &LeaseReply) {
    let reply: Reply = until("the lease to be renewed", || async {
        let reply = locks.renew(lock, lease.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    })
    .await;
    assert_eq!(reply.lease().token, lease.token);
}

/// Asks until it is refused because nothing can be granted, and returns the sentence.
async fn refused(locks: &Locks, lock: &str, says: &[&str]) -> String {
    until(&format!("a refusal that says {says:?}"), || async {
        let reply = locks.acquire(lock, json!({"ttl_ms": 5_000, "wait_ms": 0})).await;
        if reply.status == 200 {
            locks.release(lock, reply.lease().lease_id).await;
            return None;
        }
        if reply.status != 503 {
            return None;
        }
        let detail = reply.problem(Code::StoreUnavailable).detail;
        says.iter().all(|word| detail.contains(word)).then_some(detail)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_is_no_quorum_is_refused_in_one_line() {
    let list = |n: usize| {
        let nodes: Vec<String> = (1..=n).map(|node| format!("redis://10.0.0.{node}")).collect();
        nodes.join(",")
    };
    for (nodes, says) in [
        (list(2), "names 2"),
        (list(4), "names 4"),
        (list(7), "names 7"),
        (format!("{},redis://10.0.0.1", list(2)), "redis://10.0.0.1 is named twice"),
        (format!("{},redis-sentinel://10.0.0.3/m", list(2)), "quorum"),
    ] {
        let output = Setup::lock_server(&format!("redis-quorum:{nodes}")).refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
        assert!(output.stderr.contains(says), "{output:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_one_node_are_refused_by_the_program() {
    let nodes = QuorumNodes::start(2).await;
    let one = nodes.node(0).url();
    let two = nodes.node(1).url();
    let again = one.replace("127.0.0.1", "localhost");
    let output = Setup::lock_server(&format!("redis-quorum:{one},{two},{again}")).refused().await;
    let last = output.stderr.lines().last().unwrap_or_default();
    let says = "lock-server: cannot start: nodes 1 and 3 of the quorum are the same Redis";
    assert!(last.starts_with(says), "{output:?}");
}

/// With a majority away every request is refused with each node's reason; what was held lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_goes_away_is_named_node_by_node() {
    let mut nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let locks = server.locks();
    let held = grant(&locks, "held").await;
    until_all_vote(&server).await;
    nodes.node_mut(1).kill();
    nodes.node_mut(2).kill();
    let second = nodes.node(1).url();
    let third = nodes.node(2).url();
    let sentence = refused(&locks, "other", &[&second, &third, "cannot be reached"]).await;
    assert!(!sentence.contains(&nodes.node(0).url()), "it votes: {sentence}");
    nothing_is_left_of_refused_requests(&locks, nodes.node(0)).await;
    let line = until_line(&server, "[-]redis-quorum", "1 of 3 nodes vote").await;
    assert!(line.contains(&second) && line.contains(&third), "{line}");
    let late = Setup::lock_server(&nodes.url()).refused().await;
    let last = late.stderr.lines().last().unwrap_or_default();
    assert!(last.contains("1 of the quorum's 3 nodes can be used"), "{late:?}");
    assert!(last.contains(&second) && last.contains(&third), "{late:?}");
    nodes.node_mut(1).start_again().await;
    lives(&locks, "held", &held).await;
    nodes.node_mut(2).start_again().await;
    until_all_vote(&server).await;
    locks.let_go("held", held.lease_id).await;
    assert!(grant(&locks, "held").await.token > held.token);
}

/// The vote of the node that is left is rolled back, however quickly it was known to be in vain.
async fn nothing_is_left_of_refused_requests(locks: &Locks, node: &Redis) {
    let asked: Vec<(String, LeaseId)> =
        (0..100).map(|number| (format!("in-vain/{number}"), lease_id())).collect();
    for (lock, lease) in &asked {
        let ask = json!({"lease_id": lease, "ttl_ms": LONG_MS, "wait_ms": 0});
        // From an idle server: then the order in which it sends is least certain.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let reply = Locks::new(locks.0.base()).acquire(lock, ask).await;
        assert!(matches!(reply.status, 503 | 504), "{reply:?}");
    }
    for (lock, lease) in &asked {
        until(&format!("the vote for {lock} to be rolled back"), || async {
            let key = format!("{{fence:default}}:q:l:{lock}");
            let record: Option<String> = node.run(&["GET", &key]).await;
            (!record.unwrap_or_default().contains(&lease.to_string())).then_some(())
        })
        .await;
    }
}

/// A quorum has no sessions, and no retry changes that.
#[tokio::test]
async fn sessions_are_not_offered() {
    let nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let locks = server.locks();
    let session = lease_id();
    let begin = json!({"owner": "me", "ttl_ms": LONG_MS});
    locks.0.post("/v1/sessions", &begin).await.problem(Code::NotOffered);
    let bound = json!({"session_id": session, "ttl_ms": LONG_MS});
    locks.acquire("a", bound).await.problem(Code::NotOffered);
    locks.0.get(&format!("/v1/sessions/{session}")).await.problem(Code::NotOffered);
}

/// Nodes that are full refuse to note a vote. One may be; with two nothing is granted, and when
/// there is room again all is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_full() {
    let nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let locks = server.locks();
    let held = grant(&locks, "held").await;
    until_all_vote(&server).await;
    nodes.node(0).run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let next = grant(&locks, "one-is-full").await;
    lives(&locks, "held", &held).await;
    nodes.node(1).run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let first = nodes.node(0).url();
    let second = nodes.node(1).url();
    let sentence = refused(&locks, "two-are-full", &[&first, &second]).await;
    assert!(sentence.contains("maxmemory") || sentence.contains("OOM"), "{sentence}");
    for at in [0, 1] {
        nodes.node(at).run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    }
    lives(&locks, "held", &held).await;
    lives(&locks, "one-is-full", &next).await;
    grant(&locks, "two-are-full").await;
    until_all_vote(&server).await;
    locks.let_go("held", held.lease_id).await;
    assert!(grant(&locks, "held").await.token > held.token);
}

/// A node becomes a replica of an empty Redis while its connections stay: it is read-only, then
/// empty, and has no vote. Promoted again it is one that has forgotten, and rejoins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_becomes_read_only() {
    let nodes = QuorumNodes::start(3).await;
    let stranger = Redis::start().await;
    let server = Setup::lock_server(&nodes.url()).arg("--ended-retention").arg("1s").start().await;
    let locks = server.locks();
    let held = grant(&locks, "held").await;
    until_all_vote(&server).await;
    let port = stranger.address().rsplit_once(':').unwrap().1.to_owned();
    nodes.node(2).run::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    let node = format!("[!]redis-quorum node 3 {}", nodes.node(2).url());
    until_line(&server, &node, "").await;
    for round in 0..5 {
        let lock = format!("read-only/{round}");
        let lease = grant(&locks, &lock).await;
        locks.let_go(&lock, lease.lease_id).await;
    }
    lives(&locks, "held", &held).await;
    nodes.node(2).run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    lives(&locks, "held", &held).await;
    let taken: Reply = until("an answer", || async {
        let reply = locks.acquire("held", json!({"ttl_ms": 5_000, "wait_ms": 0})).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    })
    .await;
    taken.problem(Code::LockHeld);
    locks.let_go("held", held.lease_id).await;
    until_line(&server, &node, "it has rejoined").await;
    assert!(grant(&locks, "held").await.token > held.token);
}

/// Two nodes become replicas of the third, and so have its memory and not their own: an operator
/// that promotes them again must not get two votes for one node's word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_node_has_no_vote() {
    let mut nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let locks = server.locks();
    grant(&locks, "any").await;
    until_all_vote(&server).await;
    // A lease that the first node knows nothing of.
    nodes.node_mut(0).kill();
    let held = grant(&locks, "held").await;
    drop(server);
    nodes.node_mut(0).start_again().await;
    let port = nodes.node(0).address().rsplit_once(':').unwrap().1.to_owned();
    nodes.node(2).run::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    until("the third node to be a copy of the first", || async {
        let meta = ["HGET", "{fence:default}:q:meta", "node"];
        let one: Option<String> = nodes.node(0).try_run(&meta).await.ok()?;
        let other: Option<String> = nodes.node(2).try_run(&meta).await.ok()?;
        (one.is_some() && one == other).then_some(())
    })
    .await;
    nodes.node(2).run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    // It has never seen the nodes as they were.
    let fresh = Setup::lock_server(&nodes.url()).start().await;
    let locks = fresh.locks();
    let line = until_line(&fresh, "[!]redis-quorum node", "copy").await;
    assert!(line.contains("nodes 1 and 3"), "{line}");
    stays_held(&locks).await;
    // What to do, as the line says: the copy is emptied, and rejoins as a node that has forgotten.
    nodes.node(2).run::<()>(&["FLUSHALL"]).await;
    until_line(&fresh, "[!]redis-quorum node 3", "it has rejoined").await;
    stays_held(&locks).await;
    // One node alone still knows of the lease: enough to keep others out, not to renew it.
    let ended = until("an answer", || async {
        let reply = locks.release("held", held.lease_id).await;
        (reply.status != 503).then_some(reply)
    })
    .await;
    assert!(matches!(ended.status, 200 | 504), "{ended:?}");
    assert!(grant(&locks, "held").await.token > held.token);
}

async fn stays_held(locks: &Locks) {
    for _ in 0..10 {
        let reply = locks.acquire("held", json!({"ttl_ms": 5_000, "wait_ms": 0})).await;
        assert!(matches!(reply.status, 423 | 503 | 504), "{reply:?}");
    }
}

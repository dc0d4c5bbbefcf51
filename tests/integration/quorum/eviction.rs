//! Redis drops keys of a node: where `maxmemory-policy` lets it, it does so without a word.

use fence_tests::history::History;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::wait::until_true;

use super::opening::LONG_MS;
use super::program::{BRIEF_MS, Client, count, server_at, two_held, until_all_vote, until_line};
use super::redlock::judge;

const META: &str = "{fence:default}:q:meta";
const RECORD: &str = "{fence:default}:q:l:a";

/// A node that may drop votes is named as long as it may, and votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_may_drop_votes_is_named() {
    let nodes = QuorumNodes::start(3).await;
    let policy = async |policy: &str| {
        nodes.node(1).run::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]).await;
    };
    policy("allkeys-lru").await;
    let server = server_at(&nodes.url()).await;
    let node = format!("redis-quorum node 2 {}", nodes.node(1).url());
    until_line(&server, &format!("[!]{node}"), "maxmemory-policy is allkeys-lru").await;
    until_line(&server, "[+]redis-quorum ok", "").await;
    policy("noeviction").await;
    until_line(&server, &format!("[+]{node} ok"), "").await;
}

/// Memory really runs out at a node that may drop keys: what it drops first was used least.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_dropped_is_a_vote_that_is_forgotten() {
    let mut nodes = QuorumNodes::start(3).await;
    let history = History::new();
    let first = server_at(&nodes.url()).await;
    let second = server_at(&nodes.url()).await;
    until_all_vote(&first).await;
    until_all_vote(&second).await;
    let holder = Client::new(&first, &history);
    let other = Client::new(&second, &history);
    // A bare majority has it.
    nodes.node_mut(2).kill();
    let held = holder.in_the_end("a", LONG_MS).await;
    holder.until_known(&[nodes.node(0), nodes.node(1)], "a", held.lease_id).await;
    other.refused("a", 3).await;
    fill_until_dropped(&nodes).await;
    let still: u64 = nodes.node(1).run(&["EXISTS", META]).await;
    assert_eq!(still, 1, "what was accepted is there");
    nodes.node_mut(2).start_again().await;
    let next = other.in_the_end("a", LONG_MS).await;
    assert!(next.token > held.token);
    two_held(&history, "a");
    assert_eq!(count(&second, "fencepost_lock_quorum_amnesia").await, 0, "it was not noticed");
    // Its server may have found the third node later than the other one did.
    until_all_vote(&first).await;
    until_true("a known outcome", || async {
        let reply = holder.locks.renew("a", held.lease_id).await;
        assert!([410, 503, 504].contains(&reply.status), "{reply:?}");
        reply.status == 410
    })
    .await;
}

/// Fills the second node beyond what it may use. Only keys that expire are dropped, and the record
/// of the lock is the only one: what was accepted never expires.
async fn fill_until_dropped(nodes: &QuorumNodes) {
    let node = nodes.node(1);
    node.run::<()>(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    node.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    until_true("Redis to drop the record", || async {
        // Refused in the end, for nothing is left that may be dropped.
        let _ = node.try_run::<()>(&["SET", "filler", "x"]).await;
        node.run::<u64>(&["EXISTS", RECORD]).await == 0
    })
    .await;
    node.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
}

/// Everything that a node has accepted is one key: without it the node has forgotten, which is
/// noticed, also if the records of its locks are all there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_what_it_accepted_rejoins() {
    let mut nodes = QuorumNodes::start(3).await;
    let history = History::new();
    let first = server_at(&nodes.url()).await;
    let second = server_at(&nodes.url()).await;
    until_all_vote(&first).await;
    until_all_vote(&second).await;
    let holder = Client::new(&first, &history);
    let other = Client::new(&second, &history);
    nodes.node_mut(2).kill();
    let held = holder.in_the_end("a", 4_000).await;
    nodes.node_mut(2).start_again().await;
    until_all_vote(&first).await;
    assert_eq!(nodes.node(1).run::<u64>(&["DEL", META]).await, 1);
    let next = other.in_the_end("a", BRIEF_MS).await;
    assert!(next.token > held.token);
    judge(&history);
    until_true("the node to vote again", || async {
        let state: Option<String> = nodes.node(1).run(&["HGET", META, "state"]).await;
        state.as_deref() == Some("ready")
    })
    .await;
    let view: u64 = nodes.node(1).run(&["HGET", META, "view"]).await;
    assert!(view > 1, "it votes again in the view in which it forgot");
}

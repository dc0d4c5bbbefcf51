//! Nodes that lose their memory, and what becomes of tokens and leases.

use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::wait::until_true;
use lock_server::store::StoreError;
use service_kit::Kit;

use super::opening::{
    LONG_MS, granted, released, renewed, request, store_at, token_of, until_all_vote, until_held,
};

/// Value of a counter.
pub(super) fn count(kit: &Kit, counter: &str) -> u64 {
    let text = kit.metrics.encode();
    let line = text.lines().find(|line| line.starts_with(&format!("{counter}_total ")));
    line.and_then(|line| line.rsplit_once(' ')).map_or(0, |(_, number)| number.parse().unwrap())
}

/// A node that is emptied rejoins under a new view, above all that was issued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_node_rejoins() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let mut last = token_of(&store, "a").await;
    for at in 0..3 {
        nodes.node(at).run::<()>(&["FLUSHALL"]).await;
        for _ in 0..5 {
            let token = token_of(&store, "a").await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        let bumps = at as u64 + 1;
        until_true("the node to rejoin", || async {
            count(&kit, "fencepost_lock_quorum_view_bumps") >= bumps
        })
        .await;
        until_all_vote(&kit).await;
        assert!(count(&kit, "fencepost_lock_quorum_amnesia") >= bumps);
        let read: Option<String> =
            nodes.node(at).run(&["HGET", "{fence:default}:q:meta", "view"]).await;
        assert_eq!(read, Some((bumps + 1).to_string()));
    }
}

/// A node without persistence is restarted: it votes again, and only after the leases that it may
/// have forgotten are over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_node_without_persistence_rejoins() {
    let mut nodes = QuorumNodes::with(3, &[("appendonly", "no")]).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_voting(&kit).await;
    let held = granted(&store, "held", 12_000).await;
    nodes.node_mut(1).kill();
    nodes.node_mut(1).start_again().await;
    renewed(&store, "held", &held).await;
    super::opening::until_said(&kit, "it has rejoined, and votes within").await;
    until_true("the node to vote again", || async {
        let state: String = nodes.node(1).run(&["HGET", "{fence:default}:q:meta", "state"]).await;
        state == "ready"
    })
    .await;
    assert!(token_of(&store, "held/next").await.get() > 0);
}

/// Waits until every node votes, whatever is said of its settings.
async fn until_all_voting(kit: &Kit) {
    until_true("every node to vote", || async {
        let text = kit.health.report(false).text();
        let silent = ["not answered", "begun", "is new", "verified", "not connected"];
        text.contains("redis-quorum ok") && !silent.iter().any(|why| text.contains(why))
    })
    .await;
}

/// With most of the memory gone nothing is granted before all nodes answer, and then only above
/// everything that can have been issued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_of_the_memory_is_lost() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let before = token_of(&store, "a").await;
    nodes.node_mut(2).kill();
    for at in 0..2 {
        nodes.node(at).run::<()>(&["FLUSHALL"]).await;
    }
    super::opening::until_said(&kit, "0 of 3 nodes vote").await;
    let refused = store.acquire(request("a", 500, 0)).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    nodes.node_mut(2).start_again().await;
    let after = token_of(&store, "a").await;
    assert!(after > before, "{after} after {before}");
    until_all_vote(&kit).await;
}

/// All is gone at once, after views have changed: the quorum begins anew, above everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_the_memory_is_lost() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    nodes.node(0).run::<()>(&["FLUSHALL"]).await;
    until_true("a view bump", || async { count(&kit, "fencepost_lock_quorum_view_bumps") == 1 })
        .await;
    until_all_vote(&kit).await;
    let before = token_of(&store, "a").await;
    for node in nodes.nodes() {
        node.run::<()>(&["FLUSHALL"]).await;
    }
    let after = token_of(&store, "a").await;
    assert!(after > before, "{after} after {before}");
}

/// One node is unreachable: everything continues. When it is back, it is brought up to date.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_may_be_away() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    nodes.node_mut(0).kill();
    let held = granted(&store, "a", LONG_MS).await;
    assert!(kit.health.is_ready());
    until_held(&store, "a", LONG_MS).await;
    nodes.node_mut(0).start_again().await;
    until_all_vote(&kit).await;
    until_true("the node to be topped up by a renewal", || async {
        renewed(&store, "a", &held).await;
        let record: Option<String> = nodes.node(0).run(&["GET", "{fence:default}:q:l:a"]).await;
        record.is_some_and(|record| record.contains(&held.lease_id.to_string()))
    })
    .await;
    // The two that granted it first need not be the two that are asked last.
    nodes.node_mut(1).kill();
    released(&store, "a", &held).await;
    assert!(token_of(&store, "a").await > held.token);
    assert!(granted(&store, "a", LONG_MS).await.token > held.token);
}

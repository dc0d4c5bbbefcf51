//! Nodes that are not what they were: with the memory of another one, or without their scripts.

use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::wait::{until, until_true};
use lock_server::store::StoreError;

use super::opening::{
    LONG_MS, granted, name, released, request, store_at, token_of, until_all_vote, until_said,
};

const ID: [&str; 3] = ["HGET", "{fence:default}:q:meta", "node"];

/// A lease is at the second and the third node. The second becomes a copy of the first, which was
/// away, over the connection that a lock server knows: together they would be a majority that knows
/// of nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_becomes_a_copy_does_not_vote_in_its_own_name() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    nodes.node_mut(0).kill();
    let held = granted(&store, "held", LONG_MS).await;
    nodes.node_mut(0).start_again().await;
    until_all_vote(&kit).await;
    let record: Option<String> = nodes.node(0).run(&["GET", "{fence:default}:q:l:held"]).await;
    assert_eq!(record, None, "the first node knows nothing of the lease");

    nodes.node(0).run::<()>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
    let port = nodes.node(0).address().rsplit_once(':').unwrap().1.to_owned();
    let first: String = nodes.node(0).run(&ID).await;
    nodes.node(1).run::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    until("the second node to be a copy of the first", || async {
        let second: Option<String> = nodes.node(1).try_run(&ID).await.ok()?;
        (second.as_ref() == Some(&first)).then_some(())
    })
    .await;
    nodes.node(1).run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    for _ in 0..20 {
        let other = store.acquire(request("held", LONG_MS, 0)).await;
        assert!(other.is_err(), "{held:?} and {other:?}");
    }
    // It has accepted less than the lock server saw the second node accept, so it has forgotten.
    until_said(&kit, "it has rejoined").await;
    let renewed = store.renew(&name("held"), held.lease_id, None).await;
    assert!(!matches!(&renewed, Ok(grant) if grant.token != held.token), "{renewed:?}");
}

/// The folder of the first node is put in the place of the second one's while a lock server runs:
/// it knows which of the two is the copy, and continues with the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_known_as_one_does_not_stop_the_node() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let before = token_of(&store, "a").await;
    let backup = nodes.backup(0).await;
    nodes.restore(1, &backup).await;
    until_said(&kit, "nodes 1 and 2 have the same memory").await;
    for _ in 0..3 {
        let grant = granted(&store, "b", 5_000).await;
        released(&store, "b", &grant).await;
        until_true("it to be ready", || async { kit.health.is_ready() }).await;
    }
    // As the line says: the copy is emptied, and rejoins.
    nodes.node(1).run::<()>(&["FLUSHALL"]).await;
    until_all_vote(&kit).await;
    assert!(token_of(&store, "a").await > before);
}

/// A vote that met a node without its scripts was not run, and does not come later: what takes it
/// back may have been there by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_at_a_node_without_scripts_is_not_sent_again() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    // The look at the nodes, once a second, may bring the scripts back before the vote.
    let mut refused = None;
    let mut round = 0;
    while refused.is_none() {
        assert!(round < 100, "every vote was sent again");
        round += 1;
        for node in nodes.nodes() {
            node.run::<()>(&["SCRIPT", "FLUSH"]).await;
        }
        let lock = format!("a/{round}");
        match store.acquire(request(&lock, LONG_MS, 0)).await {
            Ok(grant) => released(&store, &lock, &grant).await,
            Err(StoreError::Unavailable(why)) if why.contains("the scripts") => {
                refused = Some(lock);
            }
            // The nodes took too long, as on a busy machine: that shows nothing.
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    let key = format!("{{fence:default}}:q:l:{}", refused.expect("a refusal"));
    granted(&store, "b", 5_000).await;
    for node in nodes.nodes() {
        let record: Option<String> = node.run(&["GET", &key]).await;
        let live = record.is_some_and(|record| !record.starts_with('\n'));
        assert!(!live, "a vote was run after it was reported as not run");
    }
}

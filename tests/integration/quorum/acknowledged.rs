//! An acknowledged grant stays, and none is acknowledged that no majority has voted for.

use std::time::Duration;

use fence_protocol::LeaseId;
use fence_tests::conformance::lock_store::Store;
use fence_tests::key_file::lease_id;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::wait::{soon, until, until_true};
use lock_server::store::{Acquire, Grant, StoreError};

use super::opening::{
    LONG_MS, name, released, renewed, request, store_at, unless_late, until_all_vote,
};

const RECORD: &str = "{fence:default}:q:l:";
/// Probes for something that is rolled back wrongly.
const LOOKS: usize = 20;

/// The record of a lock at a node: the lease's id, its token, and what follows.
async fn record(nodes: &QuorumNodes, at: usize, lock: &str) -> Option<Vec<String>> {
    let text: Option<String> = nodes.node(at).run(&["GET", &format!("{RECORD}{lock}")]).await;
    let head = text?.lines().next()?.to_owned();
    Some(head.split('\t').map(str::to_owned).collect())
}

async fn holds(nodes: &QuorumNodes, at: usize, lock: &str, lease: LeaseId) -> bool {
    record(nodes, at, lock).await.is_some_and(|fields| fields[0] == lease.to_string())
}

/// `true` if the attempt that got a node's vote may roll it back: no other attempt has asked there.
async fn is_one_attempts(nodes: &QuorumNodes, at: usize, lock: &str) -> bool {
    record(nodes, at, lock).await.is_some_and(|fields| !fields[6].is_empty())
}

/// Makes a node forget what it knows of a lock, as if a vote had been rolled back.
async fn forget(nodes: &QuorumNodes, at: usize, lock: &str) {
    nodes.node(at).run::<()>(&["DEL", &format!("{RECORD}{lock}")]).await;
}

/// No node does anything for so long.
async fn stall(nodes: &QuorumNodes, ms: u64) {
    for node in nodes.nodes() {
        node.run::<()>(&["CLIENT", "PAUSE", &ms.to_string(), "ALL"]).await;
    }
}

/// The grant of this request, sent again with its id where the nodes took too long.
async fn given(store: &Store, asked: &Acquire) -> Grant {
    until("a grant", || async { unless_late(store.acquire(asked.clone()).await) }).await
}

/// The grant is there, and stays.
async fn it_stays(store: &Store, lock: &str, grant: &Grant) {
    for _ in 0..LOOKS {
        renewed(store, lock, grant).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Two requests, the first with the higher id.
fn two_requests(lock: &str) -> (Acquire, Acquire) {
    let one = lease_id();
    let other = lease_id();
    let of = |lease_id| Acquire { lease_id, ..request(lock, LONG_MS, 0) };
    (of(one.max(other)), of(one.min(other)))
}

/// X has a vote at one node, Z has one at another, and the third is unreachable: neither holds the
/// lock, and a repeat of X that comes behind a waiter gets no grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_at_one_node_is_no_grant() {
    let mut nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let (x, z) = two_requests("x");
    given(&store, &x).await;
    until_true("the vote for X", || holds(&nodes, 0, "x", x.lease_id)).await;
    until_true("all votes", || holds(&nodes, 1, "x", x.lease_id)).await;
    until_true("all votes", || holds(&nodes, 2, "x", x.lease_id)).await;
    forget(&nodes, 1, "x").await;
    forget(&nodes, 2, "x").await;
    given(&store, &z).await;
    until_true("the vote for Z", || holds(&nodes, 1, "x", z.lease_id)).await;
    until_true("the vote for Z", || holds(&nodes, 2, "x", z.lease_id)).await;
    let own = store.clone();
    let waiting = tokio::spawn(async move { own.acquire(request("x", LONG_MS, LONG_MS)).await });
    let queued =
        || async { store.show(&name("x")).await.is_ok_and(|shown| shown.queue_length == 1) };
    until_true("a waiter", queued).await;
    nodes.node_mut(1).kill();
    let outcome = store.acquire(x).await;
    assert!(!waiting.is_finished());
    waiting.abort();
    assert!(
        matches!(
            outcome,
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::Held { .. })
        ),
        "{outcome:?}"
    );
}

/// A duplicate of a request whose grant was acknowledged, as a proxy makes it, is cancelled while
/// it is with the nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_duplicate_rolls_nothing_back() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let asked = request("x", LONG_MS, LONG_MS);
    let grant = given(&store, &asked).await;
    // On a busy machine it may be cancelled before it is sent.
    until_true("the votes of a cancelled duplicate to arrive", || async {
        stall(&nodes, 300).await;
        let own = store.clone();
        let asked = asked.clone();
        let duplicate = tokio::spawn(async move { own.acquire(asked).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        duplicate.abort();
        tokio::time::sleep(Duration::from_millis(300)).await;
        !is_one_attempts(&nodes, 0, "x").await
    })
    .await;
    it_stays(&store, "x", &grant).await;
}

/// The client cancels its request at one server while it is with the nodes, and repeats it at
/// another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_request_rolls_nothing_back_that_another_server_acknowledged() {
    let nodes = QuorumNodes::start(3).await;
    let (one, kit_one) = store_at(&nodes.url()).await.unwrap();
    let (two, kit_two) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit_one).await;
    until_all_vote(&kit_two).await;
    let asked = request("x", LONG_MS, LONG_MS);
    stall(&nodes, 300).await;
    let first = asked.clone();
    let second = asked;
    let cancelled = tokio::spawn(async move { one.acquire(first).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let own = two.clone();
    let repeated = tokio::spawn(async move { given(&own, &second).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    cancelled.abort();
    let grant = soon("the repeat", repeated).await.unwrap();
    it_stays(&two, "x", &grant).await;
}

/// A client that cancels its request while it is with the nodes, and sends no other, holds nothing:
/// the votes are rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undelivered_grant_is_rolled_back() {
    let nodes = QuorumNodes::start(3).await;
    let (store, kit) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit).await;
    let lease = until("a request that is cancelled before its reply", || async {
        stall(&nodes, 300).await;
        let asked = request("x", LONG_MS, LONG_MS);
        let own = store.clone();
        let lease = asked.lease_id;
        let gone = tokio::spawn(async move { own.acquire(asked).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        gone.abort();
        match gone.await {
            Err(cancelled) => cancelled.is_cancelled().then_some(lease),
            // The nodes' pause was over before, or they took too long.
            Ok(outcome) => {
                let _ = unless_late(outcome);
                until("it to be released", || async {
                    match store.release(&name("x"), lease).await {
                        Err(StoreError::Lost { .. }) => Some(()),
                        outcome => unless_late(outcome).map(drop),
                    }
                })
                .await;
                None
            }
        }
    })
    .await;
    // The nodes count its votes for used up, whatever becomes of them.
    let next = soon("the next", in_turn(&store)).await;
    assert_ne!(next.lease_id, lease);
    for at in 0..3 {
        until_true(&format!("no vote for it at node {at}"), || async {
            !holds(&nodes, at, "x", lease).await
        })
        .await;
    }
}

/// Waits for the lock, once more where the nodes took too long.
async fn in_turn(store: &Store) -> Grant {
    until("a turn", || async { unless_late(store.acquire(request("x", LONG_MS, LONG_MS)).await) })
        .await
}

/// A client of one server takes the lock over and over, and so does another one there: one of them
/// always waits. A waiter at another server gets its turn all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_at_another_server_get_their_turn() {
    let nodes = QuorumNodes::start(3).await;
    let (one, kit_one) = store_at(&nodes.url()).await.unwrap();
    let (two, kit_two) = store_at(&nodes.url()).await.unwrap();
    until_all_vote(&kit_one).await;
    until_all_vote(&kit_two).await;
    let busy = |store: Store| async move {
        loop {
            let grant = in_turn(&store).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            released(&store, "x", &grant).await;
        }
    };
    let clients: Vec<_> = (0..2).map(|_| tokio::spawn(busy(one.clone()))).collect();
    let queued = || async { one.show(&name("x")).await.is_ok_and(|shown| shown.queue_length == 1) };
    until_true("a waiter", queued).await;
    for _ in 0..3 {
        let grant = soon("its turn", in_turn(&two)).await;
        released(&two, "x", &grant).await;
    }
    for client in clients {
        assert!(!client.is_finished(), "a client panicked");
        client.abort();
    }
}

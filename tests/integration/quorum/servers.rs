//! Several lock servers on the same nodes at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fence_tests::checks;
use fence_tests::conformance::lock_store::Store;
use fence_tests::history::{Granted, History};
use fence_tests::key_file::lease_id;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::wait::{soon, until, until_true};
use lock_server::store::{Acquire, Grant, StoreError};
use service_kit::Kit;

use super::opening::{
    LONG_MS, granted, name, released, renewed, request, store_at, unless_late, until_all_vote,
};

async fn servers(nodes: &QuorumNodes, n: usize) -> Vec<(Store, Kit)> {
    let mut all = Vec::new();
    for _ in 0..n {
        all.push(store_at(&nodes.url()).await.unwrap());
    }
    for (_, kit) in &all {
        until_all_vote(kit).await;
    }
    all
}

/// L1 and L2 over all of them; each gets its turn, though no server keeps an order between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_share_a_lock() {
    let nodes = QuorumNodes::start(3).await;
    let servers = servers(&nodes, 3).await;
    let history = Arc::new(History::new());
    let busy = Arc::new(AtomicBool::new(false));
    let workers = (0..6).map(|worker| {
        let store = servers[worker % 3].0.clone();
        let history = history.clone();
        let busy = busy.clone();
        tokio::spawn(async move {
            for _ in 0..6 {
                let (grant, invoked_ns) = until("a turn", || async {
                    let invoked_ns = history.now_ns();
                    let asked = store.acquire(request("shared", LONG_MS, LONG_MS));
                    unless_late(asked.await).map(|grant| (grant, invoked_ns))
                })
                .await;
                history.granted(Granted {
                    lock: "shared".to_owned(),
                    lease: grant.lease_id,
                    token: grant.token.get(),
                    ttl_ms: LONG_MS,
                    span: history.since(invoked_ns),
                    released_ns: None,
                    kept_ns: None,
                });
                assert!(!busy.swap(true, Ordering::SeqCst), "two holders at once");
                tokio::task::yield_now().await;
                assert!(busy.swap(false, Ordering::SeqCst));
                history.releasing(grant.lease_id);
                released(&store, "shared", &grant).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a worker", worker).await.unwrap();
    }
    assert_eq!(history.grants().len(), 36);
    checks::tokens_rise(&history.grants()).unwrap();
    assert_eq!(checks::overlaps(&history.grants()), Vec::<String>::new());
}

/// The grant of this request, sent again with its id where the nodes took too long.
async fn in_turn(store: &Store, asked: &Acquire) -> Grant {
    until("a turn", || async { unless_late(store.acquire(asked.clone()).await) }).await
}

/// A release at one server wakes a waiter at another; no server polls all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_elsewhere_wakes() {
    let nodes = QuorumNodes::start(3).await;
    let servers = servers(&nodes, 2).await;
    let one = servers[0].0.clone();
    let two = servers[1].0.clone();
    let mut held = granted(&one, "w", LONG_MS).await;
    for round in 0..6 {
        let (holder, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let own = other.clone();
        let waiting =
            tokio::spawn(async move { in_turn(&own, &request("w", LONG_MS, LONG_MS)).await });
        let queued =
            || async { other.show(&name("w")).await.is_ok_and(|shown| shown.queue_length == 1) };
        until_true("a place in the queue", queued).await;
        released(holder, "w", &held).await;
        let next = soon("the other server's waiter", waiting).await.unwrap();
        assert!(next.token > held.token);
        held = next;
    }
}

/// A mark that one server has received is exceeded by what another one grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_lifts_all_servers() {
    let nodes = QuorumNodes::start(3).await;
    let servers = servers(&nodes, 2).await;
    let mark = fence_protocol::Token::new(800_000_000_000_000).unwrap();
    until("the lift", || async { unless_late(servers[0].0.lift(mark).await) }).await;
    for lock in ["a", "b", "c"] {
        let grant = granted(&servers[1].0, lock, LONG_MS).await;
        assert!(grant.token > mark, "{} at {lock}", grant.token);
    }
}

/// `true` if the nodes took too long for a request.
fn is_late(outcome: &Result<Grant, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Unavailable(_) | StoreError::Unknown(_)))
}

/// The same request at two servers at once, as from a client that lost patience: one grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_id_at_two_servers_is_one_grant() {
    let nodes = QuorumNodes::start(3).await;
    let servers = servers(&nodes, 2).await;
    for round in 0..20 {
        // Where the nodes took too long for one of the two, nothing is said of the other.
        let (lock, one, two) = until("two replies", || async {
            let lock = format!("twice/{round}/{}", lease_id());
            let asked = request(&lock, LONG_MS, LONG_MS);
            let first = servers[0].0.acquire(asked.clone());
            let second = servers[1].0.acquire(asked);
            let (one, two) = tokio::join!(first, second);
            if is_late(&one) || is_late(&two) {
                return None;
            }
            Some((lock, one.unwrap(), two.unwrap()))
        })
        .await;
        assert_eq!((one.token, one.lease_id), (two.token, two.lease_id), "round {round}");
        renewed(&servers[0].0, &lock, &one).await;
    }
}

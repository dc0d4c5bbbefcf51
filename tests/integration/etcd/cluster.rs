//! Nodes of etcd die, stand still and come back under load. Whatever was answered stays true:
//! tokens rise, an id is granted once, no two leases of a lock live at once, no acknowledged lease
//! is lost.
//!
//! Short by default; `FENCE_LONG=1` makes it long, and `FENCE_SEED` repeats a run's choices.

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::etcd_server::{Etcd, EtcdCluster};
use fence_tests::load::{Load, check};
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::Server;
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use super::{LONG_MS, answered, granted_soon, load, lock_server, setup, until_ready};

/// Two lock servers on three nodes, and their clients.
struct Site {
    cluster: EtcdCluster,
    load: Load,
    seed: Seed,
    _servers: [Server; 2],
    _guard: Server,
}

impl Site {
    async fn start(test: &str) -> Self {
        let mut seed = Seed::of_run(test);
        let cluster = EtcdCluster::start(3).await;
        let setup = setup(&cluster.url());
        let servers = [setup.start().await, setup.start().await];
        let locks = servers.iter().map(Server::locks).collect();
        let (load, guard) = load(locks, &mut seed).await;
        Self { cluster, load, seed, _servers: servers, _guard: guard }
    }

    /// The clients get on for a while, so that what comes next finds them anywhere.
    async fn a_while(&mut self) {
        self.load.progress(6).await;
        tokio::time::sleep(self.seed.time_ms(0, 60)).await;
    }

    async fn judge(self) {
        self.load.progress(12).await;
        let (history, finally) = self.load.stop().await;
        check(&history, &finally);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_node_dies_under_load_and_comes_back() {
    let mut seed = Seed::of_run("etcd::cluster::the_only_node_dies_under_load_and_comes_back");
    let mut etcd = Etcd::start().await;
    let server = lock_server(&etcd).await;
    let kept = server.locks().grant("kept", LONG_MS).await;
    let (load, _guard) = load(vec![server.locks()], &mut seed).await;
    for _ in 0..rounds(3, 60) {
        load.progress(6).await;
        tokio::time::sleep(seed.time_ms(0, 60)).await;
        etcd.start_again().await;
    }
    load.progress(12).await;
    let (history, finally) = load.stop().await;
    check(&history, &finally);
    let locks = server.locks();
    let renewed = answered(|| locks.renew("kept", kept.lease_id)).await.lease();
    assert_eq!(renewed.token, kept.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_dies_under_load() {
    let mut site = Site::start("etcd::cluster::a_follower_dies_under_load").await;
    for _ in 0..rounds(1, 20) {
        site.a_while().await;
        let victim = (site.cluster.leader().await + 1) % site.cluster.len();
        site.cluster.node_mut(victim).kill();
        site.load.progress(12).await;
        site.cluster.node_mut(victim).start_again().await;
    }
    site.judge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_dies_under_load() {
    let mut site = Site::start("etcd::cluster::the_leader_dies_under_load").await;
    for _ in 0..rounds(2, 20) {
        site.a_while().await;
        let leader = site.cluster.leader().await;
        site.cluster.node_mut(leader).kill();
        site.load.progress(12).await;
        assert_ne!(site.cluster.leader().await, leader);
        site.cluster.node_mut(leader).start_again().await;
    }
    site.judge().await;
}

/// A paused leader believes that it leads until the other members correct it. A write that it had
/// not yet agreed on with them is not acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_paused_under_load_and_resumes() {
    let mut site = Site::start("etcd::cluster::the_leader_is_paused_under_load").await;
    for _ in 0..rounds(2, 20) {
        site.a_while().await;
        let leader = site.cluster.leader().await;
        site.cluster.node(leader).process().pause();
        site.load.progress(12).await;
        assert_ne!(site.cluster.leader().await, leader);
        site.cluster.node(leader).process().resume();
        site.load.progress(12).await;
    }
    site.judge().await;
}

/// A time to live and to wait that outlasts an outage, its elections and a busy machine.
const OUTAGE_MS: u64 = 240_000;

/// Without a majority nothing is granted, renewed or released, and every caller gets an error in
/// bounded time; once the majority is back, the state is as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_done_and_nothing_is_lost() {
    let mut cluster = EtcdCluster::start(3).await;
    let server = setup(&cluster.url()).start().await;
    let locks = server.locks();
    let held: LeaseReply = granted_soon(&locks, "a", OUTAGE_MS).await;
    let own = locks.clone();
    let ask = json!({"ttl_ms": OUTAGE_MS, "wait_ms": OUTAGE_MS});
    let waiting = tokio::spawn(async move { own.acquire("a", ask).await });
    locks.queue_of("a", 1).await;
    let leader = cluster.leader().await;
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    for node in others {
        cluster.node_mut(node).kill();
    }
    until_true("no leader", || async { !cluster.node(leader).health().await }).await;
    for _ in 0..3 {
        let acquire = soon("an answer", locks.acquire("b", json!({"ttl_ms": OUTAGE_MS})));
        let renew = soon("an answer", locks.renew("a", held.lease_id));
        let (acquired, renewed) = tokio::join!(acquire, renew);
        for refused in [acquired, renewed] {
            assert!(matches!(refused.status, 503 | 504), "{refused:?}");
        }
    }
    until_true("readyz to fail", || async { locks.0.get("/readyz").await.status == 503 }).await;
    locks.0.get("/livez").await.expect(200);
    assert!(!waiting.is_finished(), "a waiter was not kept");
    for node in others {
        cluster.node_mut(node).launch_again();
    }
    cluster.ready().await;
    until_ready(&server).await;
    let renewed = answered(|| locks.renew("a", held.lease_id)).await.lease();
    assert_eq!(renewed.token, held.token);
    until_true("the release", || async {
        // 410: a release before this one was done, and its reply came too late.
        matches!(locks.release("a", held.lease_id).await.status, 200 | 410)
    })
    .await;
    let next = soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > held.token);
}

//! Sessions on etcd: begun at one server, renewed at another, and ended by etcd when no server is
//! left.

use fence_protocol::SessionId;
use fence_tests::api::Locks;
use fence_tests::etcd_server::{Etcd, EtcdCluster};
use fence_tests::seed::{Seed, rounds};
use fence_tests::servers::{Server, Setup};
use fence_tests::session_client::Sessions;
use fence_tests::session_load::SessionLoad;
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use super::{LONG_MS, answered, patient, setup};

const PROCESSES: usize = 5;

fn names() -> Vec<String> {
    (0..6).map(|number| format!("s/{number}")).collect()
}

fn sessions(server: &Server) -> Sessions {
    Sessions(server.locks().0)
}

async fn two(setup: Setup) -> [Server; 2] {
    let setup = setup.args(&["--liveness", "3s"]);
    [setup.start().await, setup.start().await]
}

/// Keeps a session that lives, as soon as etcd answers in time.
async fn beat(server: &Server, session: SessionId) {
    let client = sessions(server);
    let reply = answered(|| async { client.heartbeat(session).await.expect("an answer") }).await;
    reply.expect(200);
}

/// The server that had the last heartbeat watches a session's time, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_that_received_the_last_heartbeat_ends_the_session() {
    let etcd = Etcd::start().await;
    let [one, two] = two(patient(&etcd.url())).await;
    let session = sessions(&one).begin("process", 10_000).await.session_id;
    let ask = json!({"session_id": session, "owner": "process"});
    let held = one.locks().acquire("kept", ask).await.lease();
    // Longer than the first server would have waited.
    let apart = two.locks().grant("apart", 12_000).await;
    until_true("more than its time to pass", || async {
        beat(&two, session).await;
        two.locks().show("apart").await.holder.is_none_or(|now| now.lease_id != apart.lease_id)
    })
    .await;
    let waiting = tokio::spawn({
        let locks = one.locks();
        async move { locks.acquire("kept", json!({"wait_ms": LONG_MS, "ttl_ms": LONG_MS})).await }
    });
    let next = soon("the waiter", waiting).await.unwrap().lease();
    assert!(next.token > held.token);
    let late = sessions(&one).heartbeat(session).await.expect("an answer");
    assert_eq!((late.status, late.json()["reason"].clone()), (410, json!("expired")));
}

/// The server that had the last heartbeat is gone; another one ends the session, and all its leases
/// with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sessions_of_a_dead_server_end_by_the_others_clocks() {
    let etcd = Etcd::start().await;
    let [mut dying, other] = two(patient(&etcd.url())).await;
    let session = sessions(&dying).begin("process", 12_000).await.session_id;
    let mut held = Vec::new();
    for lock in ["d/1", "d/2", "d/3"] {
        let ask = json!({"session_id": session, "owner": "process"});
        held.push(dying.locks().acquire(lock, ask).await.lease());
    }
    let locks = other.locks();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire("d/2", json!({"wait_ms": LONG_MS, "ttl_ms": LONG_MS})).await }
    });
    locks.queued("d/2", &waiting).await;
    dying.process.kill();
    assert!(soon("the waiter", waiting).await.unwrap().lease().token > held[2].token);
    for lease in &held {
        let late = locks.renew(lease.lock.as_str(), lease.lease_id).await;
        assert_eq!((late.status, late.json()["reason"].clone()), (410, json!("session-ended")));
    }
    let late = sessions(&other).heartbeat(session).await.expect("an answer");
    assert_eq!((late.status, late.json()["reason"].clone()), (410, json!("expired")));
}

/// A server is paused while its sessions are renewed at another: when it resumes, it ends none of
/// them from what it had read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_ends_no_session_of_another() {
    let etcd = Etcd::start().await;
    let [still, other] = two(patient(&etcd.url())).await;
    let session = sessions(&still).begin("process", 10_000).await.session_id;
    let ask = json!({"session_id": session, "owner": "process"});
    let held = still.locks().acquire("kept", ask).await.lease();
    still.process.pause();
    let apart = other.locks().grant("apart", 12_000).await;
    until_true("more than its time to pass", || async {
        beat(&other, session).await;
        other.locks().show("apart").await.holder.is_none_or(|now| now.lease_id != apart.lease_id)
    })
    .await;
    still.process.resume();
    for _ in 0..20 {
        beat(&other, session).await;
        still.locks().show("kept").await;
    }
    let holder = other.locks().show("kept").await.holder.expect("the session's lease was ended");
    assert_eq!(holder.lease_id, held.lease_id);
}

/// etcd's leader dies, and nodes come back, while processes keep their locks by heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_the_leader() {
    let mut seed = Seed::of_run("etcd::sessions::sessions_outlive_the_leader");
    let mut cluster = EtcdCluster::start(3).await;
    let servers = two(setup(&cluster.url())).await;
    let locks = Locks::round_robin(&[&servers[0].base, &servers[1].base]);
    let load = SessionLoad::without_takeover(&locks, &names(), PROCESSES, &mut seed);
    for _ in 0..rounds(2, 30) {
        load.progress(4).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        let leader = cluster.leader().await;
        cluster.node_mut(leader).kill();
        load.progress(4).await;
        cluster.node_mut(leader).start_again().await;
    }
    load.progress(6).await;
    load.judge().await;
}

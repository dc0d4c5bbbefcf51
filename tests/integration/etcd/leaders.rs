//! A leader of etcd stands still, and goes on as if it led.

use std::time::Duration;

use fence_tests::api::Locks;
use fence_tests::etcd_server::{Etcd, EtcdCluster};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::servers::Server;
use fence_tests::wait::{until, until_true};
use serde_json::json;

use super::{LONG_MS, lock_server, setup};

/// Whether this etcd ends leases by the word of a leader that leads no more, as
/// docs/operating/etcd.md says of its versions.
async fn has_the_fault(etcd: &Etcd) -> bool {
    let status = etcd.call("/v3/maintenance/status", &json!({})).await;
    let version = status["version"].as_str().expect("a version").to_owned();
    let numbers: Vec<u64> =
        version.split('.').map(|part| part.parse().expect("a number")).collect();
    match numbers[..] {
        [3, 4, patch] => patch < 31,
        [3, 5, patch] => patch < 13,
        _ => false,
    }
}

async fn readiness(server: &Server) -> String {
    let reply = server.locks().0.get("/readyz?verbose").await;
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// Whoever runs such an etcd is told so, unless it has no other member that could lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_with_a_fault_is_told() {
    let (cluster, alone) = (EtcdCluster::start(3).await, Etcd::start().await);
    // One member is named, and is enough to know of the others.
    let server = lock_server(cluster.node(1)).await;
    let is_told = has_the_fault(cluster.node(1)).await;
    let text = until("the check", || async {
        let text = readiness(&server).await;
        text.contains("etcd").then_some(text)
    })
    .await;
    assert_eq!(text.contains("a leader that stood still ends leases"), is_told, "{text}");
    let server = lock_server(&alone).await;
    until_true("the check", || async { readiness(&server).await.contains("etcd") }).await;
    assert!(!readiness(&server).await.contains("has a fault"));
}

/// Leases are renewed while the leader stands still. When it goes on it may end them by its own
/// clock, where its version has the fault; then their holders are told, and tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_end_loudly_or_not_at_all_when_an_old_leader_goes_on() {
    let cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let server = setup(&cluster.url()).start().await;
    let locks = server.locks();
    let mut held = Vec::new();
    for number in 0..12 {
        held.push(locks.grant(&format!("kept/{number}"), 3_000).await);
    }
    cluster.node(leader).process().pause();
    cluster.node(leader).process().stopped().await;
    until_true("another leader", || async { cluster.leader().await != leader }).await;
    for lease in &held {
        renewed(&locks, lease.lock.as_str(), lease.lease_id).await;
    }
    // Twice what the old leader's clock gives them.
    let apart = locks.grant("apart", 5_000).await;
    until_true("their time to pass", || async {
        for lease in &held {
            renewed(&locks, lease.lock.as_str(), lease.lease_id).await;
        }
        locks.show("apart").await.holder.is_none_or(|now| now.lease_id != apart.lease_id)
    })
    .await;
    cluster.node(leader).process().resume();
    // What it has ended by mistake it has ended by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut lost = 0;
    for lease in &held {
        let (lock, reply) = (lease.lock.as_str(), answered(&locks, lease).await);
        if reply.status == 200 {
            assert_eq!(reply.lease().token, lease.token);
            continue;
        }
        assert_eq!((reply.status, reply.json()["reason"].clone()), (410, json!("expired")));
        lost += 1;
        assert!(locks.grant(lock, LONG_MS).await.token > lease.token);
    }
    let excused = has_the_fault(cluster.node(leader)).await;
    assert!(lost == 0 || excused, "{lost} of {} leases were ended that were renewed", held.len());
}

async fn answered(
    locks: &Locks,
    lease: &fence_protocol::wire::lock::LeaseReply,
) -> fence_tests::api::Reply {
    until("an answer", || async {
        let reply = locks.renew(lease.lock.as_str(), lease.lease_id).await;
        (!matches!(reply.status, 503 | 504)).then_some(reply)
    })
    .await
}

async fn renewed(locks: &Locks, lock: &str, lease: fence_protocol::LeaseId) {
    until_true("a renewal", || async {
        let reply = locks.renew(lock, lease).await;
        assert!(matches!(reply.status, 200 | 503 | 504), "{reply:?}");
        reply.status == 200
    })
    .await;
}

/// A follower that stood still, and is behind when it is asked in place of another, is no older state
/// of etcd: tokens are lifted once, at the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lags_lifts_nothing() {
    let cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let lagging = cluster.node((leader + 1) % 3);
    let proxy = FaultProxy::before(&cluster.node((leader + 2) % 3).address()).await;
    let members = format!("etcd://{},{}", proxy.address(), lagging.address());
    let server = setup(&members).start().await;
    let locks = server.locks();
    for round in 0..2 {
        lagging.process().pause();
        lagging.process().stopped().await;
        for number in 0..40 {
            let lease = locks.grant(&format!("{round}/{number}"), LONG_MS).await;
            locks.release(lease.lock.as_str(), lease.lease_id).await.expect(200);
        }
        // What is asked from now on waits for the follower, and is the first that it hears.
        proxy.set(Fault::Refuse);
        let asking = tokio::spawn({
            let (locks, ask) = (locks.clone(), json!({"ttl_ms": 1_000, "wait_ms": 5_000}));
            async move { locks.acquire("next", ask).await.status }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        lagging.process().resume();
        asking.await.unwrap();
        until_true("a grant", || async {
            locks.acquire("next", json!({"ttl_ms": 1_000, "wait_ms": 5_000})).await.status == 200
        })
        .await;
        proxy.set(Fault::None);
        // The next round begins with the member that does not lag.
        lagging.process().pause();
        lagging.process().stopped().await;
        until_true("the other member", || async {
            locks.acquire("other", json!({"ttl_ms": 1_000, "wait_ms": 5_000})).await.status == 200
        })
        .await;
        lagging.process().resume();
    }
    let metrics = locks.0.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let lifts = text.lines().find(|line| line.starts_with("lock_etcd_lifts_total"));
    assert_eq!(lifts, Some("lock_etcd_lifts_total 1"), "{text}");
}

//! A leader of etcd that is paused, and resumes as if it still led.

use std::time::Duration;

use fence_protocol::wire::lock::{LeaseReply, LockReply};
use fence_tests::api::Locks;
use fence_tests::etcd_server::EtcdCluster;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::wait::{until_true, until_within};
use serde_json::json;
use tokio::task::JoinSet;

use super::{LONG_MS, answered, granted_soon, setup};

/// Time to live of the leases that the paused leader knows. A busy machine renews them in less.
const KEPT_MS: u64 = 30_000;

/// Leases are renewed while the leader is paused. When it resumes, it ends none of them: before
/// etcd 3.4.31 and 3.5.13 such a leader ends etcd leases by its own clock, and no lock hangs on
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_ends_when_an_old_leader_resumes() {
    let cluster = EtcdCluster::start(3).await;
    let leader = cluster.leader().await;
    let server = setup(&cluster.url()).start().await;
    let locks = server.locks();
    let mut granting = JoinSet::new();
    for number in 0..12 {
        let locks = locks.clone();
        granting.spawn(async move { locks.grant(&format!("kept/{number}"), KEPT_MS).await });
    }
    let held = granting.join_all().await;
    cluster.node(leader).process().pause();
    until_true("another leader", || async { cluster.leader().await != leader }).await;
    all_renewed(&locks, &held).await;
    // More than the old leader's clock would give them.
    let apart = granted_soon(&locks, "apart", KEPT_MS + 1_000).await;
    until_within(Duration::from_secs(90), "their time to pass", || async {
        all_renewed(&locks, &held).await;
        let now: LockReply = answered(|| locks.0.get("/v1/locks/apart")).await.expect(200).read();
        now.holder.is_none_or(|now| now.lease_id != apart.lease_id).then_some(())
    })
    .await;
    cluster.node(leader).process().resume();
    // What it has ended by mistake it has ended by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    all_renewed(&locks, &held).await;
}

/// Renews all of these leases at once: each lives, with its token.
async fn all_renewed(locks: &Locks, held: &[LeaseReply]) {
    let mut renewing = JoinSet::new();
    for lease in held {
        let locks = locks.clone();
        let lease = lease.clone();
        renewing.spawn(async move {
            let renewed = answered(|| locks.renew(lease.lock.as_str(), lease.lease_id)).await;
            assert_eq!(renewed.lease().token, lease.token);
        });
    }
    renewing.join_all().await;
}

/// A follower that was paused, and lags when it is read in place of another, is no older state of
/// etcd: tokens are lifted once, at the start.
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
        for number in 0..40 {
            let lease = granted_soon(&locks, &format!("{round}/{number}"), LONG_MS).await;
            locks.let_go(lease.lock.as_str(), lease.lease_id).await;
        }
        // Later requests wait for the follower, and are the first that it receives.
        proxy.set(Fault::Refuse);
        let asking = tokio::spawn({
            let locks = locks.clone();
            let ask = json!({"ttl_ms": 1_000, "wait_ms": 5_000});
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
        until_true("the other member", || async {
            locks.acquire("other", json!({"ttl_ms": 1_000, "wait_ms": 5_000})).await.status == 200
        })
        .await;
        lagging.process().resume();
    }
    let metrics = locks.0.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let lifts = text.lines().find(|line| line.starts_with("fencepost_lock_etcd_lifts_total"));
    assert_eq!(lifts, Some("fencepost_lock_etcd_lifts_total 1"), "{text}");
}

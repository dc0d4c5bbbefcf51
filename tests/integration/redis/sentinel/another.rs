//! A new master that differs from the old one: it lacks a lease, or has another clock.

use super::*;
use crate::redis::recorded_locks::{RecordedLocks, has_all};

const HOUR: i64 = 3_600;
/// Less than Redis keeps the record of a lease beyond its time.
const MOMENT: i64 = 20;

/// The replicas have not received a grant when its master dies. The same id asks again, and no
/// master knows it: it is granted once more, above the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_a_failover_forgot_is_granted_anew() {
    let mut group = WholeGroup::start().await;
    let server = server(&group, &["--after-loss", "grant"]).await;
    let locks = server.locks();
    let lease = lease_id();
    let body = json!({"lease_id": lease, "ttl_ms": 60_000});
    let ask = async || {
        until("a grant", || async {
            let reply = locks.acquire("a", body.clone()).await;
            (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
        })
        .await
    };
    locks.grant("before", 60_000).await;
    has_arrived(&group, "before").await;
    let old = group.one_master().await;
    group.starve(old);
    let first = ask().await;
    assert_eq!(ask().await.token, first.token);
    group.node_mut(old).kill();
    group.another_master(old).await;

    let again = ask().await;
    assert_eq!(again.lease_id, first.lease_id);
    assert!(again.token > first.token, "{again:?} after {first:?}");
    // A client that believes in the first grant learns from the token that it is gone.
    let recorded = RecordedLocks::by(server.locks());
    assert_eq!(recorded.renewed("a", lease).await.lease().token, again.token);
    assert_eq!(ask().await.token, again.token);
}

/// A group whose second Redis has another clock, and a lock that is held at the first one.
async fn held_before_a_failover(
    seconds: i64,
) -> (SentinelGroup, Server, RecordedLocks, LeaseReply) {
    let group = SentinelGroup::with_clock(seconds).await;
    let server = Setup::lock_server(&group.url()).start().await;
    let recorded = RecordedLocks::by(server.locks());
    let held = recorded.granted("held", 15_000).await;
    has_all(group.redis(0), 1).await;
    (group, server, recorded, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_ahead_lets_no_client_beside_a_holder() {
    let (mut group, _server, recorded, held) = held_before_a_failover(HOUR).await;
    group.kill(0).await;
    group.is_master(1).await;
    recorded.is_forgotten_and_waited_for("held", &held).await;
}

/// The record is still there, and the lease has its whole time again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_a_little_ahead_ends_no_lease() {
    let (mut group, _server, recorded, held) = held_before_a_failover(MOMENT).await;
    group.kill(0).await;
    group.is_master(1).await;
    assert_eq!(recorded.renewed("held", held.lease_id).await.lease().token, held.token);
    released(&recorded, "held", held.lease_id).await;
    let next = recorded.granted("held", 300).await;
    assert!(next.token > held.token, "{next:?} after {held:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_behind_keeps_the_time_of_leases() {
    let (mut group, _server, recorded, held) = held_before_a_failover(-HOUR).await;
    group.kill(0).await;
    group.is_master(1).await;
    recorded.keeps_its_time("held", &held).await;
}

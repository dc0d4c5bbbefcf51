//! A network that is split between the node that owns the slot and the others.

use super::*;

const GRANT: &[&str] = &["--after-loss", "grant"];

/// Three masters, and a replica of the one that owns the slot: who owns it, and who will.
async fn with_a_replica() -> (RedisCluster, usize, usize) {
    let mut cluster = RedisCluster::apart().await;
    let old = cluster.owner(slot()).await;
    let new = cluster.add_replica(old).await;
    cluster.settled().await;
    (cluster, old, new)
}

async fn takes_over(cluster: &RedisCluster, new: usize) {
    until_true("the replica to take over", || cluster.claims(new, slot())).await;
}

/// The next grant of a lock, as soon as a server grants.
async fn granted(locks: &Locks, lock: &str) -> LeaseReply {
    let ask = json!({"ttl_ms": 60_000, "lease_id": lease_id()});
    until("a grant", || async {
        let reply = locks.acquire(lock, ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await
}

/// The hole: the old master does not know yet that it is cut off, and the others have replaced it.
/// A client that is connected to it continues there, below the new one and beside it. All nodes
/// wait for as long before they believe it, more or less; here it is more, so that there is time to
/// look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_know_yet_grants_beside_the_new_one() {
    let (mut cluster, old, new) = with_a_replica().await;
    cluster.node_mut(old).set("cluster-node-timeout", "60000").await;
    // Were it slow for a moment, the server would ask the others for another one.
    let stays = ["--store-timeout", "20s", "--liveness", "60s"];
    let here = server(&cluster, &[GRANT, &stays[..]].concat()).await;
    let waits = ["--after-loss", "grant", "--wait-replicas", "1", "--wait-timeout", "200ms"];
    let waits = server(&cluster, &waits).await;
    let others: Vec<usize> = (0..3).filter(|at| *at != old).collect();
    cluster.cut_off(old);
    let first = here.locks().grant("a", 60_000).await;
    takes_over(&cluster, new).await;
    for other in &others {
        let is_known = || cluster.names(*other, slot(), new);
        until_true("the others to know the new master", is_known).await;
    }

    let url = cluster.url_of(&[others[0], others[1], new]);
    let there = Setup::lock_server(&url).args(GRANT).start().await;
    let second = granted(&there.locks(), "a").await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    for (server, lease) in [(&here, &first), (&there, &second)] {
        let recorded = RecordedLocks::by(server.locks());
        let renewed = recorded.renewed("a", lease.lease_id).await.lease();
        assert_eq!(renewed.token, lease.token, "both hold it");
    }
    let late = here.locks().grant("b", 60_000).await;
    assert!(late.token < second.token, "{late:?} after {second:?}: is the hole closed?");
    // What WAIT is for: of two that should have the grant, only one can be asked.
    until_true("the refusal for want of a replica", || async {
        let reply = waits.locks().acquire("c", json!({"ttl_ms": 60_000})).await;
        assert!(matches!(reply.status, 503 | 504), "{reply:?}");
        let is_refused = reply.status == 503;
        is_refused && reply.problem(Code::StoreUnavailable).detail.contains("0 of 1 replicas")
    })
    .await;

    cluster.heal();
    cluster.follows(old, new).await;
    let next = granted(&here.locks(), "d").await;
    assert!(next.token > second.token, "{next:?} after {second:?}");
    let here = RecordedLocks::by(here.locks());
    here.renewed("a", first.lease_id).await.problem(Code::LeaseLost);
}

/// A node that receives nothing either stops by itself, and its lock server continues at the new
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_stops_by_itself() {
    let (cluster, old, new) = with_a_replica().await;
    let server = server(&cluster, &[]).await;
    let recorded = RecordedLocks::by(server.locks());
    cluster.cut_off(old);
    let first = recorded.granted("a", 7_000).await;
    takes_over(&cluster, new).await;
    until_true("the old one to stop", || async {
        let outcome = cluster.node(old).try_run::<u64>(&["INCR", "{fence:default}:any"]).await;
        outcome.is_err_and(|error| error.code() == Some("CLUSTERDOWN"))
    })
    .await;
    assert!(cluster.claims(old, slot()).await, "it does not know of the new one");
    let second = recorded.granted("a", 300).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    cluster.heal();
    cluster.follows(old, new).await;
    let third = recorded.granted("a", 300).await;
    assert!(third.token > second.token, "{third:?} after {second:?}");
    recorded.is_sound();
}

/// The replica has not received a grant when its master dies. The same id asks again, and no node
/// knows it: it is granted once more, above the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_a_failed_over_node_forgot_is_granted_anew() {
    let (mut cluster, old, new) = with_a_replica().await;
    let server = server(&cluster, GRANT).await;
    let locks = server.locks();
    let lease = lease_id();
    let ask = async || locks.acquire("a", json!({"lease_id": lease, "ttl_ms": 60_000})).await;
    cluster.starve(old);
    let first = ask().await.lease();
    assert_eq!(ask().await.lease().token, first.token);
    cluster.node_mut(old).kill();
    takes_over(&cluster, new).await;
    let again = until("the second grant", || async {
        let reply = ask().await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await;
    assert_eq!(again.lease_id, first.lease_id);
    assert!(again.token > first.token, "{again:?} after {first:?}");
    let recorded = RecordedLocks::by(server.locks());
    assert_eq!(recorded.renewed("a", lease).await.lease().token, again.token);
}

/// A lock that is held when its node fails over to one with another clock.
async fn held_at_a_node_with_another_clock(
    seconds: i64,
) -> (RedisCluster, Server, RecordedLocks, LeaseReply) {
    let mut cluster = RedisCluster::start().await;
    let old = cluster.owner(slot()).await;
    let new = cluster.add_replica_with_clock(old, seconds).await;
    cluster.settled().await;
    let server = server(&cluster, &[]).await;
    let recorded = RecordedLocks::by(server.locks());
    let held = recorded.granted("held", 15_000).await;
    has_all(cluster.node(old), 1).await;
    cluster.node_mut(old).kill();
    takes_over(&cluster, new).await;
    (cluster, server, recorded, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_whose_clock_is_ahead_lets_no_client_beside_a_holder() {
    let (_cluster, _server, recorded, held) = held_at_a_node_with_another_clock(3_600).await;
    recorded.is_forgotten_and_waited_for("held", &held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_whose_clock_is_behind_keeps_the_time_of_leases() {
    let (_cluster, _server, recorded, held) = held_at_a_node_with_another_clock(-3_600).await;
    recorded.keeps_its_time("held", &held).await;
}

//! A lock server that loses the sentinels, or the master.

use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::redis_sentinel::MASTER;

use super::*;
use crate::redis::recorded_locks::RecordedLocks;

/// No sentinel can be asked where the master is. The one that is connected continues, but for
/// grants that sentinels have to vouch for; and only when that connection is gone as well there is
/// none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_master_stays_in_use_without_sentinels() {
    let group = SentinelGroup::start().await;
    let ways =
        [FaultProxy::before(&group.address()).await, FaultProxy::before(&group.address()).await];
    let start = async |way: &FaultProxy, args: &[&str]| {
        let url = format!("redis-sentinel://{}/{MASTER}", way.address());
        let setup = Setup::lock_server(&url).args(&["--after-loss", "grant", "--liveness", "60s"]);
        setup.args(args).start().await
    };
    let server = start(&ways[0], &[]).await;
    let waits = start(&ways[1], &["--wait-replicas", "1"]).await;
    let way = &ways[0];
    let locks = RecordedLocks::by(server.locks());
    let held = locks.grant("held", 60_000).await;
    granted(&waits.locks(), "waits").await;
    ways.iter().for_each(|way| way.set(Fault::DropReplies));
    until_true("the refusal for a later master", || async {
        let reply = waits.locks().acquire("a", json!({"ttl_ms": 60_000})).await;
        assert!(matches!(reply.status, 503 | 504), "{reply:?}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        reply.status == 503 && text.contains("a later master may have granted")
    })
    .await;
    let mut last = locks.grant("first", 60_000).await.token;
    for asked in 1..=3 {
        until_true("the sentinels to be asked in vain", || async { way.dropped() >= asked }).await;
        let next = locks.grant(&format!("next/{asked}"), 60_000).await;
        assert!(next.token > last, "{next:?} after {last}");
        last = next.token;
        assert_eq!(locks.renewed("held", held.lease_id).await.lease().token, held.token);
    }

    let _: u64 = group.redis(0).run(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until_true("503", || async {
        let reply = locks.acquire("b", json!({"ttl_ms": 60_000})).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        reply.status == 503 && text.contains("no sentinel says where the master")
    })
    .await;
    way.heal();
    assert_eq!(renewed(&locks, "held", held.lease_id).await, 200);
    let next = locks.grant("c", 60_000).await;
    assert!(next.token > last, "{next:?} after {last}");
}

/// The master lives and reaches no other process: nothing is granted until another one is chosen,
/// which continues above it with the leases that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_is_replaced() {
    let group = WholeGroup::start().await;
    let server = server(&group, &["--after-loss", "grant", "--store-timeout", "3s"]).await;
    let locks = RecordedLocks::by(server.locks());
    let held = locks.grant("held", 60_000).await;
    let old = group.one_master().await;
    has_arrived(&group, "held").await;
    group.isolate(old);
    let refused = locks.acquire("a", json!({"ttl_ms": 60_000})).await;
    assert!([503, 504].contains(&refused.status), "{refused:?}");
    let new = group.another_master(old).await;
    let next = granted(&locks, "a").await;
    assert!(next.token > held.token);
    assert_eq!(locks.renewed("held", held.lease_id).await.lease().token, held.token);
    let role: redis::Value = group.node(old).run(&["ROLE"]).await;
    assert!(format!("{role:?}").contains("master"), "it does not know: {role:?}");

    group.heal();
    group.is_whole().await;
    let last = granted(&locks, "b").await;
    assert!(last.token > next.token);
    assert_eq!(locks.renewed("held", held.lease_id).await.lease().token, held.token);
    let counter: u64 = group.node(new).run(&["GET", "{fence:default}:token"]).await;
    assert!(counter >= last.token.get(), "{counter} after {last:?}");
}

//! Replicas that acknowledge what an old master writes do not make it the master.

use std::time::Duration;

use fence_protocol::Code;
use fence_tests::sentinel_group::WholeGroup;
use fence_tests::servers::Setup;
use fence_tests::wait::{until_true, until_within};
use serde_json::json;

/// A failover that two sentinels of three did not agree on is tried again after seconds, and a
/// server looks for the new master in its own rhythm.
const FAILED_OVER: Duration = Duration::from_secs(120);

/// A sentinel that was cut off with an old master points the replicas of the new one back to it
/// when it learns of them again, until it has learnt of the new master as well. Here it is done by
/// hand, and the sentinels that know better are paused meanwhile, so that it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_whose_replica_came_back_grants_nothing() {
    let group = WholeGroup::start().await;
    let old = group.one_master().await;
    let args = ["--wait-replicas", "1", "--after-loss", "grant"];
    let here = Setup::lock_server(&group.url_here()).args(&args).start().await;
    let before = super::granted(&here.locks(), "orders/1").await;
    group.split(old);
    let new = group.another_master(old).await;
    follows(&group, 3 - old - new, new).await;
    // One that was there before would write to the old master until it notices the new one.
    let there = Setup::lock_server(&group.url_there()).args(&args).start().await;
    let later = until_within(FAILED_OVER, "the new master to be used", || async {
        let reply = there.locks().acquire("orders/2", json!({"ttl_ms": 60_000})).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await;
    assert!(later.token > before.token);
    for at in [1, 2] {
        group.sentinel(at).pause();
    }
    let (host, port) = group
        .node(old)
        .address()
        .rsplit_once(':')
        .map(|(h, p)| (h.to_owned(), p.to_owned()))
        .expect("host:port");
    let _: () = group.node(3 - old - new).run(&["REPLICAOF", &host, &port]).await;
    follows(&group, 3 - old - new, old).await;
    let says = "a later master may have granted: fewer than 2 of 3 sentinels name one address";
    // A replica that acknowledges late is a reason, too.
    until_true("the refusal for a later master", || async {
        let ask = json!({"ttl_ms": 60_000, "wait_ms": 0});
        let reply = here.locks().acquire("orders/3", ask).await;
        assert_eq!(reply.status, 503, "it came after {} and has {reply:?}", later.token);
        reply.problem(Code::StoreUnavailable).detail.contains(says)
    })
    .await;
    for at in [1, 2] {
        group.sentinel(at).resume();
    }
}

/// Waits until the Redis `at` has `master` as its master, which has it in step.
async fn follows(group: &WholeGroup, at: usize, master: usize) {
    until_true("a replica in step", || async {
        let info = group.node(at).try_run::<String>(&["INFO", "replication"]).await;
        let of = group.node(master).try_run::<String>(&["INFO", "replication"]).await;
        info.unwrap_or_default().contains("master_link_status:up")
            && of.unwrap_or_default().contains("state=online")
    })
    .await;
}

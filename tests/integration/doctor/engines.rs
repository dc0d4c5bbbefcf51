//! Engines that work without some of their nodes: each missing one is named.

use fence_tests::etcd_server::EtcdCluster;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::sentinel_group::WholeGroup;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{until, until_true};

use super::{Finding, about, doctor};

/// Findings of `--strict` at a lock server once this check warns.
async fn until_warned(server: &Server, what: &str) -> Vec<Finding> {
    until(&format!("a warning about {what}"), || async {
        let (code, checks) = doctor(&["--server", &server.base, "--strict"]).await;
        let subject = format!("lock-server {what}");
        let mut found = checks.iter().filter(|(_, about, _)| about.starts_with(&subject));
        let is_warned = found.any(|(verdict, ..)| verdict == "warning");
        (is_warned && code == 1).then_some(checks)
    })
    .await
}

#[tokio::test]
async fn a_node_of_a_quorum_that_is_down_is_named() {
    let mut nodes = QuorumNodes::start(3).await;
    let server = Setup::lock_server(&nodes.url()).start().await;
    let goes_round = |checks: &[Finding]| {
        checks.iter().any(|(verdict, about, _)| verdict == "ok" && about == "round trip")
    };
    until_true("a round trip", || async {
        goes_round(&doctor(&["--server", &server.base]).await.1)
    })
    .await;
    nodes.node_mut(2).kill();
    // Nodes of a busy machine reply late.
    until_true("a round trip over two nodes", || async {
        goes_round(&until_warned(&server, "redis-quorum node 3").await)
    })
    .await;
}

#[tokio::test]
async fn a_member_of_etcd_that_is_down_is_named() {
    let mut cluster = EtcdCluster::start(3).await;
    let server = Setup::lock_server(&cluster.url()).start().await;
    let follower = (cluster.leader().await + 1) % 3;
    let address = cluster.node_mut(follower).address();
    cluster.node_mut(follower).kill();
    until_true("that member alone to be named", || async {
        let checks = until_warned(&server, "etcd-members").await;
        let text = about(&checks, "lock-server etcd-members").1;
        text.contains(&address) && text.matches("http").count() == 1
    })
    .await;
}

#[tokio::test]
async fn a_sentinel_and_a_replica_that_are_down_are_named() {
    let mut group = WholeGroup::start().await;
    group.soon_give_up().await;
    let server = Setup::lock_server(&group.url()).start().await;
    let replica = (group.one_master().await + 1) % 3;
    group.sentinel(2).pause();
    let checks = until_warned(&server, "sentinels").await;
    let text = about(&checks, "lock-server sentinels").1;
    assert!(text.contains("sentinel 127.0.0.1:"), "{text}");
    group.sentinel(2).resume();
    group.node_mut(replica).kill();
    until("the replica to be named", || async {
        let checks = until_warned(&server, "sentinels").await;
        about(&checks, "lock-server sentinels").1.contains("replica 127.0.0.").then_some(())
    })
    .await;
}

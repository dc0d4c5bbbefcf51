//! The tools of these tests do what they say: otherwise the tests would show nothing.

use fence_tests::etcd_certificates::EtcdCertificates;
use fence_tests::etcd_server::{Etcd, EtcdCluster, EtcdNetwork};
use fence_tests::wait::until_true;
use serde_json::json;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_backup_has_the_ids_and_not_the_revision() {
    let mut etcd = Etcd::start().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("backup");
    etcd.put("tools/a", "1").await;
    etcd.save(&file).await;
    let saved = etcd.revision().await;
    etcd.put("tools/a", "2").await;
    etcd.put("tools/b", "3").await;
    assert_eq!(etcd.revision().await, saved + 2);
    let before = etcd.call("/v3/maintenance/status", &json!({})).await;
    etcd.restore(&file).await;
    etcd.start_again().await;
    assert_eq!(etcd.range("tools/").await, [("tools/a".to_owned(), "1".to_owned())]);
    assert_eq!(etcd.revision().await, saved);
    let after = etcd.call("/v3/maintenance/status", &json!({})).await;
    assert_eq!(before["header"]["cluster_id"], after["header"]["cluster_id"]);
    assert_eq!(before["header"]["member_id"], after["header"]["member_id"]);
    etcd.start_again().await;
    assert_eq!(etcd.range("tools/").await.len(), 1);
}

/// The test chooses whether etcd comes back as another cluster, and with which keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_comes_back_with_another_cluster_id_or_with_its_own() {
    let mut etcd = Etcd::start().await;
    let cluster_id = async |etcd: &Etcd| {
        etcd.call("/v3/maintenance/status", &json!({})).await["header"]["cluster_id"].clone()
    };
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("backup");
    etcd.put("tools/a", "1").await;
    etcd.save(&file).await;
    let first = cluster_id(&etcd).await;
    etcd.empty();
    etcd.start_again().await;
    assert_eq!((etcd.range("tools/").await.len(), cluster_id(&etcd).await), (0, first.clone()));
    etcd.empty_as("another");
    etcd.start_again().await;
    let second = cluster_id(&etcd).await;
    assert_ne!(second, first);
    etcd.restore_as("a third", &file).await;
    etcd.start_again().await;
    let third = cluster_id(&etcd).await;
    assert!(third != first && third != second && etcd.range("tools/").await.len() == 1);
    let long = etcd.log_length().await + 10;
    etcd.grow_beyond(long).await;
    assert!(etcd.log_length().await > long);
}

/// A node that is cut off knows no leader, the others have one, and it follows again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_is_split_and_healed() {
    let network = EtcdNetwork::start(3).await;
    let lonely = network.cluster().leader().await;
    network.cut_off(lonely);
    let pair = [(lonely + 1) % 3, (lonely + 2) % 3];
    until_true("the lonely one to have no leader", || async {
        !network.node(lonely).health().await
    })
    .await;
    for node in pair {
        until_true("the pair to serve", || async { network.node(node).health().await }).await;
    }
    network.node(pair[0]).put("tools/a", "1").await;
    assert!(!network.node(lonely).health().await);
    network.heal();
    until_true("it to follow", || async { network.node(lonely).health().await }).await;
    assert_eq!(network.node(lonely).range("tools/").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_node_leads_when_the_leader_is_gone() {
    let mut cluster = EtcdCluster::start(3).await;
    let first = cluster.leader().await;
    cluster.node(first).put("tools/a", "1").await;
    cluster.node_mut(first).kill();
    let second = cluster.leader().await;
    assert_ne!(first, second);
    assert_eq!(cluster.node(second).range("tools/").await.len(), 1);
    cluster.node_mut(first).start_again().await;
    cluster.node(second).process().pause();
    let third = cluster.leader().await;
    assert_ne!(second, third);
    cluster.node(second).process().resume();
    cluster.ready().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("backup");
    cluster.node(0).save(&file).await;
    cluster.node(0).put("tools/b", "1").await;
    cluster.restore(&file).await;
    assert_eq!(cluster.node(1).range("tools/").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_users_and_quotas_are_kept() {
    let certificates = EtcdCertificates::new();
    let etcd = Etcd::with_tls(&certificates).await;
    etcd.put("tools/a", "1").await;
    etcd.enable_auth("user", "secret", "fencepost/").await;
    let denied = etcd.try_call("/v3/kv/range", &json!({"key": "YQ=="})).await;
    assert!(denied.unwrap_err().contains("user name is empty"));
    etcd.call_as_root("/v3/kv/range", &json!({"key": "YQ=="})).await;
    let small = Etcd::with(&["--quota-backend-bytes=1048576"]).await;
    small.fill().await;
    assert!(small.range("tools/").await.is_empty(), "it answers reads");
}

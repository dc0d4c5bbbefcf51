//! The connection that waits for replicas goes with the node that owns the slot.

use super::*;

/// Both servers grant again after a failover by command, and are ready. The old node continues to
/// answer `PING` on the connection that was open before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_replicas_must_have_go_on_after_a_failover() {
    let mut cluster = RedisCluster::start().await;
    let first = cluster.owner(slot()).await;
    let second = cluster.add_replica(first).await;
    cluster.settled().await;
    let args = ["--after-loss", "grant", "--wait-replicas", "1", "--wait-timeout", "5s"];
    let servers = [server(&cluster, &args).await, server(&cluster, &args).await];
    for server in &servers {
        granted(server).await;
    }
    cluster.fail_over(second, slot()).await;
    cluster.follows(first, second).await;
    for server in &servers {
        granted(server).await;
        until_true("readyz", || async { server.locks().0.get("/readyz").await.status == 200 })
            .await;
    }
}

async fn granted(server: &Server) {
    until_true("a grant that a replica has", || async {
        let lock = format!("a/{}", lease_id());
        server.locks().acquire(&lock, json!({"ttl_ms": 60_000})).await.status == 200
    })
    .await;
}

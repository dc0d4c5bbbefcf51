//! Three masters that share the slots, and two replicas of the one that owns the namespace.

use async_trait::async_trait;
use redis_link::slot_of;

use crate::campaign::{Engine, Row, Starting};
use crate::redis_cluster::RedisCluster;
use crate::seed::Seed;
use crate::wait::until;

/// Redis Cluster that the rows break.
#[derive(Debug)]
struct Cluster {
    cluster: RedisCluster,
    slot: u16,
}

/// Its rows.
pub fn rows() -> Vec<Row> {
    let row = |fault, flags, start| Row { engine: "cluster", fault, flags, promise: None, start };
    let majority = &["--wait-replicas", "1"];
    vec![
        row("move-slot", &[], alone),
        row("kill-master", &[], with_replicas),
        row("kill-master", majority, with_replicas),
    ]
}

fn alone() -> Starting {
    Box::pin(async { Box::new(Cluster::start().await) as Box<dyn Engine> })
}

fn with_replicas() -> Starting {
    Box::pin(async {
        let mut started = Cluster::start().await;
        let owner = started.cluster.owner(started.slot).await;
        for _ in 0..2 {
            started.cluster.add_replica(owner).await;
        }
        started.cluster.settled().await;
        Box::new(started) as Box<dyn Engine>
    })
}

impl Cluster {
    async fn start() -> Self {
        let slot = slot_of(b"{fence:default}:lineage");
        Self { cluster: RedisCluster::start().await, slot }
    }
}

#[async_trait]
impl Engine for Cluster {
    fn store(&self, _server: usize) -> String {
        self.cluster.url()
    }

    async fn hurt(&mut self, fault: &str, seed: &mut Seed) {
        let from = self.cluster.owner(self.slot).await;
        match fault {
            "move-slot" => {
                let to = (from + 1) % 3;
                self.cluster.begin_move(self.slot, from, to).await;
                tokio::time::sleep(seed.time_ms(0, 300)).await;
                while self.cluster.move_key(self.slot, from, to, None).await {
                    tokio::time::sleep(seed.time_ms(0, 10)).await;
                }
                self.cluster.finish_move(self.slot, from, to).await;
            }
            "kill-master" => {
                self.cluster.node_mut(from).kill();
                let promoted = until("the replica to take over", || async {
                    self.cluster.try_owner(self.slot).await
                })
                .await;
                tokio::time::sleep(seed.time_ms(0, 500)).await;
                self.cluster.node_mut(from).start_again().await;
                self.cluster.follows(from, promoted).await;
            }
            other => panic!("{other} is no fault of cluster"),
        }
        self.cluster.settled().await;
    }
}

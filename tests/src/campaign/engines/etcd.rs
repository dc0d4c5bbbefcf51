//! One etcd, and three that elect a leader.

use async_trait::async_trait;

use crate::campaign::{Engine, Row, Start, Starting};
use crate::checks::failover::Scope;
use crate::etcd_server::EtcdCluster;
use crate::seed::Seed;

/// The nodes, be it one.
#[derive(Debug)]
struct Nodes(EtcdCluster);

/// Its rows.
pub fn rows() -> Vec<Row> {
    let row = |engine, fault, start: Start| Row {
        engine,
        fault,
        flags: &[],
        promise: Some(Scope::Namespace),
        start,
    };
    vec![
        row("etcd-1", "restart", one),
        row("etcd-3", "kill-leader", three),
        row("etcd-3", "stop-leader", three),
    ]
}

fn one() -> Starting {
    Box::pin(started(1))
}

fn three() -> Starting {
    Box::pin(started(3))
}

async fn started(nodes: usize) -> Box<dyn Engine> {
    Box::new(Nodes(EtcdCluster::start(nodes).await))
}

impl Nodes {
    /// Waits until the others have a leader of their own. A node that is dead or paused votes for
    /// no leader: [`EtcdCluster::leader`] asks only those that run.
    async fn another_leads(&self, old: usize) {
        assert_ne!(self.0.leader().await, old, "a dead or paused node leads");
    }
}

#[async_trait]
impl Engine for Nodes {
    fn store(&self, _server: usize) -> String {
        self.0.url()
    }

    async fn hurt(&mut self, fault: &str, seed: &mut Seed) {
        let leader = self.0.leader().await;
        match fault {
            "restart" => {
                self.0.node_mut(leader).kill();
                tokio::time::sleep(seed.time_ms(0, 300)).await;
                self.0.node_mut(leader).start_again().await;
            }
            "kill-leader" => {
                self.0.node_mut(leader).kill();
                self.another_leads(leader).await;
                tokio::time::sleep(seed.time_ms(0, 500)).await;
                self.0.node_mut(leader).start_again().await;
            }
            "stop-leader" => {
                self.0.node(leader).process().pause();
                self.another_leads(leader).await;
                tokio::time::sleep(seed.time_ms(0, 1_000)).await;
                self.0.node(leader).process().resume();
            }
            other => panic!("{other} is no fault of etcd"),
        }
        self.0.ready().await;
    }
}

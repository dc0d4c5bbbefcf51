//! Several nodes of etcd.

use std::path::Path;

use serde_json::json;

use super::{Etcd, Place};
use crate::wait::until;

/// Nodes that elect a leader; gone when dropped.
#[derive(Debug)]
pub struct EtcdCluster {
    nodes: Vec<Etcd>,
}

impl EtcdCluster {
    /// So many nodes, with a leader.
    pub async fn start(count: usize) -> Self {
        let mut cluster = Self::spawn(count);
        cluster.ready().await;
        cluster
    }

    /// So many nodes; nothing is known yet of how it goes.
    fn spawn(count: usize) -> Self {
        Self::at((0..count).map(Place::new).collect())
    }

    /// Nodes at these places; nothing is known yet of how it goes.
    pub(super) fn at(places: Vec<Place>) -> Self {
        let members: Vec<String> = places.iter().map(Place::member).collect();
        let members = members.join(",");
        let nodes = places
            .into_iter()
            .map(|place| Etcd::spawn(place, members.clone(), &[], None))
            .collect();
        Self { nodes }
    }

    /// Waits until every node follows the leader.
    pub async fn ready(&mut self) {
        for node in &mut self.nodes {
            node.ready().await;
        }
    }

    /// `etcd://127.0.0.1:PORT,…` with every node.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(Etcd::address).collect();
        format!("etcd://{}", addresses.join(","))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: a cluster has nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// One node.
    pub fn node(&self, index: usize) -> &Etcd {
        &self.nodes[index]
    }

    /// One node, to stop and start it.
    pub fn node_mut(&mut self, index: usize) -> &mut Etcd {
        &mut self.nodes[index]
    }

    /// Index of the leader, as it says itself and a majority agrees.
    pub async fn leader(&self) -> usize {
        until("a leader", || async {
            let mut votes = vec![0; self.nodes.len()];
            for node in &self.nodes {
                if let Some(leader) = self.leader_of(node).await {
                    votes[leader] += 1;
                }
            }
            votes.iter().position(|count| *count > self.nodes.len() / 2)
        })
        .await
    }

    /// Whom a node follows.
    async fn leader_of(&self, node: &Etcd) -> Option<usize> {
        if !node.is_awake() {
            return None;
        }
        let status = node.try_call("/v3/maintenance/status", &json!({})).await.ok()?;
        let leader = status["leader"].as_str()?;
        for (index, other) in self.nodes.iter().enumerate() {
            if other.member_id().await.as_deref() == Some(leader) {
                return Some(index);
            }
        }
        None
    }

    /// Kills every node and gives each what the file holds, as [`Etcd::restore`]; then starts them.
    pub async fn restore(&mut self, file: &Path) {
        for node in &mut self.nodes {
            node.restore(file).await;
        }
        for node in &mut self.nodes {
            node.launch_again();
        }
        self.ready().await;
    }
}

//! The nodes of a quorum: independent Redis, some of which a test may stop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use fence_protocol::Namespace;
use tokio::sync::Mutex;

use crate::redis_server::Redis;

/// Several Redis that know nothing of each other.
#[derive(Debug)]
pub struct QuorumNodes {
    nodes: Vec<Redis>,
    namespaces: AtomicU64,
}

/// The nodes that tests share, by their number, for as long as one of them uses them.
static SHARED: Mutex<Vec<(usize, Weak<QuorumNodes>)>> = Mutex::const_new(Vec::new());

impl QuorumNodes {
    /// So many of them, which keep every answered write.
    pub async fn start(n: usize) -> Self {
        Self::with(n, &[]).await
    }

    /// So many of them, with other settings than the durable ones.
    pub async fn with(n: usize, options: &[(&str, &str)]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..n {
            nodes.push(Redis::with(options).await);
        }
        Self { nodes, namespaces: AtomicU64::new(0) }
    }

    /// So many that others use too, each in a [namespace](Self::namespace) of its own; only for tests
    /// that stop none of them.
    pub async fn shared(n: usize) -> Arc<Self> {
        let mut shared = SHARED.lock().await;
        let known = shared.iter().find(|(number, _)| *number == n);
        if let Some(nodes) = known.and_then(|(_, nodes)| nodes.upgrade()) {
            return nodes;
        }
        let nodes = Arc::new(Self::start(n).await);
        shared.retain(|(number, _)| *number != n);
        shared.push((n, Arc::downgrade(&nodes)));
        nodes
    }

    /// `redis-quorum:redis://127.0.0.1:PORT,…`.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Redis::url).collect();
        format!("redis-quorum:{}", urls.join(","))
    }

    /// A namespace that no other caller gets.
    ///
    /// # Panics
    /// Never: the names are fine.
    pub fn namespace(&self) -> Namespace {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        Namespace::new(format!("case-{number}")).expect("a namespace")
    }

    /// One of them, counted from 0.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn node(&self, at: usize) -> &Redis {
        &self.nodes[at]
    }

    /// One of them, to stop and start it.
    ///
    /// # Panics
    /// Where there are fewer.
    pub fn node_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.nodes[at]
    }

    /// All of them.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }
}

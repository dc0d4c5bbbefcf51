//! The nodes of a quorum: independent Redis, some of which a test may stop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use fence_protocol::Namespace;
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::fault_proxy::FaultProxy;
use crate::redis_server::Redis;
use crate::redis_users::User;

const PAGE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/quorum.md"));

/// Files of a node at one moment.
#[derive(Debug)]
pub struct Backup(TempDir);

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

    /// So many that others use too, each in a [namespace](Self::namespace) of its own; only for
    /// tests that stop none of them.
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
    /// If there are fewer.
    pub fn node(&self, at: usize) -> &Redis {
        &self.nodes[at]
    }

    /// One of them, to stop and start it.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn node_mut(&mut self, at: usize) -> &mut Redis {
        &mut self.nodes[at]
    }

    /// All of them.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// A way of its own to each of them, for one lock server: the URL through it, and what may hurt
    /// it.
    pub async fn ways(&self) -> (String, Vec<FaultProxy>) {
        let mut ways = Vec::new();
        for node in &self.nodes {
            ways.push(FaultProxy::before(&node.address()).await);
        }
        let urls: Vec<String> =
            ways.iter().map(|way| format!("redis://{}", way.address())).collect();
        (format!("redis-quorum:{}", urls.join(",")), ways)
    }

    /// Copies what a node has on its disk while it runs, as an operator does.
    ///
    /// # Panics
    /// If it has nothing there.
    pub async fn backup(&self, at: usize) -> Backup {
        let backup = Backup(crate::folder::new());
        copy(&appended(&self.nodes[at]).await, backup.0.path());
        backup
    }

    /// Kills a node and starts it again with what it had on its disk then.
    ///
    /// # Panics
    /// If there is no such node.
    pub async fn restore(&mut self, at: usize, backup: &Backup) {
        let folder = appended(&self.nodes[at]).await;
        self.nodes[at].kill();
        std::fs::remove_dir_all(&folder).expect("the folder of a node");
        std::fs::create_dir(&folder).expect("the folder of a node");
        copy(backup.0.path(), &folder);
        self.nodes[at].start_again().await;
    }

    /// Makes the user that docs/operating/quorum.md makes, at every node.
    pub async fn make(&self, user: &User<'_>) {
        for at in 0..self.nodes.len() {
            self.make_at(at, user).await;
        }
    }

    /// The same at one node.
    ///
    /// # Panics
    /// If there is no such node.
    pub async fn make_at(&self, at: usize, user: &User<'_>) {
        user.make_as(&user.commands_of(PAGE), &self.nodes[at]).await;
    }

    /// The rights to commands that the page gives it, as `+get`.
    pub fn rights(user: &User<'_>) -> Vec<String> {
        let words = user.commands_of(PAGE).into_iter().flatten();
        words.filter(|word| word.starts_with('+')).collect()
    }

    /// `redis-quorum:redis://NAME:PASSWORD@127.0.0.1:PORT,…`.
    pub fn url_as(&self, user: &User<'_>) -> String {
        let urls: Vec<String> = self.nodes.iter().map(|node| user.url(node)).collect();
        format!("redis-quorum:{}", urls.join(","))
    }
}

/// Path of the file to which a node appends its writes.
async fn appended(node: &Redis) -> PathBuf {
    let dir: (String, String) = node.run(&["CONFIG", "GET", "dir"]).await;
    let name: (String, String) = node.run(&["CONFIG", "GET", "appenddirname"]).await;
    Path::new(&dir.1).join(name.1)
}

fn copy(from: &Path, to: &Path) {
    let mut copied = 0;
    for file in std::fs::read_dir(from).expect("a folder of a node").flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
        copied += 1;
    }
    assert!(copied > 0, "nothing is in {}", from.display());
}

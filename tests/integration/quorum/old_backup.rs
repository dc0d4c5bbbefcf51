//! Nodes are set back to an older state of themselves, with settings that keep every vote: only a
//! lock server that saw more can distinguish that from a restart.

use fence_tests::history::History;
use fence_tests::quorum_nodes::{Backup, QuorumNodes};
use fence_tests::servers::Server;
use fence_tests::wait::until_true;

use super::opening::LONG_MS;
use super::program::{
    BRIEF_MS, Client, count, one_token_twice, server_at, until_all_vote, until_line,
};
use super::redlock::judge;

/// Long enough that it is live when the nodes are set back, also on a busy machine.
const TTL_MS: u64 = 8_000;

/// Three nodes, and a backup of two of them from before the lock was granted.
struct Run {
    nodes: QuorumNodes,
    backups: [Backup; 2],
    server: Server,
    history: History,
}

impl Run {
    async fn start() -> Self {
        let nodes = QuorumNodes::start(3).await;
        let server = server_at(&nodes.url()).await;
        until_all_vote(&server).await;
        let history = History::new();
        let before = Client::new(&server, &history).in_passing("a").await;
        for node in nodes.nodes() {
            until_true("a node to have accepted the first token", || async {
                let meta: Vec<String> = node.run(&["HVALS", "{fence:default}:q:meta"]).await;
                meta.contains(&before.to_string())
            })
            .await;
        }
        let backups = [nodes.backup(0).await, nodes.backup(1).await];
        Self { nodes, backups, server, history }
    }

    async fn set_back(&mut self, nodes: &[usize]) {
        for at in nodes {
            self.nodes.restore(*at, &self.backups[*at]).await;
        }
    }

    fn client(&self) -> Client<'_> {
        Client::new(&self.server, &self.history)
    }
}

/// The lock is at a bare majority. One of the two is set back and the other one away, and the third
/// never had it; no server is left that saw it. The next holder gets the very same token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_of_one_node_that_is_not_noticed() {
    let mut run = Run::start().await;
    run.nodes.node_mut(2).kill();
    let held = run.client().in_the_end("a", LONG_MS).await;
    run.server.process.kill();
    run.set_back(&[1]).await;
    run.nodes.node_mut(0).kill();
    run.nodes.node_mut(2).start_again().await;
    let fresh = server_at(&run.nodes.url()).await;
    let next = Client::new(&fresh, &run.history).in_the_end("a", LONG_MS).await;
    assert_eq!(next.token, held.token);
    one_token_twice(&run.history, "a");
    assert_eq!(count(&fresh, "fencepost_lock_quorum_amnesia").await, 0, "it was not noticed");
}

/// One backup as above, with the server that granted the lock: it has seen the node accept more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_of_one_node_that_a_server_notices() {
    let mut run = Run::start().await;
    run.nodes.node_mut(2).kill();
    let held = run.client().in_the_end("a", TTL_MS).await;
    run.set_back(&[1]).await;
    until_true("the server to notice", || async {
        count(&run.server, "fencepost_lock_quorum_amnesia").await > 0
    })
    .await;
    run.nodes.node_mut(2).start_again().await;
    let fresh = server_at(&run.nodes.url()).await;
    let next = Client::new(&fresh, &run.history).in_the_end("a", BRIEF_MS).await;
    assert!(next.token > held.token);
    judge(&run.history);
}

/// Two of three are set back while no server runs, and the third one is unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_of_a_majority_that_is_not_noticed() {
    let mut run = Run::start().await;
    let held = run.client().in_the_end("a", LONG_MS).await;
    run.client()
        .until_known(&run.nodes.nodes().iter().collect::<Vec<_>>(), "a", held.lease_id)
        .await;
    run.server.process.kill();
    run.set_back(&[0, 1]).await;
    run.nodes.node_mut(2).kill();
    let fresh = server_at(&run.nodes.url()).await;
    let next = Client::new(&fresh, &run.history).in_the_end("a", LONG_MS).await;
    assert_eq!(next.token, held.token);
    one_token_twice(&run.history, "a");
    assert_eq!(count(&fresh, "fencepost_lock_quorum_amnesia").await, 0, "it was not noticed");
}

/// The same under a server that saw more: nothing is granted before all nodes answer, and then
/// above everything, when the lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_backup_of_a_majority_that_a_server_notices() {
    let mut run = Run::start().await;
    let held = run.client().in_the_end("a", TTL_MS).await;
    run.client()
        .until_known(&run.nodes.nodes().iter().collect::<Vec<_>>(), "a", held.lease_id)
        .await;
    run.nodes.node_mut(2).kill();
    run.set_back(&[0, 1]).await;
    until_line(&run.server, "[-]redis-quorum", "0 of 3 nodes vote").await;
    run.client().refused("a", 3).await;
    run.client().refused("b", 3).await;
    run.nodes.node_mut(2).start_again().await;
    let next = run.client().in_the_end("a", BRIEF_MS).await;
    assert!(next.token > held.token);
    judge(&run.history);
    until_all_vote(&run.server).await;
}

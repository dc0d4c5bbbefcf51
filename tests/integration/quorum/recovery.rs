//! A majority of the nodes loses its memory; the quorum waits before it continues.

use fence_tests::history::History;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::servers::Server;

use super::opening::LONG_MS;
use super::program::{BRIEF_MS, Client, count, server_at, two_held, until_all_vote};
use super::redlock::judge;

/// Long enough that it is live when the nodes forget, also on a busy machine.
const TTL_MS: u64 = 15_000;

/// Two servers; the first is granted a lock, and the second knows of no lease.
struct Run {
    nodes: QuorumNodes,
    first: Server,
    second: Server,
    history: History,
}

impl Run {
    async fn start() -> Self {
        let nodes = QuorumNodes::start(3).await;
        let first = server_at(&nodes.url()).await;
        let second = server_at(&nodes.url()).await;
        until_all_vote(&first).await;
        until_all_vote(&second).await;
        Self { nodes, first, second, history: History::new() }
    }

    /// No server looks at the nodes meanwhile, so that all of it is gone at once.
    async fn forget(&self, nodes: &[usize], left: &Server) {
        left.process.pause();
        for at in nodes {
            self.nodes.node(*at).run::<()>(&["FLUSHALL"]).await;
        }
        left.process.resume();
    }

    /// The holder of the lock believed in it when the memory was gone.
    fn was_held(&self) {
        let held = &self.history.grants()[0];
        assert!(self.history.now_ns() < held.until_ns(), "the lease was over before the loss");
    }
}

/// The server that granted the lock is dead, and the one that is left knows nothing of it: the node
/// that is left does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_that_is_left_knows_of_is_waited_for() {
    let mut run = Run::start().await;
    let first = Client::new(&run.first, &run.history);
    let held = first.in_the_end("a", TTL_MS).await;
    // The node that is left.
    first.until_known(&[run.nodes.node(2)], "a", held.lease_id).await;
    run.first.process.kill();
    run.forget(&[0, 1], &run.second).await;
    run.was_held();
    let second = Client::new(&run.second, &run.history);
    assert!(second.in_the_end("a", BRIEF_MS).await.token > held.token);
    assert!(count(&run.second, "fencepost_lock_quorum_amnesia").await >= 2);
    judge(&run.history);
}

/// No node knows of the lock any more: the server that brings them back does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_that_is_left_granted_is_waited_for() {
    let mut run = Run::start().await;
    run.second.process.kill();
    let first = Client::new(&run.first, &run.history);
    let held = first.in_the_end("a", TTL_MS).await;
    run.forget(&[0, 1, 2], &run.first).await;
    run.was_held();
    assert!(first.in_the_end("a", BRIEF_MS).await.token > held.token);
    assert!(count(&run.first, "fencepost_lock_quorum_amnesia").await >= 3);
    judge(&run.history);
}

/// Neither a node nor the server that is left knows of the lock: two believe that they hold it, and
/// the second one's token is higher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_a_dead_server_granted_is_not_waited_for() {
    let mut run = Run::start().await;
    let first = Client::new(&run.first, &run.history);
    let held = first.in_the_end("a", LONG_MS).await;
    run.first.process.kill();
    run.forget(&[0, 1, 2], &run.second).await;
    let second = Client::new(&run.second, &run.history);
    let next = second.in_the_end("a", BRIEF_MS).await;
    assert!(next.token > held.token);
    two_held(&run.history, "a");
}

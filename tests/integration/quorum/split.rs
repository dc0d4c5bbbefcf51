//! The network between lock servers and nodes is split: each server has a way of its own to each
//! node. Nothing passes where it is cut, and nothing is closed; what was sent arrives when it is
//! whole again.

use std::time::Duration;

use fence_tests::api::Locks;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::seed::{Seed, rounds};
use serde_json::json;

use super::fleet::{Fleet, Load, SERVERS};

/// Nodes that each server reaches.
type Reach = [&'static [usize]; SERVERS];

const WHOLE: Reach = [&[0, 1, 2], &[0, 1, 2], &[0, 1, 2]];
const SPLITS: [Reach; 3] = [
    // Two each, and any two of these share a node.
    [&[0, 1], &[1, 2], &[0, 2]],
    // The nodes are on two sides, and the servers too; one of them is cut off from all.
    [&[0], &[1, 2], &[]],
    // Each reaches another node, and none a majority.
    [&[0], &[1], &[2]],
];

/// The ways of all servers to all nodes.
struct Network([Vec<FaultProxy>; SERVERS]);

impl Network {
    fn set(&self, reach: Reach) {
        for (ways, reached) in self.0.iter().zip(reach) {
            for (node, way) in ways.iter().enumerate() {
                way.set(if reached.contains(&node) { Fault::None } else { Fault::Blackhole });
            }
        }
    }
}

/// A server without a majority grants nothing, not even a lock that no other client asks for.
async fn grants_nothing(base: &str, lock: &str) {
    for _ in 0..2 {
        let reply = Locks::new(base).acquire(lock, json!({"ttl_ms": 2_000, "wait_ms": 0})).await;
        assert!(matches!(reply.status, 503 | 504), "{lock}: {reply:?}");
    }
}

/// Under load, with a client of each server that repeats at another one what its own did not
/// answer: tokens rise, no client holds a lock beside another, and every client that reaches a
/// majority gets on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_network_between_servers_and_nodes_is_split() {
    let mut seed = Seed::of_run("quorum::split::the_network_between_servers_and_nodes_is_split");
    let nodes = QuorumNodes::start(3).await;
    let a = nodes.ways().await;
    let b = nodes.ways().await;
    let c = nodes.ways().await;
    let fleet = Fleet::at([&a.0, &b.0, &c.0]).await;
    let network = Network([a.1, b.1, c.1]);
    let load = Load::start(&fleet, &mut seed);
    load.everybody(&[]).await;
    for round in 0..rounds(SPLITS.len(), 60) {
        let reach = SPLITS[round % SPLITS.len()];
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        network.set(reach);
        let cut: Vec<usize> = (0..SERVERS).filter(|at| reach[*at].len() < 2).collect();
        for at in &cut {
            grants_nothing(&fleet.bases[*at], &format!("alone/{round}")).await;
        }
        if cut.len() < SERVERS {
            load.everybody(&cut).await;
        }
        // Long enough that what the servers on the wrong side had granted is over for its holders.
        tokio::time::sleep(seed.time_ms(0, 400) + Duration::from_millis(100)).await;
        network.set(WHOLE);
        load.everybody(&[]).await;
    }
    load.judge().await;
}

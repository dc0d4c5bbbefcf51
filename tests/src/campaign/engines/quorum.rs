//! Three or five Redis that know nothing of each other, of which most decide.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;

use crate::campaign::{Engine, Row, Start, Starting};
use crate::checks::failover::Scope;
use crate::quorum_nodes::QuorumNodes;
use crate::redis_server::Redis;
use crate::seed::Seed;
use crate::wait::until_within;

/// The nodes of the namespace that the campaign uses.
#[derive(Debug)]
struct Quorum(QuorumNodes);

/// Longest wait for a node that has forgotten: before it votes, it waits for leases that it may
/// have forgotten, and longer than others are waited for.
const REJOINED: Duration = Duration::from_secs(60);

/// Record of a node about itself.
const META: &str = "{fence:default}:q:meta";

/// Its rows: as many nodes are hurt at once as the quorum can do without.
pub fn rows() -> Vec<Row> {
    let row = |engine, fault, start: Start| Row {
        engine,
        fault,
        flags: &[],
        // Tokens rise lock by lock: each bucket of locks counts by itself.
        promise: Some(Scope::Lock),
        start,
    };
    vec![
        row("quorum-3", "kill-node", three),
        row("quorum-3", "forget-node", three_forgetful),
        row("quorum-3", "stop-node", three),
        row("quorum-5", "kill-two", five),
        row("quorum-5", "forget-two", five_forgetful),
        row("quorum-5", "stop-two", five),
    ]
}

fn three() -> Starting {
    Box::pin(started(3, &[]))
}

/// Nodes without a file: what is killed has forgotten everything.
const FORGETFUL: &[(&str, &str)] = &[("appendonly", "no")];

fn three_forgetful() -> Starting {
    Box::pin(started(3, FORGETFUL))
}

fn five() -> Starting {
    Box::pin(started(5, &[]))
}

fn five_forgetful() -> Starting {
    Box::pin(started(5, FORGETFUL))
}

async fn started(nodes: usize, options: &'static [(&str, &str)]) -> Box<dyn Engine> {
    Box::new(Quorum(QuorumNodes::with(nodes, options).await))
}

impl Quorum {
    /// Different nodes, drawn by lot.
    fn victims(&self, count: usize, seed: &mut Seed) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.0.nodes().len()).collect();
        let mut draw = || {
            let at = usize::try_from(seed.below(all.len() as u64)).expect("small");
            all.swap_remove(at)
        };
        (0..count).map(|_| draw()).collect()
    }

    async fn restart(&mut self, victims: &[usize], seed: &mut Seed) {
        for at in victims {
            self.0.node_mut(*at).kill();
        }
        tokio::time::sleep(seed.time_ms(0, 1_000)).await;
        for at in victims {
            self.0.node_mut(*at).start_again().await;
        }
    }

    async fn stop_for_a_while(&self, victims: &[usize], seed: &mut Seed) {
        for at in victims {
            self.0.node(*at).process().pause();
        }
        tokio::time::sleep(seed.time_ms(0, 3_000)).await;
        for at in victims {
            self.0.node(*at).process().resume();
        }
    }

    /// Waits until every node votes, all in one view, and returns the view. One lock server has
    /// looked at each of them since it was started last; the other one may be about to.
    async fn is_whole(&self) -> u64 {
        until_within(REJOINED, "every node to vote in one view", || async {
            let mut views = HashSet::new();
            for node in self.0.nodes() {
                views.insert(view(node).await?);
            }
            (views.len() == 1).then(|| views.into_iter().next()).flatten()
        })
        .await
    }
}

/// The view in which a node votes; none where it does not, or where no lock server has looked at it
/// since it was started.
async fn view(node: &Redis) -> Option<u64> {
    let asked = ["HMGET", META, "state", "run_id", "view"];
    let [state, known, view]: [Option<String>; 3] = node.try_run(&asked).await.ok()?;
    let info: String = node.try_run(&["INFO", "server"]).await.ok()?;
    let own = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    (state? == "ready" && known? == own.trim()).then_some(view?.parse().ok()?)
}

#[async_trait]
impl Engine for Quorum {
    fn store(&self, _server: usize) -> String {
        self.0.url()
    }

    async fn hurt(&mut self, fault: &str, seed: &mut Seed) {
        let before = self.is_whole().await;
        let count = if fault.ends_with("-two") { 2 } else { 1 };
        let victims = self.victims(count, seed);
        match fault {
            "kill-node" | "kill-two" | "forget-node" | "forget-two" => {
                self.restart(&victims, seed).await;
            }
            "stop-node" | "stop-two" => self.stop_for_a_while(&victims, seed).await,
            other => panic!("{other} is no fault of quorum"),
        }
        let after = self.is_whole().await;
        // Who has forgotten its votes may vote again in a new view only; who has not needs none.
        let has_forgotten = fault.starts_with("forget");
        assert_eq!(after > before, has_forgotten, "{fault}: view {before}, then {after}");
    }
}

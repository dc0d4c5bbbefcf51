//! A master, two replicas, three sentinels.

use async_trait::async_trait;

use crate::campaign::{Engine, Row, Start, Starting};
use crate::checks::failover::Scope;
use crate::seed::Seed;
use crate::sentinel_group::WholeGroup;

/// The group, and how its lock servers find it.
#[derive(Debug)]
struct Group {
    group: WholeGroup,
    /// `true` if the lock servers are on different sides when the network is split.
    apart: bool,
}

const ALONE: &[&str] = &[];
/// Of three Redis two must have a grant before the reply: a master that is cut off grants nothing.
const MAJORITY: &[&str] = &["--wait-replicas", "1"];
const ALL: &[&str] = &["--wait-replicas", "2"];
const GRANT: &[&str] = &["--after-loss", "grant"];

/// Its rows.
pub fn rows() -> Vec<Row> {
    let row = |fault, flags, start| {
        let waits = flags == MAJORITY || flags == ALL;
        let promise = waits.then_some(Scope::Namespace);
        Row { engine: "sentinel", fault, flags, promise, start }
    };
    let waiting = [ALONE, MAJORITY, ALL];
    let all: [(&str, Start, &[&[&str]]); 5] = [
        ("failover", together, &waiting),
        ("kill-master", together, &waiting),
        ("stop-master", together, &waiting[..2]),
        ("partition-master", together, &waiting),
        ("split-network", apart, &[GRANT, ALONE, MAJORITY, ALL]),
    ];
    let each = all.into_iter().flat_map(|(fault, start, several)| {
        several.iter().map(move |flags| row(fault, *flags, start))
    });
    each.collect()
}

fn together() -> Starting {
    Box::pin(started(false))
}

fn apart() -> Starting {
    Box::pin(started(true))
}

async fn started(apart: bool) -> Box<dyn Engine> {
    Box::new(Group { group: WholeGroup::start().await, apart })
}

#[async_trait]
impl Engine for Group {
    fn store(&self, server: usize) -> String {
        match (self.apart, server) {
            (false, _) => self.group.url(),
            (true, 0) => self.group.url_here(),
            (true, _) => self.group.url_there(),
        }
    }

    async fn hurt(&mut self, fault: &str, seed: &mut Seed) {
        let old = self.group.one_master().await;
        match fault {
            "failover" => {
                self.group.fail_over().await;
            }
            "kill-master" => {
                self.group.node_mut(old).kill();
                self.group.another_master(old).await;
                tokio::time::sleep(seed.time_ms(0, 500)).await;
                self.group.node_mut(old).start_again().await;
            }
            "stop-master" => {
                self.group.node(old).process().pause();
                self.group.another_master(old).await;
                tokio::time::sleep(seed.time_ms(0, 1_000)).await;
                self.group.node(old).process().resume();
            }
            "partition-master" | "split-network" => {
                if fault == "split-network" {
                    self.group.split(old);
                } else {
                    self.group.isolate(old);
                }
                self.group.another_master(old).await;
                tokio::time::sleep(seed.time_ms(0, 3_000)).await;
                self.group.heal();
            }
            other => panic!("{other} is no fault of sentinel"),
        }
        self.group.is_whole().await;
    }
}

//! A master, two replicas, three sentinels.

use async_trait::async_trait;

use crate::campaign::{Engine, Row, Start, Starting};
use crate::checks::failover::Scope;
use crate::redis_sentinel::whole::WholeGroup;
use crate::seed::Seed;

/// The group, and how its lock servers find it.
#[derive(Debug)]
struct Group {
    group: WholeGroup,
    /// Whether the lock servers are on different sides when the network is split.
    apart: bool,
}

/// Its rows: each fault without WAIT, with a majority of the three Redis, and with all of them.
pub fn rows() -> Vec<Row> {
    let faults: [(&str, Start); 4] = [
        ("failover", together),
        ("kill-master", together),
        ("partition-master", together),
        ("split-network", apart),
    ];
    let waits: [(&[&str], Option<Scope>); 3] = [
        (&[], None),
        (&["--wait-replicas", "1"], Some(Scope::Namespace)),
        (&["--wait-replicas", "2"], Some(Scope::Namespace)),
    ];
    let mut rows = Vec::new();
    for (fault, start) in faults {
        for (flags, promise) in waits {
            rows.push(Row { engine: "sentinel", fault, flags, promise, start });
        }
    }
    rows
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

impl Group {
    async fn master(&self) -> usize {
        crate::wait::until("a master", || self.group.master()).await
    }
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
        let old = self.master().await;
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
            "partition-master" | "split-network" => {
                if fault == "split-network" {
                    self.group.split(old);
                } else {
                    self.group.isolate(old);
                }
                self.group.another_master(old).await;
                tokio::time::sleep(seed.time_ms(0, 2_000)).await;
                self.group.heal();
            }
            other => panic!("{other} is no fault of sentinel"),
        }
        self.group.is_whole().await;
    }
}

//! The start-up probe, on every master: the rules of the fence one by one, then a race.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName, Token};
use futures_util::future::try_join_all;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use service_kit::ids;

use super::super::refusal::Refusal;
use super::nodes::Nodes;
use super::slots::Tags;
use super::step::{self, Marks, StepScript};
use crate::verdict::{Fence, Mark};

const CONNECTIONS: usize = 3;
const RACERS_A_CONNECTION: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows on every master that the script checks, raises and refuses in one step.
///
/// # Errors
/// A sentence that says where, and what was seen instead.
pub(super) async fn probe(nodes: &Nodes, step: &StepScript, tags: &Tags) -> Result<(), String> {
    for (slot, address) in nodes.map().a_slot_of_each() {
        let lock = LockName::new("probe").map_err(|error| error.to_string())?;
        let key = tags.key(slot, "probe", &ids::random_hex(8));
        let probe = Probe { step, lock, key };
        let ran = tokio::time::timeout(PATIENCE, probe.run(nodes, &address)).await;
        ran.unwrap_or_else(|_| Err("it took longer than 10 s".to_owned())).map_err(|reason| {
            format!(
                "the node {address} of the cluster failed the start-up probe ({reason}); the guard \
                 would not be safe"
            )
        })?;
    }
    Ok(())
}

struct Probe<'a> {
    step: &'a StepScript,
    lock: LockName,
    key: String,
}

impl Probe<'_> {
    async fn run(&self, nodes: &Nodes, address: &str) -> Result<(), String> {
        let target =
            nodes.target().node(address).ok_or_else(|| format!("{address} is no address"))?;
        let timeout = Duration::from_secs(2);
        let connections = try_join_all((0..CONNECTIONS).map(|_| target.connect(timeout))).await?;
        let shown = match self.rules_hold(&connections[0]).await {
            Ok(()) => self.race(&connections).await,
            failed => failed,
        };
        // The mark expires by itself too.
        let _ = self.clean(&connections[0]).await;
        shown
    }

    async fn clean(&self, connection: &MultiplexedConnection) -> Result<(), String> {
        let keys = [self.key.clone(), self.all_marks()];
        let mut connection = connection.clone();
        redis::cmd("DEL").arg(&keys[..]).query_async(&mut connection).await.map_err(text)
    }

    async fn rules_hold(&self, connection: &MultiplexedConnection) -> Result<(), String> {
        let one = ids::lease_id();
        let two = ids::lease_id();
        for (token, lease, expected) in [
            (2, one, "admitted"),
            (2, one, "admitted"),
            (1, one, "stale"),
            (2, two, "collision"),
            (Token::MAX - 1, two, "admitted"),
            (Token::MAX - 2, two, "stale"),
        ] {
            let found = self.touch(connection.clone(), token, lease).await?;
            if found != expected {
                return Err(format!("token {token} was {found}, not {expected}"));
            }
        }
        self.clean(connection).await
    }

    fn all_marks(&self) -> String {
        format!("{}:all", self.key)
    }

    /// Many leases with the same token at once: one may win.
    async fn race(&self, connections: &[MultiplexedConnection]) -> Result<(), String> {
        let racers = connections.iter().flat_map(|connection| {
            (0..RACERS_A_CONNECTION).map(|_| self.touch(connection.clone(), 7, ids::lease_id()))
        });
        let outcomes = try_join_all(racers).await?;
        let won = outcomes.iter().filter(|outcome| **outcome == "admitted").count();
        match won {
            1 => Ok(()),
            _ => Err(format!("{won} of {} racers won one token", outcomes.len())),
        }
    }

    /// Lets the mark expire as the fenced command: it is the mark that is touched.
    async fn touch(
        &self,
        mut connection: MultiplexedConnection,
        token: u64,
        lease: LeaseId,
    ) -> Result<&'static str, String> {
        let token = Token::new(token).map_err(|error| error.to_string())?;
        let fences = [Fence { lock: self.lock.clone(), presented: Mark { token, lease } }];
        let marks = Marks { each: vec![self.key.clone()], all: self.all_marks() };
        let words = [&b"EXPIRE"[..], self.key.as_bytes(), b"60"];
        let packed = self.step.pack(&marks, &fences, [].into_iter(), words.into_iter(), false);
        match packed.query_async::<i64>(&mut connection).await {
            Ok(_) => Ok("admitted"),
            Err(error) => {
                let (code, message) = (error.code(), error.detail());
                let (code, message) = (code.unwrap_or_default(), message.unwrap_or_default());
                match step::outcome(code, message, &fences) {
                    Err(Refusal::Stale { .. }) => Ok("stale"),
                    Err(Refusal::Collision { .. }) => Ok("collision"),
                    _ => Err(text(error)),
                }
            }
        }
    }
}

fn text(error: RedisError) -> String {
    error.to_string()
}

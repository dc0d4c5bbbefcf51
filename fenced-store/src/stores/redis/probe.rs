//! Start-up probe: the guarantee `atomic` is claimed only after it was just shown.
//!
//! It uses keys of its own, which expire should the probe be interrupted. The rules are tried one
//! by one, then many seals of one token by different leases race over several connections. Exactly
//! one may win; if check and raise were two steps, two could.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName, Namespace, Token};
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use redis_link::{RedisTarget, load_scripts};
use service_kit::ids;

use super::reply::ScriptReply;
use super::scripts::Scripts;
use super::{Keys, reply};
use crate::stores::contract::FenceOutcome;
use crate::stores::probe::word;
use crate::verdict::{Fence, Mark};

const CONNECTIONS: usize = 4;
const RACERS_A_CONNECTION: usize = 16;
const ROUNDS: u64 = 4;
const EXPIRE_SECS: u64 = 60;
/// Id of the probe's own state.
const STATE: &str = "probe";
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows that the scripts check, raise and refuse in one step.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn probe(
    target: &RedisTarget,
    connect_timeout: Duration,
    namespace: &Namespace,
    scripts: &Scripts,
) -> Result<(), String> {
    let probe = Probe::new(namespace, scripts)?;
    tokio::time::timeout(PATIENCE, probe.run(target, connect_timeout)).await.unwrap_or_else(|_| {
        Err(format!("Redis at {target} did not finish the start-up probe in 10 s"))
    })
}

struct Probe<'a> {
    scripts: &'a Scripts,
    keys: Keys,
    lock: LockName,
}

impl<'a> Probe<'a> {
    fn new(namespace: &Namespace, scripts: &'a Scripts) -> Result<Self, String> {
        let lock = LockName::new("probe").map_err(|error| error.to_string())?;
        let keys = Keys::new(namespace, &format!("probe-{}", ids::random_hex(8)));
        Ok(Self { scripts, keys, lock })
    }

    async fn run(&self, target: &RedisTarget, connect_timeout: Duration) -> Result<(), String> {
        let connections = (0..CONNECTIONS).map(|_| target.connect(connect_timeout));
        let mut connections = try_join_all(connections).await?;
        load_scripts(&mut connections[0], &self.scripts.all()).await?;
        let tried = self.rules_hold(&mut connections[0]).await;
        let raced = match tried {
            Ok(()) => self.races(&connections).await,
            Err(reason) => Err(reason),
        };
        self.clean(&mut connections[0]).await;
        raced.map_err(|reason| {
            format!("Redis at {target} failed the start-up probe ({reason}); the guard would not be safe")
        })
    }

    async fn rules_hold(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let one = ids::lease_id();
        let two = ids::lease_id();
        self.begin(connection).await?;
        for (token, lease, expected) in [
            (2, one, "applied"),
            (2, one, "applied"),
            (1, one, "stale"),
            (2, two, "collision"),
            (Token::MAX - 1, two, "applied"),
            (Token::MAX - 2, two, "stale"),
        ] {
            let outcome = self.seal(connection.clone(), token, lease).await?;
            if word(&outcome) != expected {
                return Err(format!("a seal with token {token} gave {outcome:?}"));
            }
            self.expire(connection).await?;
        }
        // The races begin from nothing.
        self.clean(connection).await;
        self.begin(connection).await
    }

    async fn begin(&self, connection: &MultiplexedConnection) -> Result<(), String> {
        let mut command = redis::cmd("HSET");
        command.arg(&self.keys.state).arg("id").arg(STATE).arg("phase").arg("open");
        self.send(connection.clone(), command).await?;
        self.send(connection.clone(), self.keys.stamp(STATE)).await?;
        self.expire(connection).await
    }

    async fn races(&self, connections: &[MultiplexedConnection]) -> Result<(), String> {
        for token in 1..=ROUNDS {
            let racers = connections.iter().flat_map(|connection| {
                (0..RACERS_A_CONNECTION)
                    .map(|_| self.seal(connection.clone(), token, ids::lease_id()))
            });
            let outcomes = try_join_all(racers).await?;
            let count = |verdict| outcomes.iter().filter(|o| word(o) == verdict).count();
            let won = count("applied");
            let lost = count("collision");
            if (won, lost) != (1, outcomes.len() - 1) {
                return Err(format!("{won} of {} racers won token {token}", outcomes.len()));
            }
        }
        Ok(())
    }

    async fn seal(
        &self,
        connection: MultiplexedConnection,
        token: u64,
        lease: LeaseId,
    ) -> Result<FenceOutcome, String> {
        let token = Token::new(token).map_err(|error| error.to_string())?;
        let fence = Fence { lock: self.lock.clone(), presented: Mark { token, lease } };
        let value = self.send(connection, self.scripts.seal(&self.keys, STATE, &fence)).await?;
        match reply::parse(value, Some(&fence)).map_err(|error| error.to_string())? {
            ScriptReply::Done(outcome) => Ok(outcome),
            other => Err(format!("a seal gave {other:?}")),
        }
    }

    async fn expire(&self, connection: &MultiplexedConnection) -> Result<(), String> {
        for key in [&self.keys.marks, &self.keys.locks, &self.keys.state] {
            let mut command = redis::cmd("EXPIRE");
            command.arg(key).arg(EXPIRE_SECS);
            self.send(connection.clone(), command).await?;
        }
        Ok(())
    }

    async fn clean(&self, connection: &mut MultiplexedConnection) {
        let mut command = redis::cmd("DEL");
        command.arg(&self.keys.marks).arg(&self.keys.locks).arg(&self.keys.state);
        if let Err(reason) = self.send(connection.clone(), command).await {
            tracing::warn!(reason, "the start-up probe left its keys behind");
        }
    }

    async fn send(
        &self,
        mut connection: MultiplexedConnection,
        command: Cmd,
    ) -> Result<Value, String> {
        connection.send_packed_command(&command).await.map_err(|error| error.to_string())
    }
}

//! Start-up probe of the port: shows that Redis ends a killed connection, and that later commands
//! on it have no effect. The guarantee is claimed only after it.
//!
//! It uses keys of its own, which expire. A connection is registered under token 1, and token 2 on
//! another one. Before token 2 is admitted, the first connection must be gone. The probe also finds
//! a proxy that multiplexes connections between guard and Redis: then the killed connection is not
//! the registered one.

use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use service_kit::ids;

use super::upstream::connect::RawWire;
use crate::fail_points::FailPoints;
use crate::stores::redis::preempt::Wire;
use crate::stores::redis::reply::ScriptReply;
use crate::stores::redis::{Keys, Shared, preempt, reply};
use crate::verdict::{Fence, Mark};

const EXPIRE_SECS: u64 = 60;
/// Id of the probe's own state.
const STATE: &str = "probe";

/// Probes that a connection with a lower token is ended before a higher one is admitted.
///
/// # Errors
/// A sentence on the deviation.
pub(super) async fn probe(redis: &Shared, namespace: &Namespace) -> Result<(), String> {
    let keys = Keys::new(namespace, &format!("probe-{}", ids::random_hex(8)));
    let lock = LockName::new("probe").map_err(|error| error.to_string())?;
    let mut probe = Probe { redis, keys, lock };
    let shown = probe.run().await;
    probe.clean().await;
    shown.map_err(|reason| {
        format!(
            "Redis at {} failed the probe of preempt and abort ({reason}); is the guard connected \
             to Redis itself, and may its user run CLIENT KILL and CLIENT LIST?",
            redis.link.target()
        )
    })
}

struct Probe<'a> {
    redis: &'a Shared,
    keys: Keys,
    lock: LockName,
}

impl Probe<'_> {
    async fn run(&mut self) -> Result<(), String> {
        let (mut low, low_id) = RawWire::logged_in(self.redis).await?;
        let (mut high, high_id) = RawWire::logged_in(self.redis).await?;
        let mut begin = redis::cmd("HSET");
        begin.arg(&self.keys.state).arg("id").arg(STATE).arg("phase").arg("open");
        high.call(&begin).await?;
        high.call(&self.keys.stamp(STATE)).await?;
        self.expect(&mut low, 1, low_id, &registered).await?;
        self.expect(&mut high, 2, high_id, &|reply| *reply == ScriptReply::Sealing).await?;
        let scripts = &self.redis.scripts;
        let lock = &self.lock;
        preempt::settle(&mut high, scripts, &self.keys, lock, &FailPoints::default()).await?;
        self.expect(&mut high, 2, high_id, &registered).await?;
        let mut write = redis::cmd("INCR");
        write.arg(self.counter());
        if low.call(&write).await.is_ok() {
            return Err("a connection that was killed still replied".to_owned());
        }
        let mut read = redis::cmd("EXISTS");
        read.arg(self.counter());
        match high.call(&read).await? {
            Value::Int(0) => Ok(()),
            _ => Err("a connection that was killed still wrote".to_owned()),
        }
    }

    async fn expect(
        &self,
        wire: &mut RawWire,
        token: u64,
        client_id: u64,
        is_right: &(dyn Fn(&ScriptReply) -> bool + Sync),
    ) -> Result<(), String> {
        let token = Token::new(token).map_err(|error| error.to_string())?;
        // Each token has one lease.
        let lease = format!("00000000-0000-4000-8000-{:012x}", token.get());
        let lease = lease.parse().map_err(|error: fence_protocol::Invalid| error.to_string())?;
        let fence = Fence { lock: self.lock.clone(), presented: Mark { token, lease } };
        let value =
            wire.call(&self.redis.scripts.register(&self.keys, STATE, &fence, client_id)).await?;
        let reply = reply::parse(value, Some(&fence)).map_err(|error| error.to_string())?;
        for key in self.all_keys() {
            let mut expire = redis::cmd("EXPIRE");
            expire.arg(key).arg(EXPIRE_SECS);
            wire.call(&expire).await?;
        }
        if is_right(&reply) {
            return Ok(());
        }
        Err(format!("a registration with token {token} gave {reply:?}"))
    }

    fn counter(&self) -> String {
        self.keys.conns(&self.lock) + ":counter"
    }

    fn all_keys(&self) -> [String; 5] {
        let Keys { marks, locks, state, .. } = &self.keys;
        let conns = self.keys.conns(&self.lock);
        [marks.clone(), locks.clone(), state.clone(), conns, self.counter()]
    }

    async fn clean(&self) {
        let mut command: Cmd = redis::cmd("DEL");
        command.arg(&self.all_keys()[..]);
        if let Err(error) = self.redis.link.call(&command).await {
            tracing::warn!(%error, "the probe of the port left its keys behind; they expire");
        }
    }
}

fn registered(reply: &ScriptReply) -> bool {
    matches!(reply, ScriptReply::Done(crate::stores::contract::FenceOutcome::Applied { .. }))
}

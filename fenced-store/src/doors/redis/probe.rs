//! The start-up probe of the port: that Redis ends the connection that it is told to end, and that
//! what was sent there has no effect afterwards, is claimed only where it was just seen.
//!
//! On keys of its own, which expire by themselves: a connection is registered under token 1, and
//! token 2 is registered on another one. Before that is admitted the first must be gone. Something
//! that multiplexes connections between the guard and Redis is found here, too: the connection that
//! is killed is then not the one that was registered.

use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use service_kit::ids;

use super::upstream::connect::RawWire;
use crate::fail_points::FailPoints;
use crate::store::redis::preempt::{self, Wire};
use crate::store::redis::reply::{self, Step};
use crate::store::redis::{Keys, Shared};
use crate::verdict::{Fence, Mark};

const EXPIRE_SECS: u64 = 60;
/// The id of the probe's own state.
const STATE: &str = "probe";

/// Shows that a connection with a lower token is ended before a higher one is admitted.
///
/// # Errors
/// A sentence that says what was seen instead.
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
        high.ask(&begin).await?;
        high.ask(&self.keys.stamp(STATE)).await?;
        self.expect(&mut low, 1, low_id, &registered).await?;
        self.expect(&mut high, 2, high_id, &|step| *step == Step::Sealing).await?;
        let (scripts, lock) = (&self.redis.scripts, &self.lock);
        preempt::settle(&mut high, scripts, &self.keys, lock, &FailPoints::default()).await?;
        self.expect(&mut high, 2, high_id, &registered).await?;
        let mut write = redis::cmd("INCR");
        write.arg(self.counter());
        if low.ask(&write).await.is_ok() {
            return Err("a connection that was killed still answered".to_owned());
        }
        let mut read = redis::cmd("EXISTS");
        read.arg(self.counter());
        match high.ask(&read).await? {
            Value::Int(0) => Ok(()),
            _ => Err("a connection that was killed still wrote".to_owned()),
        }
    }

    async fn expect(
        &self,
        wire: &mut RawWire,
        token: u64,
        client_id: u64,
        is_right: &(dyn Fn(&Step) -> bool + Sync),
    ) -> Result<(), String> {
        let token = Token::new(token).map_err(|error| error.to_string())?;
        // Each token has one lease, however often it is presented.
        let lease = format!("00000000-0000-4000-8000-{:012x}", token.get());
        let lease = lease.parse().map_err(|error: fence_protocol::Invalid| error.to_string())?;
        let fence = Fence { lock: self.lock.clone(), presented: Mark { token, lease } };
        let value =
            wire.ask(&self.redis.scripts.register(&self.keys, STATE, &fence, client_id)).await?;
        let step = reply::step(value, Some(&fence)).map_err(|error| error.to_string())?;
        for key in self.all_keys() {
            let mut expire = redis::cmd("EXPIRE");
            expire.arg(key).arg(EXPIRE_SECS);
            wire.ask(&expire).await?;
        }
        if is_right(&step) {
            return Ok(());
        }
        Err(format!("a registration with token {token} gave {step:?}"))
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

fn registered(step: &Step) -> bool {
    matches!(step, Step::Done(crate::store::Outcome::Applied { .. }))
}

//! Confirmation of grants by replicas: a grant is acknowledged only if enough replicas have it.
//!
//! A failover loses what the new master did not have yet. WAIT returns how many replicas have what
//! its connection has written, and blocks that connection until there are enough; so it has its own
//! link here, on which no other commands wait behind it. WAIT waits for the last write of its
//! connection. That is a small write right in front of it, in the same pipeline: made after the
//! grants that it confirms, so a replica that has it has them. A retry that wrote nothing and a new
//! connection are waited for like any other. One pipeline confirms every grant made before it was
//! sent.
//!
//! Behind sentinels, replicas alone do not confirm the order of tokens: a sentinel that was
//! partitioned with an old master points replicas of the new one back to it, for a moment, and they
//! acknowledge its writes. So the sentinels are queried afterwards, and more than half of them must
//! name the master that granted. None of them returns to an old master by itself: once a later one
//! was used, most of them name that one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Cmd, Value};
use fence_protocol::duration;
use redis_link::{
    LinkError, LinkOptions, LinkState, RedisLink, RedisTarget, Script, Verifier, text_fields,
};
use service_kit::Kit;
use service_kit::health::{Health, Status};
use service_kit::tasks::Tasks;
use tokio::sync::Mutex;

use super::keys::Keys;
use super::millis;
use crate::engines::contract::Confirmed;

/// Largest number of replicas to wait for.
const COUNT_MAX: u32 = 64;
/// Longest time to wait for them.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Replicas that must have a grant before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct ReplicaOptions {
    /// Redis replicas that must have a grant before it is acknowledged. A grant that fewer have in
    /// time is rolled back, and replied to with 503.
    #[arg(id = "wait_replicas", long = "wait-replicas", value_name = "N", default_value = "0",
          value_parser = replica_count, allow_hyphen_values = true)]
    pub count: u32,
    /// Time for these replicas, at most 1m.
    #[arg(id = "wait_timeout", long = "wait-timeout", value_name = "DURATION",
          default_value = "500ms", value_parser = at_most)]
    pub timeout: Duration,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self { count: 0, timeout: Duration::from_millis(500) }
    }
}

fn replica_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 0..=COUNT_MAX) => Ok(count),
        _ => Err(format!("{text:?} is out of range: 0 to {COUNT_MAX}")),
    }
}

fn at_most(text: &str) -> Result<Duration, String> {
    match duration::parse_positive(text) {
        Ok(timeout) if timeout > TIMEOUT_MAX => Err(format!("{text:?} is too long: at most 1m")),
        Ok(timeout) => Ok(timeout),
        Err(error) => Err(error.to_string()),
    }
}

/// Asks whether the replicas have what was written.
#[derive(Debug)]
pub(super) struct Replicas {
    link: RedisLink,
    health: Health,
    options: ReplicaOptions,
    script: Script,
    keys: [String; 4],
    /// The link of the grants, which no WAIT blocks.
    grants: RedisLink,
    tasks: Tasks,
    /// The highest token that is known to be with enough replicas.
    acknowledged: AtomicU64,
    /// Number of confirmations requested.
    tickets: AtomicU64,
    last: Mutex<Last>,
}

/// The last pipeline.
#[derive(Debug)]
struct Last {
    /// It was sent after this ticket was drawn.
    covers: u64,
    lineage: String,
    outcome: Result<(), Shortfall>,
}

/// Why a grant is not safe with the replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shortfall {
    /// So many of those that are needed have it.
    Few { have: i64, need: u32, within_ms: u64 },
    /// They could not be asked.
    Unasked(String),
    /// They have it, and most of the sentinels do not say that their master is still the one.
    Unconfirmed(String),
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Few { have, need, within_ms } => {
                write!(f, "{have} of {need} replicas have the grant after {within_ms} ms")
            }
            Self::Unasked(why) => {
                write!(f, "it is not known whether replicas have the grant: {why}")
            }
            Self::Unconfirmed(why) => write!(f, "a later master may have granted: {why}"),
        }
    }
}

impl Replicas {
    /// Connects, where replicas are to be waited for.
    ///
    /// # Errors
    /// As [`RedisLink::start`].
    pub(super) async fn start(
        target: &RedisTarget,
        keys: &Keys,
        options: ReplicaOptions,
        (grants, link): (&RedisLink, LinkOptions),
        verifier: Arc<dyn Verifier>,
        kit: &Kit,
    ) -> Result<Option<Self>, String> {
        if options.count == 0 {
            return Ok(None);
        }
        let reply_timeout = link.reply_timeout + options.timeout;
        let link = LinkOptions { reply_timeout, ..link };
        let link = RedisLink::start(target.clone(), link, verifier, &kit.tasks).await?;
        let followed = link.clone();
        let health = kit.health.clone();
        let stop = kit.tasks.shutdown_token();
        kit.tasks.spawn(async move {
            stop.run_until_cancelled(follow(&followed, &health)).await;
        });
        Ok(Some(Self {
            link,
            health: kit.health.clone(),
            options,
            script: Script::new("replicas.lua", include_str!("replicas.lua")),
            keys: [&keys.lineage, &keys.replicas, &keys.token, &keys.absent].map(String::clone),
            grants: grants.clone(),
            tasks: kit.tasks.clone(),
            acknowledged: AtomicU64::new(0),
            tickets: AtomicU64::new(0),
            last: Mutex::new(Last { covers: 0, lineage: String::new(), outcome: Ok(()) }),
        }))
    }

    /// Waits until enough replicas have everything that was written in `lineage` before this call.
    ///
    /// # Cancel safety
    /// If dropped, the next caller sends the query.
    pub(super) async fn confirm(&self, lineage: Option<&str>) -> Confirmed {
        let shortfall = self.have(lineage.unwrap_or_default()).await.err();
        let token = self.acknowledged.load(Ordering::Relaxed);
        Confirmed { token, shortfall: shortfall.map(|shortfall| shortfall.to_string()) }
    }

    async fn have(&self, lineage: &str) -> Result<(), Shortfall> {
        let ticket = self.tickets.fetch_add(1, Ordering::SeqCst) + 1;
        // Callers that come while a pipeline is under way wait here, and the first of them asks for
        // all.
        let mut last = self.last.lock().await;
        if last.covers >= ticket && last.lineage == lineage {
            return last.outcome.clone();
        }
        let covers = self.tickets.load(Ordering::SeqCst);
        let outcome = self.wait(lineage).await;
        show(&self.health, &self.link.state(), &outcome);
        *last = Last { covers, lineage: lineage.to_owned(), outcome: outcome.clone() };
        outcome
    }

    fn write(&self, lineage: &str) -> Cmd {
        let mut write = self.script.call_once(&self.keys.each_ref().map(String::as_str));
        write.arg(lineage).arg(self.acknowledged.load(Ordering::Relaxed));
        write
    }

    /// Tokens up to `counter` are with enough replicas. The other servers learn it from Redis, so
    /// that they need not wait for replicas when such a lease is renewed there.
    fn acknowledge(&self, lineage: &str, counter: u64) {
        self.acknowledged.fetch_max(counter, Ordering::Relaxed);
        let link = self.grants.clone();
        let write = self.write(lineage);
        self.tasks.spawn(async move {
            // The next WAIT writes it as well.
            let _ = link.call(&write).await;
        });
    }

    async fn wait(&self, lineage: &str) -> Result<(), Shortfall> {
        let within_ms = millis(self.options.timeout);
        let write = self.write(lineage);
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(self.options.count).arg(within_ms);
        let unasked = |error: LinkError| Shortfall::Unasked(error.to_string());
        let pinned = self.link.pinned().map_err(unasked)?;
        let replies = pinned.pipeline(&[write, wait]).await.map_err(unasked)?;
        let (wrote, have) = match replies.as_slice() {
            // Without the write WAIT has waited for something else.
            [Value::Array(wrote), Value::Int(have)] => (wrote.clone(), *have),
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => {
                return Err(Shortfall::Unasked(error.to_string()));
            }
            other => return Err(Shortfall::Unasked(format!("Redis answered {other:?}"))),
        };
        let Some([counter, known]) = tokens(wrote) else {
            return Err(Shortfall::Unasked("Redis answered with no counter".to_owned()));
        };
        self.acknowledged.fetch_max(known, Ordering::Relaxed);
        if have < i64::from(self.options.count) {
            return Err(Shortfall::Few { have, need: self.options.count, within_ms });
        }
        let asked = pinned.confirm_master(self.options.timeout).await;
        asked.map_err(Shortfall::Unconfirmed)?;
        self.acknowledge(lineage, counter);
        Ok(())
    }
}

/// The counter, and the highest token that another server found to be with enough replicas.
fn tokens(wrote: Vec<Value>) -> Option<[u64; 2]> {
    let numbers: Option<Vec<u64>> =
        text_fields(Value::Array(wrote))?.iter().map(|text| text.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Shows in `/readyz` whether there is a connection that can wait for the replicas: without one no
/// grant is acknowledged, however well the other connection works.
async fn follow(link: &RedisLink, health: &Health) {
    let mut states = link.watch();
    loop {
        let state = states.borrow_and_update().clone();
        show(health, &state, &Ok(()));
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// Sets the check of the replicas by the state of their link and the outcome of the last WAIT.
fn show(health: &Health, state: &LinkState, outcome: &Result<(), Shortfall>) {
    let status = match (state, outcome) {
        (LinkState::Down(reason), _) => Status::Failing(format!(
            "no grant is acknowledged, because replicas cannot be waited for: {reason}"
        )),
        (LinkState::Up(_), Err(shortfall)) => {
            Status::Warn(format!("the last grant was not acknowledged: {shortfall}"))
        }
        (LinkState::Up(_), Ok(())) => Status::Ok,
    };
    health.set("replicas", status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_is_reported_with_its_numbers() {
        let few = Shortfall::Few { have: 1, need: 2, within_ms: 500 };
        assert_eq!(few.to_string(), "1 of 2 replicas have the grant after 500 ms");
        let moved = Shortfall::Unconfirmed("the sentinels moved the master".to_owned());
        assert_eq!(
            moved.to_string(),
            "a later master may have granted: the sentinels moved the master"
        );
    }
}

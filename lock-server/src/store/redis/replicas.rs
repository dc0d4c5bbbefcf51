//! No caller is told of a grant that too few replicas have.
//!
//! A failover loses what the new master did not have yet. WAIT tells how many replicas have what its
//! connection has written, and blocks that connection until there are enough; so it has a link of its
//! own here, on which nobody else's commands stand behind it. What WAIT waits for is the last write of
//! its connection. That is a small write right in front of it, in the same pipeline: made after the
//! grants that it vouches for, so a replica that has it has them. A repeat that wrote nothing and a
//! connection that is new are waited for like any other. One pipeline vouches for everybody who came
//! before it left.
//!
//! Replicas alone do not vouch for the order of tokens behind sentinels: a sentinel that was cut off
//! with an old master points replicas of the new one back to it, for a moment, and they acknowledge
//! what it writes. So the sentinels are asked afterwards, and more than half of them must name the
//! master that granted. None of them goes back to an old master by itself: where a later one was used
//! before, most of them name that one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Cmd, Value};
use fence_protocol::{LeaseId, LockName};
use service_kit::Kit;
use service_kit::health::{Health, Status};
use service_kit::redis_link::{
    LinkError, LinkOptions, LinkState, RedisLink, RedisTarget, Script, Verifier,
};
use service_kit::tasks::Tasks;
use tokio::sync::Mutex;

use super::reply::Answer;
use super::{RedisStore, asking, millis};
use crate::store::StoreError;

/// Which replicas must have a grant before its caller is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// How many; 0 waits for none.
    pub count: u32,
    /// How long they may take.
    pub timeout: Duration,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self { count: 0, timeout: Duration::from_millis(500) }
    }
}

/// Asks whether the replicas have what was written.
#[derive(Debug)]
pub(super) struct Replicas {
    link: RedisLink,
    health: Health,
    options: ReplicaOptions,
    script: Script,
    keys: [String; 3],
    /// The link of the grants, which no WAIT blocks.
    grants: RedisLink,
    tasks: Tasks,
    /// The highest token that is known to be with enough replicas.
    acknowledged: AtomicU64,
    /// How often it was asked for.
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
        prefix: &str,
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
        let (followed, health) = (link.clone(), kit.health.clone());
        let stop = kit.tasks.shutdown_token();
        kit.tasks.spawn(async move {
            stop.run_until_cancelled(follow(&followed, &health)).await;
        });
        Ok(Some(Self {
            link,
            health: kit.health.clone(),
            options,
            script: Script::new("replicas.lua", include_str!("replicas.lua")),
            keys: ["lineage", "replicas", "token"].map(|name| format!("{prefix}{name}")),
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
    /// Dropped, it leaves the question to whoever asks next.
    pub(super) async fn have(&self, lineage: &str) -> Result<(), Shortfall> {
        let ticket = self.tickets.fetch_add(1, Ordering::SeqCst) + 1;
        // Whoever comes while a pipeline is on its way waits here, and the first of them asks for all.
        let mut last = self.last.lock().await;
        if last.covers >= ticket && last.lineage == lineage {
            return last.outcome.clone();
        }
        let covers = self.tickets.load(Ordering::SeqCst);
        let outcome = self.ask(lineage).await;
        show(&self.health, &self.link.state(), &outcome);
        *last = Last { covers, lineage: lineage.to_owned(), outcome: outcome.clone() };
        outcome
    }

    /// As [`have`](Self::have), of grants that were made in `lineage`.
    async fn vouch(&self, lineage: Option<String>) -> Result<(), Shortfall> {
        match lineage {
            Some(lineage) => self.have(&lineage).await,
            None => Err(Shortfall::Unasked("its lineage is over".to_owned())),
        }
    }

    fn write(&self, lineage: &str) -> Cmd {
        let mut write = self.script.call_once(&self.keys.each_ref().map(String::as_str));
        write.arg(lineage).arg(self.acknowledged());
        write
    }

    /// Highest token that is known to be with enough replicas; 0 for none.
    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Tokens up to `counter` are with enough replicas. The other servers learn it from Redis, so that
    /// they need not wait for replicas when such a lease is renewed there.
    fn acknowledge(&self, lineage: &str, counter: &[u8]) {
        let counter = std::str::from_utf8(counter).ok().and_then(|text| text.parse().ok());
        self.acknowledged.fetch_max(counter.unwrap_or(0), Ordering::Relaxed);
        let (link, write) = (self.grants.clone(), self.write(lineage));
        self.tasks.spawn(async move {
            // The next WAIT writes it as well.
            let _ = link.call(&write).await;
        });
    }

    async fn ask(&self, lineage: &str) -> Result<(), Shortfall> {
        let within_ms = millis(self.options.timeout);
        let write = self.write(lineage);
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(self.options.count).arg(within_ms);
        let unasked = |error: LinkError| Shortfall::Unasked(error.to_string());
        let pinned = self.link.pinned().map_err(unasked)?;
        let replies = pinned.pipeline(&[write, wait]).await.map_err(unasked)?;
        match replies.as_slice() {
            // Without the write WAIT has waited for something else.
            [Value::BulkString(counter), Value::Int(have)]
                if *have >= i64::from(self.options.count) =>
            {
                let asked = pinned.confirm_master(self.options.timeout).await;
                asked.map_err(Shortfall::Unconfirmed)?;
                self.acknowledge(lineage, counter);
                Ok(())
            }
            [Value::BulkString(_), Value::Int(have)] => {
                Err(Shortfall::Few { have: *have, need: self.options.count, within_ms })
            }
            [Value::ServerError(error), _] | [_, Value::ServerError(error)] => {
                Err(Shortfall::Unasked(error.to_string()))
            }
            other => Err(Shortfall::Unasked(format!("Redis answered {other:?}"))),
        }
    }
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

impl RedisStore {
    /// The lineage in which a script that is about to be sent may grant something, where replicas are
    /// waited for. Taken before: if another one begins meanwhile, its grants are not vouched for.
    pub(super) fn grants_in(&self) -> Option<String> {
        self.inner.replicas.as_ref()?;
        Some(self.inner.lineage.current()?.id)
    }

    /// Lets an answer pass whose grants enough replicas have; takes others back.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where they were taken back, [`StoreError::Unknown`] where they may
    /// live.
    pub(super) async fn vouched(
        &self,
        lineage: Option<String>,
        locks: impl Fn() -> Vec<LockName>,
        lease_id: LeaseId,
        answer: Answer,
    ) -> Result<Answer, StoreError> {
        if !matches!(answer, Answer::Granted(_) | Answer::Several(_)) {
            return Ok(answer);
        }
        let took_ms = self.replicated(lineage, locks, lease_id).await?;
        Ok(answer.later(took_ms))
    }

    /// Waits for the replicas; says how long that took, in milliseconds.
    async fn replicated(
        &self,
        lineage: Option<String>,
        locks: impl Fn() -> Vec<LockName>,
        lease_id: LeaseId,
    ) -> Result<u64, StoreError> {
        let Some(replicas) = &self.inner.replicas else { return Ok(0) };
        let began_ms = self.inner.clock.monotonic_ms();
        match replicas.vouch(lineage).await {
            Ok(()) => Ok(self.inner.clock.monotonic_ms().saturating_sub(began_ms) + 1),
            Err(shortfall) => Err(self.take_back(&shortfall, &locks(), lease_id).await),
        }
    }

    /// What a script needs to know of grants that replicas have: the highest token of which this server
    /// knows it; empty where no replicas are waited for.
    pub(super) fn acknowledged(&self) -> String {
        self.inner
            .replicas
            .as_ref()
            .map_or_else(String::new, |known| known.acknowledged().to_string())
    }

    /// Waits until enough replicas have what another call has granted and may still roll back: no caller
    /// receives it before.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] where they do not have it in time.
    pub(super) async fn acknowledge(&self, lineage: Option<String>) -> Result<(), StoreError> {
        let Some(replicas) = &self.inner.replicas else { return Ok(()) };
        replicas.vouch(lineage).await.map_err(|shortfall| {
            StoreError::Unknown(format!("{shortfall}; ask again with the same id"))
        })
    }

    /// Takes back what nobody was told of.
    async fn take_back(
        &self,
        shortfall: &Shortfall,
        locks: &[LockName],
        lease_id: LeaseId,
    ) -> StoreError {
        let taken = self.run(&self.inner.scripts.take_back, |command| {
            asking::name_locks(command, locks, lease_id);
        });
        // What it hands on may have to be taken back as well.
        match Box::pin(taken).await {
            Ok(Answer::Free) => {
                StoreError::Unavailable(format!("{shortfall}; it was taken back, try again"))
            }
            Ok(_) => StoreError::Unknown(format!(
                "{shortfall}; it lives, because it was asked for before: ask again with the same id"
            )),
            Err(error) => {
                StoreError::Unknown(format!("{shortfall}; taking it back failed: {error}"))
            }
        }
    }

    /// Tells a waiter of this server, by `tell`, of what was handed to it; where replicas are waited
    /// for, when they have it. `tell` says whether anybody listened.
    pub(super) fn announce(
        &self,
        lineage: Option<String>,
        locks: Vec<LockName>,
        lease_id: LeaseId,
        tell: impl FnOnce(&Self) -> bool + Send + 'static,
    ) {
        if self.inner.replicas.is_none() {
            if !tell(self) {
                self.withdraw_later(locks, lease_id, None);
            }
            return;
        }
        let store = self.clone();
        self.inner.tasks.spawn(async move {
            match store.replicated(lineage, || locks.clone(), lease_id).await {
                Ok(_) if tell(&store) => {}
                Ok(_) => store.withdraw_later(locks, lease_id, None),
                Err(refusal) => store.inner.waiting.refuse(&locks, lease_id, &refusal),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_is_told_with_its_numbers() {
        let few = Shortfall::Few { have: 1, need: 2, within_ms: 500 };
        assert_eq!(few.to_string(), "1 of 2 replicas have the grant after 500 ms");
        let moved = Shortfall::Unconfirmed("the sentinels moved the master".to_owned());
        assert_eq!(
            moved.to_string(),
            "a later master may have granted: the sentinels moved the master"
        );
    }
}

//! Records in Redis: one script commits, and does not know what a lock is.
//!
//! Any number of lock servers may serve one Redis. `redis/head.lua` says how records are kept,
//! and `redis/lineage.rs` when Redis is not trusted any more. A loss of memory begins a new
//! lineage, and then no lease begins for as long as a lost one may live: the latest moment until
//! which one does stands in Redis, is raised in coarse steps by the commits, and is known to every
//! server by its own commits and by [`beat`](RecordStore::beat).
//!
//! Every commit names the latest time that Redis can show, and is refused under a later one: see
//! `shared/store_clock.rs`.

mod clock;
mod codec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod identity;
pub mod judge;
pub mod key_prefix;
mod keys;
mod lineage;
pub(crate) mod refusals;
mod replicas;
pub mod rights;
mod scans;
mod wakeups;
mod walks;
pub(crate) mod watch;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Cmd, Value};
use async_trait::async_trait;
use fence_protocol::{LockName, SessionId, Token};
use redis_link::{LinkError, LinkOptions, LocalLinks, RedisLink, RedisTarget, Script};
use service_kit::Kit;
use service_kit::tasks::Tasks;
use tokio::sync::mpsc;

use self::codec::{Commit, CommitScripts, ServerKnowledge};
use self::keys::Keys;
use self::lineage::RedisVerifier;
pub use self::lineage::init_fresh;
use self::refusals::store_error;
pub use self::replicas::ReplicaOptions;
use self::replicas::Replicas;
use self::walks::Walks;
use super::contract::{
    Batch, Committed, Confirmed, ItemName, Key, RecordStore, ServerId, Snapshot, WAKEUPS_MAX,
    Wakeup,
};
use super::options::StoreOptions;
use super::shared::store_clock::{Jumps, Pauses, StoreTime};
use crate::guards::Guards;
use crate::store::{ListQuery, StoreError};

/// The store in texts.
const NAME: &str = "Redis";
/// Most records that are read in one call.
const READ_MAX: usize = 1_000;

/// Most measurements of the clock of Redis for one script. More than one where the script takes
/// long to arrive, and longer from time to time.
const LOOKS: u32 = 4;
/// Of fewer requests, two halves cost more calls than the waiting that they save.
const HALVES_FROM: usize = 32;

/// Records in Redis. Cheap to clone.
#[derive(Clone)]
pub struct RedisRecords {
    inner: Arc<RedisInner>,
}

struct RedisInner {
    links: LocalLinks,
    link_options: LinkOptions,
    scripts: Arc<Scripts>,
    lineage: Arc<RedisVerifier>,
    time: Arc<StoreTime>,
    keys: Keys,
    counter_seen: Arc<AtomicU64>,
    jumps: Jumps,
    pauses: Pauses,
    lock_walks: Walks<LockName>,
    session_walks: Walks<SessionId>,
    /// `None` where no replicas are waited for.
    replicas: Option<Replicas>,
    tasks: Tasks,
}

/// The reply to a script, and the lineage in which it was run.
struct Ran {
    value: Value,
    lineage: Arc<str>,
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords")
            .field("link", &self.inner.links.first())
            .finish_non_exhaustive()
    }
}

/// The scripts that are loaded.
#[derive(Debug)]
struct Scripts {
    commit: Script,
    plain: Script,
    read: Script,
    items: Script,
    beat: Script,
}

impl Scripts {
    fn new() -> Self {
        Self {
            commit: Script::new(
                "commit.lua",
                concat!(include_str!("redis/head.lua"), include_str!("redis/commit.lua")),
            ),
            plain: Script::new(
                "plain.lua",
                concat!(include_str!("redis/head.lua"), include_str!("redis/plain.lua")),
            ),
            read: Script::new("read.lua", include_str!("redis/read.lua")),
            items: Script::new("items.lua", include_str!("redis/items.lua")),
            beat: Script::new("beat.lua", include_str!("redis/beat.lua")),
        }
    }

    fn all(&self) -> [&Script; 5] {
        [&self.commit, &self.plain, &self.read, &self.items, &self.beat]
    }

    fn commits(&self) -> CommitScripts<'_> {
        CommitScripts { general: &self.commit, plain: &self.plain }
    }
}

impl RedisRecords {
    /// Connects, verifies the lineage, and watches Redis in the background.
    ///
    /// # Errors
    /// A sentence where Redis cannot be reached or cannot be used.
    pub async fn start(
        target: &RedisTarget,
        options: &StoreOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let keys = Keys::new(&options.key_prefix, &options.namespace);
        let target = target.in_slot_of(keys.prefix().as_bytes());
        let scripts = Arc::new(Scripts::new());
        let counter_seen = Arc::new(AtomicU64::new(0));
        let time =
            Arc::new(StoreTime::new(kit.clock.clone(), millis(options.loss.clock_jump_limit)));
        let known = (&counter_seen, &time);
        let loss = (options.loss.after_loss, guards);
        let waited = options.replicas;
        let lineage = RedisVerifier::new(&target, &keys, &scripts, known, loss, waited.count, kit);
        let lineage = Arc::new(lineage);
        let to = target.clone();
        let verifier = lineage.clone();
        let link = RedisLink::start(to, options.link, verifier.clone(), &kit.tasks).await?;
        let links = (&link, options.link);
        let replicas = Replicas::start(&target, &keys, waited, links, verifier, kit).await?;
        let clock = kit.clock.clone();
        let health = kit.health.clone();
        let stop = kit.tasks.shutdown_token();
        if target.is_sentinel() {
            let sentinels = watch::watch_sentinels(link.clone(), health.clone());
            let stop = stop.clone();
            kit.tasks.spawn(async move { stop.run_until_cancelled(sentinels).await });
        }
        kit.tasks.spawn(watch::watch(link.clone(), clock, health, stop));
        let inner = RedisInner {
            links: LocalLinks::new(link, &kit.tasks),
            link_options: options.link,
            scripts,
            lineage,
            time,
            keys,
            counter_seen,
            jumps: Jumps::new(NAME, options.loss.clock_pause, kit),
            pauses: Pauses::new(NAME, kit),
            lock_walks: Walks::default(),
            session_walks: Walks::default(),
            replicas,
            tasks: kit.tasks.clone(),
        };
        let records = Self { inner: Arc::new(inner) };
        records.settle("", 0).await.map_err(|error| error.to_string())?;
        Ok(records)
    }

    /// The lineage in force.
    pub fn lineage(&self) -> Option<Arc<str>> {
        self.inner.lineage.current()
    }

    /// Runs a script. One that refuses because of the lineage or the clock has changed nothing, so
    /// it is sent again: once after a new verification, a few times after the clock was measured.
    /// What was long on its way has that much longer.
    async fn run(
        &self,
        command: impl Fn(&str, u64) -> Cmd + Send + Sync,
    ) -> Result<Ran, LinkError> {
        let mut was_verified = false;
        let mut looked = 0;
        let mut slow_ms = 0;
        loop {
            let link = self.inner.links.here();
            let generation = link.generation();
            let looks = self.inner.time.looks();
            let lineage = self.lineage().ok_or_else(|| {
                LinkError::Down("the lineage of Redis is not verified yet".to_owned())
            })?;
            let sent_ms = self.inner.time.monotonic_ms();
            let latest_ms = self.inner.time.latest_ms().saturating_add(slow_ms);
            match link.call(&command(&lineage, latest_ms)).await {
                Err(LinkError::Server { code, message }) if code == "LINEAGE" && !was_verified => {
                    tracing::warn!(message, "Redis is not as it was left; verifying it again");
                    was_verified = true;
                    self.inner.links.verify_again(&link, generation).await?;
                }
                Err(LinkError::Server { code, .. }) if code == "CLOCK" && looked < LOOKS => {
                    tracing::debug!("looking at the clock of Redis again");
                    looked += 1;
                    slow_ms = self.inner.time.monotonic_ms().saturating_sub(sent_ms);
                    self.settle_after(looks).await?;
                }
                outcome => return outcome.map(|value| Ran { value, lineage }),
            }
        }
    }

    /// As [`run`](Self::run), for a script that changes nothing.
    async fn query(
        &self,
        command: impl Fn(&str) -> Cmd + Send + Sync,
    ) -> Result<Value, StoreError> {
        self.run(|lineage, _| command(lineage)).await.map(|ran| ran.value).map_err(nothing_done)
    }

    fn seen(&self) -> u64 {
        self.inner.counter_seen.load(Ordering::Relaxed)
    }

    fn saw(&self, counter: u64) {
        self.inner.counter_seen.fetch_max(counter, Ordering::Relaxed);
    }

    async fn read_some(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let inner = &*self.inner;
        let sent_ms = self.inner.time.monotonic_ms();
        let records: Vec<String> = keys.iter().map(|key| inner.keys.record(key)).collect();
        let Keys { lineage, token, absent, clock_ahead, .. } = &inner.keys;
        let fixed = [lineage, token, absent, clock_ahead];
        let all: Vec<&str> = fixed.into_iter().chain(&records).map(String::as_str).collect();
        let reply = self
            .query(|lineage| {
                let mut command = inner.scripts.read.call(&all);
                command.arg(lineage).arg(self.seen());
                for key in keys {
                    command.arg(u8::from(matches!(key, Key::Lock(_))));
                }
                command
            })
            .await?;
        let (snapshots, counter, now_ms) = codec::records(keys, reply)?;
        inner.time.saw(now_ms, sent_ms);
        self.saw(counter);
        Ok((snapshots, counter))
    }

    async fn commit_batch(
        &self,
        batch: &Batch,
        sent_bound_ms: &AtomicU64,
    ) -> Result<Committed, StoreError> {
        let inner = &*self.inner;
        let commit = Commit::new(batch)?;
        let sent_ms = inner.time.monotonic_ms();
        // A lineage that lost it has to begin anew, so the verification has to know it too.
        self.saw(batch.counter.saturating_sub(batch.ahead));
        let reply = self.run(|lineage, latest_ms| {
            let earliest_ms = inner.time.earliest_ms();
            // Another lineage may not have the bound that the former one had.
            let bound_ms = inner.time.promise(batch.lives_ms);
            sent_bound_ms.store(bound_ms, Ordering::Relaxed);
            let seen = self.seen();
            let known = ServerKnowledge { seen, sent_bound_ms: bound_ms, latest_ms, earliest_ms };
            commit.command(inner.scripts.commits(), &inner.keys, lineage, known)
        });
        let Ran { value, lineage } = reply.await.map_err(refused).inspect_err(|error| {
            if let StoreError::Paused { left_ms } = error {
                inner.pauses.show(*left_ms);
            }
        })?;
        let committed = Committed { lineage: Some(lineage), ..commit.read(value)? };
        inner.time.saw(committed.now_ms.unwrap_or(0), sent_ms);
        self.saw(committed.base + batch.tokens);
        Ok(committed)
    }
}

/// The error of a script that was not carried out as it should be.
fn refused(error: LinkError) -> StoreError {
    match error {
        LinkError::Server { code, message } => match code.as_str() {
            "PAUSED" => StoreError::Paused { left_ms: message.parse().unwrap_or(1) },
            "EXHAUSTED" => StoreError::Exhausted,
            "FOREIGN" => StoreError::Unavailable(format!(
                "{message}: no lock server has written it, and nothing was done; delete it once no \
                 lease can live that it may have replaced"
            )),
            _ => store_error(LinkError::Server { code, message }),
        },
        error => store_error(error),
    }
}

/// As [`refused`], for a script that was to change nothing.
fn nothing_done(error: LinkError) -> StoreError {
    match refused(error) {
        StoreError::Unknown(reason) => StoreError::Unavailable(reason),
        error => error,
    }
}

#[async_trait]
impl RecordStore for RedisRecords {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn is_alone(&self) -> bool {
        false
    }

    /// As many as are under way: batches of one size keep both this server and Redis at work, and
    /// smaller ones cost more calls than the waiting that they save.
    fn overlap_min(&self, under_way: usize) -> Option<usize> {
        Some(under_way.max(1))
    }

    /// This server decides one half while Redis commits the other.
    fn halves_from(&self) -> usize {
        HALVES_FROM
    }

    fn now_ms(&self) -> u64 {
        self.inner.time.now_ms()
    }

    fn counter(&self) -> u64 {
        self.seen()
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let (mut snapshots, mut counter) =
            self.read_some(&keys[..keys.len().min(READ_MAX)]).await?;
        for some in keys.chunks(READ_MAX).skip(1) {
            let (more, later) = self.read_some(some).await?;
            snapshots.extend(more);
            counter = later;
        }
        Ok((snapshots, counter))
    }

    async fn items(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
        let keys = &self.inner.keys;
        let record = self.inner.keys.record(key);
        // Behind every item of that name, and before the next name.
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("[{after}\u{1}"));
        let reply = self.query(|lineage| {
            let mut command =
                self.inner.scripts.items.call(&[&keys.lineage, &keys.absent, &record]);
            command.arg(lineage).arg(&from).arg(limit);
            command
        });
        codec::items(reply.await?)
    }

    async fn item_count(&self, key: &Key) -> Result<usize, StoreError> {
        let mut count = ::redis::cmd("ZCARD");
        count.arg(self.inner.keys.items(key));
        codec::count(self.inner.links.here().call(&count).await.map_err(nothing_done)?)
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let lives_ms = batch.lives_ms;
        let sent_ms = self.inner.time.monotonic_ms();
        let sent_bound_ms = AtomicU64::new(0);
        let committed = self.commit_batch(&batch, &sent_bound_ms).await;
        let sent = (sent_bound_ms.into_inner(), sent_ms);
        self.inner.time.promised(lives_ms, sent, committed.as_ref().map(|_| ()));
        committed
    }

    fn confirms(&self) -> bool {
        self.inner.replicas.is_some()
    }

    async fn confirm(&self, lineage: Option<&str>) -> Confirmed {
        match &self.inner.replicas {
            Some(replicas) => replicas.confirm(lineage).await,
            None => Confirmed::default(),
        }
    }

    async fn locks(&self, query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        self.lock_names(query).await
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        self.session_ids(after, limit).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        // In this order: a verification that another task makes meanwhile knows the mark as well.
        self.inner.lineage.guards().saw(mark);
        let generation = self.inner.links.first().generation();
        self.inner.links.first().verify_again(generation).await.map_err(store_error)
    }

    async fn beat(&self, server: ServerId, liveness_ms: u64) -> Result<Vec<ServerId>, StoreError> {
        self.inner.lock_walks.forget_old(service_kit::clock::now());
        self.inner.session_walks.forget_old(service_kit::clock::now());
        let name = server.0.to_string();
        let servers = self.settle(&name, liveness_ms).await.map_err(nothing_done)?;
        let mut servers: Vec<ServerId> = servers.into_iter().map(ServerId).collect();
        servers.sort_unstable();
        Ok(servers)
    }

    fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        let (sender, receiver) = mpsc::channel(WAKEUPS_MAX);
        let listener = self.clone();
        let stop = self.inner.tasks.shutdown_token();
        self.inner.tasks.spawn(async move {
            stop.run_until_cancelled(listener.listen(server, sender)).await;
        });
        receiver
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

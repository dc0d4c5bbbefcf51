//! Leases in Redis: one Lua script a transition, one counter a namespace.
//!
//! Any number of lock servers may serve one Redis. The scripts (`redis/*.lua`) hold the rules; this
//! module sends them, keeps the connection honest ([`lineage`]), and wakes waiters (`waiting`).

mod asking;
pub(in crate::store) mod background;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod in_use;
pub mod judge;
mod key_prefix;
pub mod lineage;
pub(in crate::store) mod offset;
pub mod raw;
pub(crate) mod refusals;
pub mod replicas;
mod reply;
pub mod rights;
mod scans;
mod scripts;
mod sessions;
mod timekeeper;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::Cmd;
use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Namespace, Owner, Token, Ttl};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::redis_link::{LinkError, LinkOptions, RedisLink, RedisTarget, Script};
use service_kit::tasks::Tasks;

use self::asking::Wish;
pub use self::key_prefix::KeyPrefix;
use self::lineage::{ABSENT, Lineage, LineageKeeper};
use self::refusals::store_error;
use self::replicas::{ReplicaOptions, Replicas};
use self::reply::{Answer, Handed};
use self::scripts::Scripts;
use self::timekeeper::Timekeeper;
use self::waiting::Waiting;
use super::{Acquire, Grant, Limits, ListQuery, LockStore, LossOptions, Revoke, StoreError};
use crate::guards::Guards;

/// How the store talks to its Redis.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Tenant.
    pub namespace: Namespace,
    /// What goes before the keys.
    pub key_prefix: KeyPrefix,
    /// Bounds.
    pub limits: Limits,
    /// Connection behaviour.
    pub link: LinkOptions,
    /// For how long a server that fell silent still counts as alive; what a dead server can cost
    /// the waiters behind its own.
    pub liveness: Duration,
    /// What becomes of grants when leases may have been lost.
    pub loss: LossOptions,
    /// Which replicas must have a grant.
    pub replicas: ReplicaOptions,
}

/// The `redis://…` store. Cheap to clone.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    link: RedisLink,
    replicas: Option<Replicas>,
    scripts: Scripts,
    lineage: Arc<LineageKeeper>,
    time: Arc<Timekeeper>,
    options: RedisOptions,
    prefix: String,
    lineage_key: String,
    absent_key: String,
    server_id: String,
    token_seen: Arc<AtomicU64>,
    waiting: Waiting,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("link", &self.inner.link).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects, verifies the lineage, and starts what runs in the background.
    ///
    /// # Errors
    /// A sentence where Redis cannot be reached or cannot be used.
    pub async fn start(
        target: RedisTarget,
        options: RedisOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let prefix = options.key_prefix.of(&options.namespace);
        let token_seen = Arc::new(AtomicU64::new(0));
        let scripts = Scripts::new();
        let target = target.in_slot_of(prefix.as_bytes());
        let time = Arc::new(Timekeeper::new(&prefix, &scripts.clock, options.loss, kit));
        let lineage =
            LineageKeeper::new(&target, &prefix, &scripts, &token_seen, &time, guards, kit);
        let lineage = Arc::new(lineage.and_replicas(options.replicas.count));
        let to = target.clone();
        let link = RedisLink::start(to, options.link, lineage.clone(), &kit.tasks).await?;
        let (waited, verifier) = (options.replicas, lineage.clone());
        let replicas =
            Replicas::start(&target, &prefix, waited, (&link, options.link), verifier, kit).await?;
        let inner = Inner {
            link,
            replicas,
            scripts,
            lineage,
            time,
            options,
            lineage_key: format!("{prefix}lineage"),
            absent_key: format!("{prefix}{ABSENT}"),
            prefix,
            server_id: service_kit::ids::random_hex(8),
            token_seen,
            waiting: Waiting::default(),
            clock: kit.clock.clone(),
            tasks: kit.tasks.clone(),
        };
        let store = Self { inner: Arc::new(inner) };
        background::start(&store, kit.health.clone());
        Ok(store)
    }

    /// The lineage in force.
    pub fn lineage(&self) -> Option<Lineage> {
        self.inner.lineage.current()
    }

    /// Runs a script with the arguments that all of them share and then `more`. A refusal because of
    /// the lineage or the clock has changed nothing, so it is sent again: once after a new verification,
    /// a few times after a new look at the clock. What was long on its way is given that much longer.
    /// A Redis that has forgotten the scripts was verified again by then.
    ///
    /// # Cancel safety
    /// The reply to what was sent is read whether or not the caller stays: it may hold grants of other
    /// waiters. Nothing is sent for a caller that has left.
    async fn run(
        &self,
        script: &Script,
        more: impl Fn(&mut Cmd) + Send,
    ) -> Result<Answer, StoreError> {
        let (mut verified, mut looked, mut slow_ms) = (false, 0, 0);
        let mut was_down = false;
        loop {
            let (generation, looks) = (self.inner.link.generation(), self.inner.time.looks());
            let lineage = self.grants_in();
            let command = self.command(script, &more, slow_ms)?;
            let sent_ms = self.inner.clock.monotonic_ms();
            match self.inner.tasks.finish(self.clone().exchange(command, lineage, sent_ms)).await {
                Ok(answer) => return answer,
                Err(LinkError::Down(_)) if !was_down => was_down = true,
                Err(LinkError::Server { code, message }) if code == "LINEAGE" && !verified => {
                    tracing::warn!(
                        answer = message,
                        "Redis is not as it was left; verifying it again"
                    );
                    verified = true;
                    self.inner.link.verify_again(generation).await.map_err(store_error)?;
                }
                Err(LinkError::Server { code, message }) if code == "CLOCK" && looked < LOOKS => {
                    tracing::debug!(answer = message, "looking at the clock of Redis again");
                    looked += 1;
                    slow_ms = self.inner.clock.monotonic_ms().saturating_sub(sent_ms);
                    self.look_at_clock(looks).await.map_err(nothing_done)?;
                }
                Err(error) => return Err(store_error(error)),
            }
        }
    }

    /// Sends a command and reads its reply. It is not sent again here: its caller may have left since, and
    /// has then sent the withdrawal.
    async fn exchange(
        self,
        command: Cmd,
        lineage: Option<String>,
        sent_ms: u64,
    ) -> Result<Result<Answer, StoreError>, LinkError> {
        let value = self.inner.link.call_in_turn(&command).await?;
        Ok(self.read(value, lineage.as_ref(), sent_ms))
    }

    /// Tells a clock that jumped from a question that was long on its way, unless somebody did after
    /// `looks`.
    async fn look_at_clock(&self, looks: u64) -> Result<(), LinkError> {
        let Some(lineage) = self.lineage() else { return Ok(()) };
        self.inner.time.settle_after(looks, &self.inner.link, &lineage.id).await
    }

    fn command(
        &self,
        script: &Script,
        more: impl Fn(&mut Cmd),
        slow_ms: u64,
    ) -> Result<Cmd, StoreError> {
        let inner = &*self.inner;
        let lineage = inner.lineage.current().ok_or_else(|| {
            StoreError::Unavailable("the lineage of Redis is not verified yet".to_owned())
        })?;
        let mut command = script.call(&[&inner.lineage_key, &inner.absent_key]);
        command
            .arg(&lineage.id)
            .arg(&inner.prefix)
            .arg(inner.token_seen.load(Ordering::Relaxed))
            .arg(&inner.server_id)
            .arg(inner.options.limits.ended_retention_ms)
            .arg(millis(inner.options.liveness))
            .arg(inner.options.limits.shared_per_lock);
        more(&mut command);
        command.arg(inner.time.latest_ms().saturating_add(slow_ms));
        Ok(command)
    }

    /// Reads the reply to a command that was sent at `sent_ms`, remembers the highest token, and passes on
    /// the grants for our waiters. The time that remains was measured when the script ran, which may have
    /// been right after the command was sent; Redis and this server count whole milliseconds.
    fn read(
        &self,
        value: ::redis::Value,
        lineage: Option<&String>,
        sent_ms: u64,
    ) -> Result<Answer, StoreError> {
        let (answer, handed) = reply::read(value)?;
        let read_ms = self.inner.clock.monotonic_ms();
        let took_ms = read_ms.saturating_sub(sent_ms) + 1;
        for token in answer.tokens() {
            self.saw(token);
        }
        // As the script said it: equal leases are noted alike, however long their replies took.
        if let Some(lives_ms) = answer.lives_ms() {
            self.inner.time.note(lives_ms);
        }
        let answer = answer.later(took_ms);
        self.inner.time.paused(answer.paused_ms());
        for handed in handed {
            match handed {
                Handed::One(lock, grant) => {
                    self.saw(grant.token);
                    self.inner.time.note(grant.remaining_ms);
                    let grant = grant.later(took_ms);
                    let (lease_id, locks) = (grant.lease_id, vec![lock.clone()]);
                    self.announce(lineage.cloned(), locks, lease_id, move |store| {
                        store.inner.waiting.grant(&lock, grant, read_ms)
                    });
                }
                Handed::Several { known_by, lease_id, locks } => {
                    self.announce(lineage.cloned(), locks, lease_id, move |store| {
                        store.inner.waiting.ask_again(&known_by, lease_id)
                    });
                }
            }
        }
        Ok(answer)
    }

    fn saw(&self, token: Token) {
        self.inner.token_seen.fetch_max(token.get(), Ordering::Relaxed);
    }
}

#[async_trait]
impl LockStore for RedisStore {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let wish = Wish::One(&request);
        let mut grants = if request.wait_ms > 0 {
            self.wait(wish).await?
        } else {
            self.ask(wish, false).await?.into_grants()?
        };
        grants.pop().ok_or_else(|| reply::unexpected(&Answer::Several(Vec::new())))
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        let Some(first) = parts.first() else { return Ok(Vec::new()) };
        asking::check_parts(&parts)?;
        if first.wait_ms > 0 {
            return self.wait(Wish::All(&parts)).await;
        }
        self.ask(Wish::All(&parts), false).await?.into_grants()
    }

    async fn renew(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let ttl = ttl.map(|ttl| ttl.ms().to_string()).unwrap_or_default();
        let ask = async |acknowledged: String| {
            self.run(&self.inner.scripts.renew, |command| {
                command.arg(lock.as_str()).arg(lease.to_string()).arg(&ttl).arg(&acknowledged);
            })
            .await
        };
        let lineage = self.grants_in();
        let mut answer = ask(self.acknowledged()).await?;
        if let Answer::Unacknowledged(token) = answer {
            self.acknowledge(lineage).await?;
            answer = ask(token.to_string()).await?;
        }
        answer.of(lease, &self.inner.options.limits).into_grant()
    }

    async fn release(&self, lock: &LockName, lease: LeaseId) -> Result<EndedReply, StoreError> {
        let answer = self
            .run(&self.inner.scripts.release, |command| {
                command.arg(lock.as_str()).arg(lease.to_string());
            })
            .await?;
        answer.into_ended(lock)
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        let lease = revoke.lease.map(|lease| lease.to_string()).unwrap_or_default();
        let reason = revoke.reason.as_ref().map_or("", Owner::as_str);
        let answer = self
            .run(&self.inner.scripts.revoke, |command| {
                command.arg(lock.as_str()).arg(&lease).arg(reason);
            })
            .await?;
        answer.into_revoked(lock)
    }

    async fn mint(&self, _lock: &LockName) -> Result<Token, StoreError> {
        match self.run(&self.inner.scripts.mint, |_| {}).await? {
            Answer::Minted(token) => Ok(token),
            Answer::Exhausted => Err(StoreError::Exhausted),
            other => Err(reply::unexpected(&other)),
        }
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        self.look(lock).await?.into_lock(lock)
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        let names = self.names(&query.prefix).await?;
        let after = |name: &LockName| query.after.as_ref().is_none_or(|after| name > after);
        let mut names = names.into_iter().filter(after).peekable();
        let mut page = LockPage { locks: Vec::new(), next_after: None };
        while page.locks.len() < query.limit
            && let Some(name) = names.next()
        {
            // A lock that was released since the scan is left out.
            page.locks.extend(self.line(&name).await?);
            page.next_after = names.peek().is_some().then_some(name);
        }
        Ok(page)
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        // In this order: a verification that somebody else makes meanwhile knows the mark as well.
        self.inner.lineage.guards().saw(mark);
        let generation = self.inner.link.generation();
        self.inner.link.verify_again(generation).await.map_err(store_error)
    }

    fn name(&self) -> &'static str {
        "redis"
    }
}

/// How often the clock of Redis is looked at for one question. More than once where the question is long
/// on its way, and longer from time to time.
const LOOKS: u32 = 4;

/// The script was not run, whatever became of the look at the clock.
fn nothing_done(error: LinkError) -> StoreError {
    match error {
        LinkError::Unknown(reason) => StoreError::Unavailable(reason),
        error => store_error(error),
    }
}

pub(in crate::store) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

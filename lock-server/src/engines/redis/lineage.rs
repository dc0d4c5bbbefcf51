//! Is this still the Redis that issued our tokens?
//!
//! A lineage is a stretch of a Redis' life in which no INCR can have been lost: one process, one
//! replication history, one counter that never fell. Its id stands in Redis beside the counter, and
//! every script refuses where it is not the one that this server verified. Where the process, the
//! history or the counter changed, or nothing is stored, a new lineage begins with the counter
//! lifted above everything that may have been issued (see [`tokens::restart_floor`]), and no lease
//! begins for as long as a lost one may live.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use async_trait::async_trait;
use fence_protocol::Namespace;
use prometheus_client::metrics::counter::Counter;
use redis_link::{LinkOptions, RedisTarget, Script, Verifier, load_scripts, plain, text_fields};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::health::Health;

use super::identity::identity;
use super::key_prefix::KeyPrefix;
use super::keys::Keys;
use super::refusals::elsewhere;
use super::rights::Needs;
use super::{NAME, Scripts};
use crate::engines::loss::AfterLoss;
use crate::engines::shared::lineages;
use crate::engines::shared::store_clock::StoreTime;
use crate::guards::{self, Guards};
use lease::tokens;

/// Format of the records; one namespace takes servers of one format. 0.1 had formats up to 3.
const FORMAT: u64 = 4;

/// Verifies connections and keeps the lineage in force.
#[derive(Debug)]
pub(super) struct LineageKeeper {
    is_cluster: bool,
    needs: Needs,
    keys: Keys,
    scripts: Arc<Scripts>,
    counter_seen: Arc<AtomicU64>,
    time: Arc<StoreTime>,
    after_loss: AfterLoss,
    guards: Guards,
    clock: Arc<dyn Clock>,
    health: Health,
    begun: Counter,
    /// The lineage in force, and how many began since this server started; the first does not
    /// count.
    current: RwLock<Option<(Arc<str>, u64)>>,
}

/// Lineage as this server knows it.
#[derive(Debug, Default)]
struct KnownLineage {
    seen: u64,
    mark: u64,
    floor: u64,
    lineage: String,
    choice: Option<u64>,
    lives_ms: u64,
    waits: bool,
    /// The time of the records, 0 where it is not known, and by how much that may be wrong.
    now_ms: u64,
    limit_ms: u64,
}

/// Permission of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Look,
    Begin,
    Fresh,
}

/// Outcome of the script.
#[derive(Debug)]
enum Verdict {
    /// The lineage continues.
    Same { id: String },
    /// A new one began: the counter was lifted, and no lease begins for so long, ms.
    New { id: String, counter: String, reason: String, paused_ms: u64 },
    /// A new one is due, and nothing was changed.
    Due { reason: String },
}

impl LineageKeeper {
    pub(super) fn new(
        target: &RedisTarget,
        keys: &Keys,
        scripts: &Arc<Scripts>,
        (counter_seen, time): (&Arc<AtomicU64>, &Arc<StoreTime>),
        (after_loss, guards): (AfterLoss, Guards),
        replicas: u32,
        kit: &Kit,
    ) -> Self {
        Self {
            is_cluster: target.is_cluster(),
            needs: Needs::new(target, keys.prefix()).and_replicas(replicas),
            keys: keys.clone(),
            scripts: scripts.clone(),
            counter_seen: counter_seen.clone(),
            time: time.clone(),
            after_loss,
            guards,
            clock: kit.clock.clone(),
            health: kit.health.clone(),
            begun: lineages::begun(kit),
            current: RwLock::new(None),
        }
    }

    /// The lineage in force.
    pub(super) fn current(&self) -> Option<Arc<str>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(id, _)| id.clone())
    }

    /// The guards, whose marks every verification compares with the counter.
    pub(super) fn guards(&self) -> &Guards {
        &self.guards
    }

    /// The verdict on this process. The guards are asked at start, and whenever a new lineage is
    /// due: before it begins, so that it begins above what they have seen.
    async fn judge(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
    ) -> Result<Verdict, String> {
        if self.guards.were_asked() && !self.guards.is_empty() {
            let verdict = self.run(connection, choice, Mode::Look).await?;
            if !matches!(verdict, Verdict::Due { .. }) {
                return Ok(verdict);
            }
        }
        // Guards that do not reply are reported there. The new lineage begins above the clock
        // floor, which is above their marks.
        self.guards.marks().await;
        self.run(connection, choice, Mode::Begin).await
    }

    async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
        mode: Mode,
    ) -> Result<Verdict, String> {
        let known = KnownLineage {
            seen: self.counter_seen.load(Ordering::Relaxed),
            mark: self.guards.highest(),
            floor: tokens::restart_floor(self.clock.wall_ms()),
            lineage: self.current().as_deref().unwrap_or_default().to_owned(),
            choice,
            lives_ms: self.time.lives_ms(),
            waits: self.after_loss == AfterLoss::Wait,
            now_ms: self.time.now_ms(),
            limit_ms: self.time.limit_ms(),
        };
        judge_lineage(connection, self.is_cluster, &self.keys, &known, mode).await
    }

    fn adopt(&self, id: String) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changes = match &*current {
            Some((known, changes)) if **known == *id => *changes,
            Some((_, changes)) => changes + 1,
            None => 0,
        };
        *current = Some((id.into(), changes));
        self.health.set("lineage", lineages::status(NAME, changes));
    }
}

#[async_trait]
impl Verifier for LineageKeeper {
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        self.verify_chosen(connection, None).await
    }

    async fn verify_chosen(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
    ) -> Result<(), String> {
        self.needs.check(connection, LinkOptions::default().connect_timeout).await?;
        let id = match self.judge(connection, choice).await? {
            Verdict::Same { id } => id,
            Verdict::New { id, counter, reason, paused_ms } => {
                self.begun.inc();
                tracing::warn!(
                    lineage = id,
                    counter,
                    reason,
                    grants_wait_ms = paused_ms,
                    "a new lineage begins: the counter was lifted above every token that can have been issued"
                );
                id
            }
            Verdict::Due { reason } => return Err(format!("a new lineage is due: {reason}")),
        };
        load_scripts(connection, &self.scripts.all()).await?;
        if self.current().is_none_or(|known| *known != *id) {
            self.time.is_new();
        }
        self.adopt(id);
        Ok(())
    }

    fn others_take(&self) -> Duration {
        if self.guards.is_empty() { Duration::ZERO } else { guards::GUARD_TIMEOUT }
    }
}

/// Vouches that a namespace has never issued a token, so that its first one is 1.
///
/// # Errors
/// A sentence; also where the namespace has a lineage already, which is then left as it is, and
/// where a guard has seen a token or does not say whether it has: nothing is done then.
pub async fn init_fresh(
    target: &RedisTarget,
    key_prefix: &KeyPrefix,
    namespace: &Namespace,
    guards: &Guards,
) -> Result<(), String> {
    guards.marks().await.vouch_for_a_new_namespace()?;
    let keys = Keys::new(key_prefix, namespace);
    let target = target.in_slot_of(keys.prefix().as_bytes());
    let timeout = LinkOptions::default().connect_timeout;
    let (mut connection, choice) = target.connect_chosen(timeout).await?;
    Needs::new(&target, keys.prefix()).check(&connection, timeout).await?;
    let is_cluster = target.is_cluster();
    let known = KnownLineage { choice, ..KnownLineage::default() };
    match judge_lineage(&mut connection, is_cluster, &keys, &known, Mode::Fresh).await? {
        Verdict::New { .. } => Ok(()),
        Verdict::Due { reason } => Err(format!("namespace {namespace} is not new ({reason})")),
        Verdict::Same { id } => Err(format!(
            "namespace {namespace} at {target} is in use (lineage {id}); nothing was changed"
        )),
    }
}

async fn judge_lineage(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
    keys: &Keys,
    known: &KnownLineage,
    mode: Mode,
) -> Result<Verdict, String> {
    let failed = |step: &str, error: ::redis::RedisError| match error.code().and_then(elsewhere) {
        Some(where_to) => format!("Redis cannot be verified: {where_to}"),
        None => format!("Redis cannot be verified ({step}): {}", plain(&error)),
    };
    let info = ::redis::cmd("INFO").query_async::<String>(connection).await;
    let info = info.map_err(|error| failed("INFO", error))?;
    let (run_id, replication_id) = identity(&info, is_cluster)?;
    let script = Script::new("lineage.lua", include_str!("lineage.lua"));
    let lineage = &keys.lineage;
    let token = &keys.token;
    let meta = &keys.meta;
    let mut command = script.call_once(&[
        lineage,
        token,
        meta,
        &keys.paused_for,
        &keys.lives_until,
        &keys.absent,
        &keys.clock_ahead,
    ]);
    command.arg(run_id).arg(replication_id).arg(known.seen).arg(known.mark).arg(known.floor);
    command.arg(tokens::EPOCH_2025_MS).arg(tokens::TOKENS_PER_MS).arg(tokens::LIFT_SLACK);
    command.arg(service_kit::ids::random_hex(16)).arg(&known.lineage).arg(FORMAT);
    command.arg(known.choice.map(|epoch| epoch.to_string()).unwrap_or_default());
    command.arg(known.lives_ms).arg(if known.waits { "wait" } else { "" });
    command.arg(match mode {
        Mode::Look => "look",
        Mode::Begin => "",
        Mode::Fresh => "fresh",
    });
    command.arg(known.now_ms).arg(known.limit_ms);
    let value = command.query_async(connection).await;
    let value = value.map_err(|error| failed("its lineage", error))?;
    let fields = text_fields(value).unwrap_or_default();
    match fields.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["SAME" | "USED", id] => Ok(Verdict::Same { id: (*id).to_owned() }),
        ["NEW", id, counter, reason, left] => Ok(Verdict::New {
            id: (*id).to_owned(),
            counter: (*counter).to_owned(),
            reason: (*reason).to_owned(),
            paused_ms: left.parse().unwrap_or(0),
        }),
        ["DUE", reason] => Ok(Verdict::Due { reason: (*reason).to_owned() }),
        ["STALE", epoch] => Err(format!(
            "the sentinels chose this Redis in epoch {}, and a lock server has used it in epoch \
             {epoch}: they are behind, and are retried. If the sentinels were set up anew, \
             and their epochs began again, HDEL {meta} epoch",
            known.choice.unwrap_or_default()
        )),
        ["FORMAT", found] => Err(other_format(keys.prefix(), found)),
        ["EXHAUSTED"] => Err("this namespace has no token left above those that may have been \
            issued; use another namespace, and check the clocks of Redis and of this machine"
            .to_owned()),
        other => Err(format!("Redis cannot be verified: the script answered {other:?}")),
    }
}

fn other_format(prefix: &str, found: &str) -> String {
    format!(
        "the locks in this Redis are stored in format {found}, and this lock-server stores them in \
         format {FORMAT}: run the version that wrote them, or use another --namespace, or, when no \
         lock server uses it and no lease of it lives, delete its keys {prefix}*; its tokens then \
         continue above all that were issued"
    )
}

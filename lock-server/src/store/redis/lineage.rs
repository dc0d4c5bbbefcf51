//! Is this still the Redis that issued our tokens?
//!
//! A lineage is a stretch of a Redis' life in which no INCR can have been lost: one process, one
//! replication history, one counter that never fell. Its id stands in Redis beside the counter, and
//! every script refuses when it is not the one that this server verified. When the process, the
//! history or the counter changed, or nothing is stored, a new lineage begins with the counter
//! lifted above everything that may have been issued (see [`tokens::restart_floor`]). Holes in the
//! numbers are harmless, repeats are not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use async_trait::async_trait;
use fence_protocol::Namespace;
use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use service_kit::redis_link::{
    LinkOptions, RedisTarget, Verifier, info_field, load_scripts, plain, text_fields,
};

use super::KeyPrefix;
use super::judge::{Version, oldest_version};
use super::refusals::elsewhere;
use super::rights::Needs;
use super::scripts::{self, Scripts};
use super::timekeeper::{Timekeeper, Wire};
use crate::guards::{self, Guards};
use lease::tokens;

/// A lineage that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// Its id, which every script compares.
    pub id: String,
    /// How many new lineages this server began or saw begin since it started; the first adoption
    /// does not count.
    pub changes: u64,
}

/// Verifies connections and keeps the lineage in force.
#[derive(Debug)]
pub(super) struct LineageKeeper {
    is_cluster: bool,
    needs: Needs,
    prefix: String,
    scripts: Scripts,
    token_seen: Arc<AtomicU64>,
    time: Arc<Timekeeper>,
    guards: Guards,
    clock: Arc<dyn Clock>,
    health: Health,
    begun: Counter,
    current: RwLock<Option<Lineage>>,
}

impl LineageKeeper {
    pub(super) fn new(
        target: &RedisTarget,
        prefix: &str,
        scripts: &Scripts,
        token_seen: &Arc<AtomicU64>,
        time: &Arc<Timekeeper>,
        guards: Guards,
        kit: &Kit,
    ) -> Self {
        let (prefix, scripts) = (prefix.to_owned(), scripts.clone());
        let (token_seen, time) = (token_seen.clone(), time.clone());
        let begun = Counter::default();
        kit.metrics.registry(|registry| {
            registry.register(
                "lock_lineages_begun",
                "New lineages that this server began: each lifted the token counter",
                begun.clone(),
            );
        });
        let (clock, health) = (kit.clock.clone(), kit.health.clone());
        Self {
            is_cluster: target.is_cluster(),
            needs: Needs::of(target, &prefix),
            prefix,
            scripts,
            token_seen,
            time,
            guards,
            clock,
            health,
            begun,
            current: RwLock::new(None),
        }
    }

    /// With the right to wait for so many replicas.
    pub(super) fn and_replicas(self, count: u32) -> Self {
        Self { needs: self.needs.and_replicas(count), ..self }
    }

    /// The lineage in force.
    pub(super) fn current(&self) -> Option<Lineage> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
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
        // Silence is noted there. What begins below begins above the clock floor, which covers it.
        self.guards.ask().await;
        self.run(connection, choice, Mode::Begin).await
    }

    async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
        mode: Mode,
    ) -> Result<Verdict, String> {
        let known = Known {
            choice,
            seen: self.token_seen.load(Ordering::Relaxed),
            floor: tokens::restart_floor(self.clock.wall_ms()),
            mark: self.guards.highest(),
            lives_ms: self.time.lives_ms(),
            waits: self.time.waits_after_loss(),
            lineage: self.current().map(|lineage| lineage.id).unwrap_or_default(),
        };
        judge_lineage(connection, self.is_cluster, &self.prefix, &known, mode).await
    }

    fn adopt(&self, id: String) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changes = match &*current {
            Some(known) if known.id == id => known.changes,
            Some(known) => known.changes + 1,
            None => 0,
        };
        *current = Some(Lineage { id, changes });
        let status = match changes {
            0 => Status::Ok,
            changes => Status::Warn(format!(
                "Redis may have lost tokens {changes} times since this server started; they were \
                 lifted above everything issued before"
            )),
        };
        self.health.set("lineage", status);
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
        self.needs.check(connection).await?;
        let verdict = self.judge(connection, choice).await?;
        if let Verdict::New { id, counter, reason, paused_ms } = &verdict {
            self.begun.inc();
            tracing::warn!(
                lineage = id,
                counter,
                reason,
                grants_wait_ms = paused_ms,
                "a new lineage begins: the counter was lifted above every token that can have been issued"
            );
        }
        load_scripts(connection, &self.scripts.all()).await?;
        match verdict {
            Verdict::Same { id } | Verdict::New { id, .. } => {
                // A new process may have another clock; the pause of a new lineage covers that.
                let is_new = self.current().is_none_or(|known| known.id != id);
                let settled = self.time.settle(Wire::New(connection), &id, is_new).await;
                settled.map_err(|error| error.to_string())?;
                self.adopt(id);
            }
            Verdict::Due { reason } => return Err(format!("a new lineage is due: {reason}")),
        }
        Ok(())
    }

    fn others_take(&self) -> Duration {
        if self.guards.is_empty() { Duration::ZERO } else { guards::ASK_TIMEOUT }
    }
}

/// What the lineage script found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The lineage goes on.
    Same {
        /// Its id.
        id: String,
    },
    /// A new one began.
    New {
        /// Its id.
        id: String,
        /// What the counter was lifted to.
        counter: String,
        /// Why.
        reason: String,
        /// For how long nobody is granted a lock, ms.
        paused_ms: u64,
    },
    /// A new one is due, and nothing was changed.
    Due {
        /// Why.
        reason: String,
    },
}

/// What the caller knows of tokens that were issued.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The highest token that this server has seen.
    seen: u64,
    /// Where this server's clock would begin.
    floor: u64,
    /// The highest mark that a guard has reported.
    mark: u64,
    /// For how long a lease may still live, ms.
    lives_ms: u64,
    /// Whether grants wait where leases may be lost.
    waits: bool,
    /// The lineage before, or empty.
    lineage: String,
    /// The sentinels' epoch by which the connection was made.
    choice: Option<u64>,
}

/// What the script may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Say whether a new lineage is due.
    Look,
    /// Begin it.
    Begin,
    /// Begin at 1 where nothing is stored.
    Fresh,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Begin => "",
            Self::Fresh => "fresh",
        }
    }
}

/// Vouches that a namespace has never issued a token, so that its first one is 1
/// (`lock-server init --fresh`).
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
    guards.ask().await.vouch_for_a_new_namespace()?;
    let prefix = key_prefix.of(namespace);
    let target = target.in_slot_of(prefix.as_bytes());
    let timeout = LinkOptions::default().connect_timeout;
    let (mut connection, choice) = target.connect_chosen(timeout).await?;
    Needs::of(&target, &prefix).check(&mut connection).await?;
    let (is_cluster, known) = (target.is_cluster(), Known { choice, ..Known::default() });
    match judge_lineage(&mut connection, is_cluster, &prefix, &known, Mode::Fresh).await? {
        Verdict::New { counter, .. } if counter == "0" => Ok(()),
        Verdict::New { counter, reason, .. } => Err(format!(
            "namespace {namespace} is not new ({reason}); its next token is above {counter}"
        )),
        Verdict::Due { reason } => Err(format!("namespace {namespace} is not new ({reason})")),
        Verdict::Same { id } => Err(format!(
            "namespace {namespace} at {target} is in use (lineage {id}); nothing was changed"
        )),
    }
}

async fn judge_lineage(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
    prefix: &str,
    known: &Known,
    mode: Mode,
) -> Result<Verdict, String> {
    let failed = |step: &str, error: ::redis::RedisError| match error.code().and_then(elsewhere) {
        Some(where_to) => format!("Redis cannot be verified: {where_to}"),
        None => format!("Redis cannot be verified ({step}): {}", plain(&error)),
    };
    let info = ::redis::cmd("INFO").query_async::<String>(connection).await;
    let info = info.map_err(|error| failed("INFO", error))?;
    let (run_id, replication_id) = identity(&info, is_cluster)?;
    let keys = ["lineage", "token", "meta", ABSENT].map(|name| format!("{prefix}{name}"));
    let mut command = scripts::lineage().call_once(&keys.each_ref().map(String::as_str));
    command.arg(run_id).arg(replication_id).arg(known.seen).arg(known.floor);
    command.arg(service_kit::ids::random_hex(16));
    command.arg(tokens::EPOCH_2025_MS).arg(tokens::TOKENS_PER_MS).arg(tokens::LIFT_SLACK);
    command.arg(mode.word()).arg(known.mark).arg(FORMAT).arg(prefix);
    command.arg(known.lives_ms).arg(if known.waits { "wait" } else { "" }).arg(&known.lineage);
    command.arg(FORMAT_BEFORE).arg(known.choice.map(|epoch| epoch.to_string()).unwrap_or_default());
    let value = command.query_async(connection).await;
    let value = value.map_err(|error| failed("its lineage", error))?;
    let fields = text_fields(value).unwrap_or_default();
    match fields.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["SAME", id, _] => Ok(Verdict::Same { id: (*id).to_owned() }),
        ["NEW", id, counter, reason, left] => Ok(Verdict::New {
            id: (*id).to_owned(),
            counter: (*counter).to_owned(),
            reason: (*reason).to_owned(),
            paused_ms: left.parse().unwrap_or(0),
        }),
        ["DUE", reason] => Ok(Verdict::Due { reason: (*reason).to_owned() }),
        ["STALE", epoch] => Err(format!(
            "the sentinels chose this Redis in epoch {}, and a lock server has used it in epoch \
             {epoch}: they are behind, and are asked again. If the sentinels were set up anew, \
             and their epochs began again, HDEL {prefix}meta epoch",
            known.choice.unwrap_or_default()
        )),
        ["FORMAT", found] => Err(other_format(prefix, found, FORMAT)),
        ["EXHAUSTED"] => Err("this namespace has no token left above those that may have been \
            issued; use another namespace, and check the clocks of Redis and of this machine"
            .to_owned()),
        other => Err(format!("Redis cannot be verified: the script answered {other:?}")),
    }
}

/// What a key is called that is never written. Every script names it, so that a cluster does not run
/// one while the slot is on its way to another node: some of the keys that a script finds by itself
/// may be there already, and it would fail at them half-way.
pub(super) const ABSENT: &str = "absent";

/// How the scripts store locks and what they keep to; one Redis takes servers of one format.
const FORMAT: u64 = 3;

/// What this version takes over at its first start: the locks are stored alike, but its servers do not
/// look at the pause, and would grant in one.
const FORMAT_BEFORE: u64 = 2;

pub(in crate::store) fn other_format(prefix: &str, found: &str, ours: u64) -> String {
    format!(
        "the locks in this Redis are stored in format {found}, and this lock-server stores them in \
         format {ours}: run the version that wrote them, or use another --namespace, or, when no \
         lock server uses it and no lease of it lives, delete its keys {prefix}*; its tokens then go \
         on above all that were issued"
    )
}

/// Run id and replication id of a process that may issue tokens.
pub(in crate::store) fn identity(info: &str, is_cluster: bool) -> Result<(&str, &str), String> {
    let field = |name: &str| {
        info_field(info, name).ok_or_else(|| format!("Redis cannot be verified: INFO lacks {name}"))
    };
    let version = field("redis_version")?;
    if Version::parse(version).is_none_or(|version| version < oldest_version()) {
        return Err(format!(
            "Redis {version} is not supported; use version {} or newer",
            oldest_version()
        ));
    }
    if field("role")? != "master" {
        return Err("this Redis is a replica; name the master in --store".to_owned());
    }
    if info_field(info, "loading") == Some("1") {
        return Err("Redis is still loading its data".to_owned());
    }
    if info_field(info, "cluster_enabled") == Some("1") && !is_cluster {
        return Err("this Redis is a node of a cluster, in which keys move to other nodes; write \
                    redis-cluster://host:port,host:port with some of its nodes in --store"
            .to_owned());
    }
    Ok((field("run_id")?, field("master_replid")?))
}

#[cfg(test)]
mod tests;

//! Is this still the PostgreSQL that issued our tokens?
//!
//! A lineage is a stretch of a database's life in which no commit can have been lost: one system
//! identifier, one timeline, a log and a counter that never fell. Its id stands in the namespace's
//! row, and every commit is refused where it is not the one that this server verified. Where one of
//! them changed, a new lineage begins, and no lease begins for as long as a lost one may live. A
//! backup that was restored as files shows no sign of that: so the counter is lifted above
//! everything that may have been issued (see [`tokens::restart_floor`]) at every start of a lock
//! server or of PostgreSQL, too.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use fence_protocol::Namespace;
use lease::tokens;
use postgres_link::{ConnectOptions, PostgresConnection, PostgresTarget, Verifier, error_text};
use prometheus_client::metrics::counter::Counter;
use service_kit::Kit;
use service_kit::clock::{Clock, SystemClock};
use service_kit::health::Health;
use service_kit::tasks::Tasks;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::codec::{signed, unsigned};
use super::{NAME, column, one, session};
use crate::engines::loss::AfterLoss;
use crate::engines::shared::lineages;
use crate::engines::shared::store_clock::StoreTime;
use crate::guards::Guards;

/// Highest values of the store that this server has seen.
#[derive(Debug, Default)]
pub(super) struct Witness {
    counter: AtomicU64,
    log_end: AtomicI64,
}

impl Witness {
    pub(super) fn counter(&self) -> u64 {
        self.counter.load(Ordering::Relaxed)
    }

    pub(super) fn saw(&self, counter: u64) {
        self.counter.fetch_max(counter, Ordering::Relaxed);
    }

    pub(super) fn saw_log(&self, end: i64) {
        self.log_end.fetch_max(end, Ordering::Relaxed);
    }
}

/// The lineage in force, and the id of the namespace.
#[derive(Clone, Debug)]
pub(super) struct Adopted {
    pub(super) namespace: i32,
    pub(super) lineage: Arc<str>,
}

/// Permission of `adopt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Look,
    Begin,
    Fresh,
}

/// Parameters of `adopt` that depend on the server.
#[derive(Debug)]
struct KnownLineage {
    seen: u64,
    log_end: i64,
    mark: u64,
    wall_ms: u64,
    lineage: Arc<str>,
    lives_ms: u64,
    waits: bool,
    is_start: bool,
    now_ms: u64,
    limit_ms: u64,
}

/// Reply of `adopt`.
#[derive(Debug)]
struct Adoption {
    verdict: String,
    namespace: i32,
    lineage: String,
    counter: u64,
    reason: String,
    paused_ms: u64,
}

/// Verifies connections and keeps the lineage in force.
#[derive(Debug)]
pub(super) struct LineageKeeper {
    namespace: Namespace,
    witness: Arc<Witness>,
    time: Arc<StoreTime>,
    after_loss: AfterLoss,
    guards: Guards,
    clock: Arc<dyn Clock>,
    health: Health,
    begun: Counter,
    /// The lineage in force, and how many began since this server started; the first does not
    /// count.
    current: RwLock<Option<(Adopted, u64)>>,
}

impl LineageKeeper {
    pub(super) fn new(
        namespace: &Namespace,
        (witness, time): (&Arc<Witness>, &Arc<StoreTime>),
        (after_loss, guards): (AfterLoss, Guards),
        kit: &Kit,
    ) -> Self {
        Self {
            namespace: namespace.clone(),
            witness: witness.clone(),
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
    pub(super) fn current(&self) -> Option<Adopted> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|(adopted, _)| adopted.clone())
    }

    /// The guards, whose marks every verification compares with the counter.
    pub(super) fn guards(&self) -> &Guards {
        &self.guards
    }

    /// Verifies the database behind a prepared session. The guards are read at start, and whenever
    /// a new lineage is due: before it begins, so that it begins above what they have seen.
    ///
    /// # Errors
    /// A sentence; nothing was changed then.
    pub(super) async fn adopt(&self, connection: &PostgresConnection) -> Result<(), String> {
        let is_due = match self.current() {
            Some(_) if !self.guards.is_empty() && self.guards.were_asked() => {
                self.run(connection, Mode::Look).await?.verdict == "DUE"
            }
            _ => true,
        };
        if is_due {
            // Guards that do not reply are reported there. The new lineage begins above the clock
            // floor, which is above their marks.
            self.guards.marks().await;
        }
        let outcome = self.run(connection, Mode::Begin).await?;
        self.adopted(outcome)
    }

    async fn run(&self, connection: &PostgresConnection, mode: Mode) -> Result<Adoption, String> {
        let current = self.current();
        let known = KnownLineage {
            seen: self.witness.counter(),
            log_end: self.witness.log_end.load(Ordering::Relaxed),
            mark: self.guards.highest(),
            wall_ms: self.clock.wall_ms(),
            is_start: current.is_none(),
            lineage: current.map_or_else(|| "".into(), |adopted| adopted.lineage),
            lives_ms: self.time.lives_ms(),
            waits: self.after_loss == AfterLoss::Wait,
            now_ms: self.time.now_ms(),
            limit_ms: self.time.limit_ms(),
        };
        adopt(connection, &self.namespace, &known, mode).await
    }

    fn adopted(&self, outcome: Adoption) -> Result<(), String> {
        let Adoption { verdict, namespace, lineage, counter, reason, paused_ms } = outcome;
        match verdict.as_str() {
            "SAME" => {}
            "LIFTED" => tracing::info!(
                counter,
                "tokens continue above everything that can have been issued: this server or \
                 PostgreSQL has started"
            ),
            "NEW" => {
                self.begun.inc();
                tracing::warn!(
                    lineage,
                    counter,
                    reason,
                    grants_wait_ms = paused_ms,
                    "a new lineage begins: the counter was lifted above every token that can have been issued"
                );
            }
            _ => {
                return Err("this namespace has no token left above those that may have been \
                    issued; use another namespace, and check the clocks of PostgreSQL and of this \
                    machine"
                    .to_owned());
            }
        }
        self.witness.saw(counter);
        if self.current().is_none_or(|known| *known.lineage != *lineage) {
            self.time.is_new();
            // It may be the log of another server.
            self.witness.log_end.store(0, Ordering::Relaxed);
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changes = match &*current {
            Some((known, changes)) if *known.lineage == *lineage => *changes,
            Some((_, changes)) => changes + 1,
            None => 0,
        };
        *current = Some((Adopted { namespace, lineage: lineage.into() }, changes));
        self.health.set("lineage", lineages::status(NAME, changes));
        Ok(())
    }
}

#[async_trait]
impl Verifier for LineageKeeper {
    async fn verify(&self, connection: &PostgresConnection) -> Result<(), String> {
        session::prepare(connection).await?;
        self.adopt(connection).await
    }
}

async fn adopt(
    connection: &PostgresConnection,
    namespace: &Namespace,
    known: &KnownLineage,
    mode: Mode,
) -> Result<Adoption, String> {
    let name = namespace.as_str();
    let floor = tokens::restart_floor(known.wall_ms);
    let [seen, mark, floor, epoch_ms, a_ms, slack, lives_ms, now_ms, limit_ms] = [
        known.seen,
        known.mark,
        floor,
        tokens::EPOCH_2025_MS,
        tokens::TOKENS_PER_MS,
        tokens::LIFT_SLACK,
        known.lives_ms,
        known.now_ms,
        known.limit_ms,
    ]
    .map(signed);
    let new_id = service_kit::ids::random_hex(16);
    let lineage = &*known.lineage;
    let mode = match mode {
        Mode::Look => "look",
        Mode::Begin => "begin",
        Mode::Fresh => "fresh",
    };
    let parameters: [&(dyn ToSql + Sync); 16] = [
        &name,
        &seen,
        &known.log_end,
        &mark,
        &floor,
        &epoch_ms,
        &a_ms,
        &slack,
        &new_id,
        &lineage,
        &lives_ms,
        &known.waits,
        &mode,
        &known.is_start,
        &now_ms,
        &limit_ms,
    ];
    let rows = connection.query(session::ADOPT, &parameters).await;
    let rows =
        rows.map_err(|error| format!("PostgreSQL cannot be verified: {}", error_text(&error)))?;
    let outcome = |row: &Row| {
        Ok(Adoption {
            verdict: column(row, 0)?,
            namespace: column::<Option<i32>>(row, 1)?.unwrap_or_default(),
            lineage: column::<Option<String>>(row, 2)?.unwrap_or_default(),
            counter: unsigned(column::<Option<i64>>(row, 3)?.unwrap_or_default()),
            reason: column::<Option<String>>(row, 4)?.unwrap_or_default(),
            paused_ms: unsigned(column::<Option<i64>>(row, 5)?.unwrap_or_default()),
        })
    };
    one(&rows, outcome)
}

/// Vouches that a namespace has never issued a token, so that its first one is 1.
///
/// # Errors
/// A sentence; also where the namespace has a lineage already, which is then left as it is, and
/// where a guard has seen a token or does not say whether it has: nothing is done then.
pub async fn init_fresh(
    target: &PostgresTarget,
    namespace: &Namespace,
    guards: &Guards,
) -> Result<(), String> {
    guards.marks().await.vouch_for_a_new_namespace()?;
    let tasks = Tasks::new();
    let connection = target.connect(&ConnectOptions::default(), &tasks).await?;
    session::prepare(&connection).await?;
    let known = KnownLineage {
        seen: 0,
        log_end: 0,
        mark: 0,
        wall_ms: SystemClock::new().wall_ms(),
        lineage: "".into(),
        lives_ms: 0,
        waits: false,
        is_start: false,
        now_ms: 0,
        limit_ms: 0,
    };
    let Adoption { verdict, lineage, .. } =
        adopt(&connection, namespace, &known, Mode::Fresh).await?;
    match verdict.as_str() {
        "NEW" => Ok(()),
        _ => Err(format!(
            "namespace {namespace} at {target} is in use (lineage {lineage}); nothing was changed"
        )),
    }
}

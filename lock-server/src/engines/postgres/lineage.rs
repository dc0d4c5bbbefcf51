//! Is this still the PostgreSQL that issued our tokens? What is stored for the verdict.
//!
//! In PostgreSQL a lineage is of one system identifier, one timeline, a log and a counter that
//! never fell; see [`crate::engines::shared::lineage`]. A backup that was restored as files shows
//! no sign: so the counter is lifted at every start of a lock server or of PostgreSQL, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use async_trait::async_trait;
use fence_protocol::Namespace;
use postgres_link::{ConnectOptions, PostgresConnection, PostgresTarget, Verifier, error_text};
use service_kit::Kit;
use service_kit::clock::SystemClock;
use service_kit::tasks::Tasks;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::codec::{signed, unsigned};
use super::{NAME, column, one, session};
use crate::engines::loss::AfterLoss;
use crate::engines::shared::lineage::keeper::{self, LineageKeeper, LineageStore, Written};
use crate::engines::shared::lineage::{Adoption, Found};
use crate::engines::shared::store_clock::StoreTime;
use crate::guards::Guards;

/// Highest values of the store that this server has seen.
#[derive(Debug, Default)]
pub(super) struct Witness {
    counter: Arc<AtomicU64>,
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

impl AsRef<str> for Adopted {
    fn as_ref(&self) -> &str {
        &self.lineage
    }
}

/// Verifies connections to PostgreSQL.
#[derive(Debug)]
pub(super) struct PostgresVerifier {
    namespace: Namespace,
    witness: Arc<Witness>,
    keeper: LineageKeeper<Adopted>,
}

impl PostgresVerifier {
    pub(super) fn new(
        namespace: &Namespace,
        (witness, time): (&Arc<Witness>, &Arc<StoreTime>),
        loss: (AfterLoss, Guards),
        kit: &Kit,
    ) -> Self {
        let keeper = LineageKeeper::new(NAME, (&witness.counter, time), loss, kit);
        Self { namespace: namespace.clone(), witness: witness.clone(), keeper }
    }

    /// The lineage in force.
    pub(super) fn current(&self) -> Option<Adopted> {
        self.keeper.current()
    }

    /// The guards, whose marks every verification compares with the counter.
    pub(super) fn guards(&self) -> &Guards {
        self.keeper.guards()
    }

    /// Verifies the database behind a prepared session.
    ///
    /// # Errors
    /// A sentence.
    pub(super) async fn adopt(&self, connection: &PostgresConnection) -> Result<(), String> {
        let mut store = PostgresLineage {
            log_seen: self.witness.log_end.load(Ordering::Relaxed),
            is_start: self.current().is_none(),
            ..PostgresLineage::new(connection, &self.namespace)
        };
        let verified = self.keeper.verify(&mut store).await?;
        self.witness.saw(verified.counter);
        if self.current().is_none_or(|known| *known.lineage != *verified.id) {
            // It may be the log of another server.
            self.witness.log_end.store(0, Ordering::Relaxed);
        }
        self.keeper.adopt(Adopted { namespace: store.id, lineage: verified.id.into() });
        Ok(())
    }
}

#[async_trait]
impl Verifier for PostgresVerifier {
    async fn verify(&self, connection: &PostgresConnection) -> Result<(), String> {
        session::prepare(connection).await?;
        self.adopt(connection).await
    }
}

/// The lineage in one PostgreSQL.
struct PostgresLineage<'a> {
    connection: &'a PostgresConnection,
    namespace: &'a Namespace,
    /// End of the log that this server has seen.
    log_seen: i64,
    /// This server cannot know what was before.
    is_start: bool,
    /// Id of the namespace, once an adoption is written.
    id: i32,
    /// Lineage, counter, and distance of the clock, as they were found last.
    was: (String, i64, i64),
}

impl<'a> PostgresLineage<'a> {
    fn new(connection: &'a PostgresConnection, namespace: &'a Namespace) -> Self {
        let was = (String::new(), 0, 0);
        Self { connection, namespace, log_seen: 0, is_start: false, id: 0, was }
    }

    async fn query(
        &self,
        place: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, String> {
        let rows = self.connection.query(place, parameters).await;
        rows.map_err(|error| format!("PostgreSQL cannot be verified: {}", error_text(&error)))
    }
}

#[async_trait]
impl LineageStore for PostgresLineage<'_> {
    async fn find(&mut self, known_id: &str) -> Result<Found, String> {
        let rows = self.query(session::LINEAGE, &[&self.namespace.as_str()]).await?;
        let (was, found) = one(&rows, |row| {
            let id: String = column(row, 0)?;
            let counter: i64 = column(row, 1)?;
            let ahead_ms: i64 = column(row, 3)?;
            let has_restarted: bool = column(row, 7)?;
            let is_shorter = known_id == id && column::<i64>(row, 6)? < self.log_seen;
            let sign = if id.is_empty() {
                Some("nothing is stored: new, or emptied")
            } else if column(row, 4)? {
                Some("this is another PostgreSQL")
            } else if column(row, 5)? {
                Some("the timeline changed: a replica was promoted, or a backup restored")
            } else if is_shorter {
                Some("the log ends before what it held: a backup was restored")
            } else {
                None
            };
            let found = Found {
                counter: unsigned(counter),
                verified_counter: 0,
                is_used: !id.is_empty(),
                sign,
                // A counter of 0 is of a namespace that an operator vouched for, in this very run
                // of PostgreSQL: files that were restored come with another one.
                may_be_restored: self.is_start && counter > 0 || has_restarted,
                clock_ms: unsigned(column(row, 8)?),
                ahead_ms,
                lives_until_ms: unsigned(column(row, 2)?),
                id: id.clone(),
            };
            Ok(((id, counter, ahead_ms), found))
        })?;
        self.was = was;
        Ok(found)
    }

    async fn write(&mut self, adoption: &Adoption, id: &str) -> Result<Option<Written>, String> {
        let (was, counter, ahead_ms) = &self.was;
        let id = adoption.reason.is_some().then_some(id);
        let lifted_to = adoption.lifted_to.map(signed);
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &self.namespace.as_str(),
            was,
            counter,
            ahead_ms,
            &id,
            &adoption.reason,
            &lifted_to,
            &signed(adoption.pause_ms),
            &adoption.ahead_ms,
        ];
        let rows = self.query(session::ADOPT, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        self.id = column(row, 0)?;
        Ok(Some(Written {
            counter: unsigned(column(row, 1)?),
            paused_ms: unsigned(column(row, 2)?),
        }))
    }
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
    let mut store = PostgresLineage::new(&connection, namespace);
    match keeper::vouch(&mut store, &SystemClock::new()).await? {
        None => Ok(()),
        Some(lineage) => Err(format!(
            "namespace {namespace} at {target} is in use (lineage {lineage}); nothing was changed"
        )),
    }
}

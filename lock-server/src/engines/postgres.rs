//! Records in PostgreSQL: one function call commits a batch, as one transaction.
//!
//! Any number of lock servers may serve one database. `postgres/schema.sql` says what stands there,
//! `postgres/functions.sql` what a session does with it, and `postgres/lineage.rs` when PostgreSQL
//! is not trusted any more. Each commit locks the namespace's row, which has the counter and the
//! lineage: a batch of an older session that is still on its way is decided on what is there when
//! it gets the lock. Why it is so: docs/decisions/0076-records-in-postgresql.md.

mod clock;
mod codec;
mod lineage;
mod session;
mod sweep;
mod wakeups;
mod watch;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::{LockName, Namespace, SessionId, Token};
use postgres_link::{ConnectOptions, LinkError, LinkOptions, PostgresLink, PostgresTarget};
use service_kit::Kit;
use service_kit::tasks::Tasks;
use tokio::sync::mpsc;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use self::codec::{Arrays, signed, unsigned};
pub use self::lineage::init_fresh;
use self::lineage::{Adopted, PostgresVerifier, Witness};
use super::contract::{
    Batch, Committed, ItemName, Key, LOCK, RecordStore, SESSION, ServerId, Snapshot, Wakeup,
};
use super::options::StoreOptions;
use super::shared::refused::read_refused;
use super::shared::store_clock::{Jumps, Pauses, StoreTime};
use crate::guards::Guards;
use crate::store::{ListQuery, StoreError};

/// The store in texts.
const NAME: &str = "PostgreSQL";
/// Most records that are read in one call.
const READ_MAX: usize = 1_000;
/// Most measurements of the clock for one batch.
const LOOKS: u32 = 4;
/// The codes of `functions.sql`.
const LINEAGE: &str = "FL001";
const CLOCK: &str = "FL002";
const PAUSED: &str = "FL003";
const EXHAUSTED: &str = "FL004";

/// Records in PostgreSQL. Cheap to clone.
#[derive(Clone)]
pub struct PostgresRecords {
    inner: Arc<PostgresInner>,
}

struct PostgresInner {
    link: PostgresLink,
    link_options: LinkOptions,
    lineage: Arc<PostgresVerifier>,
    time: Arc<StoreTime>,
    witness: Arc<Witness>,
    jumps: Jumps,
    pauses: Pauses,
    namespace: Namespace,
    tasks: Tasks,
}

impl fmt::Debug for PostgresRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresRecords").field("link", &self.inner.link).finish_non_exhaustive()
    }
}

fn link_options(options: &StoreOptions) -> LinkOptions {
    let redis_link::LinkOptions { connect_timeout, reply_timeout, ping_interval, .. } =
        options.link;
    let connect = ConnectOptions { connect_timeout, ..ConnectOptions::default() };
    LinkOptions { connect, reply_timeout, ping_interval, ..LinkOptions::default() }
}

impl PostgresRecords {
    /// Connects, creates the tables where there are none, verifies the lineage, and watches
    /// PostgreSQL in the background.
    ///
    /// # Errors
    /// A sentence where PostgreSQL cannot be reached or cannot be used.
    pub async fn start(
        target: &PostgresTarget,
        options: &StoreOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let limit_ms = u64::try_from(options.loss.clock_jump_limit.as_millis()).unwrap_or(u64::MAX);
        let time = Arc::new(StoreTime::new(kit.clock.clone(), limit_ms));
        let witness = Arc::new(Witness::default());
        let known = (&witness, &time);
        let loss = (options.loss.after_loss, guards);
        let lineage = Arc::new(PostgresVerifier::new(&options.namespace, known, loss, kit));
        let link_options = session::limited(link_options(options));
        let verifier = lineage.clone();
        let link =
            PostgresLink::start(target.clone(), link_options.clone(), verifier, &kit.tasks).await?;
        let inner = PostgresInner {
            link,
            link_options,
            lineage,
            time,
            witness,
            jumps: Jumps::new(NAME, options.loss.clock_pause, kit),
            pauses: Pauses::new(NAME, kit),
            namespace: options.namespace.clone(),
            tasks: kit.tasks.clone(),
        };
        let records = Self { inner: Arc::new(inner) };
        records.settle(0, 0).await.map_err(|error| error.to_string())?;
        let stop = kit.tasks.shutdown_token();
        let watched = watch::watch(records.inner.link.clone(), kit.health.clone());
        let swept = records.clone().sweep_on();
        kit.tasks.spawn(async move {
            stop.run_until_cancelled(async { tokio::join!(watched, swept) }).await;
        });
        Ok(records)
    }

    fn adopted(&self) -> Result<Adopted, LinkError> {
        self.inner.lineage.current().ok_or_else(|| {
            LinkError::Down("the lineage of PostgreSQL is not verified yet".to_owned())
        })
    }

    /// Verifies the lineage again, on the connection in use.
    async fn verify_again(&self) -> Result<(), LinkError> {
        let (number, connection) = self.inner.link.live()?;
        let limit = self.inner.link_options.verify_timeout;
        let adopted = tokio::time::timeout(limit, self.inner.lineage.adopt(&connection)).await;
        let adopted = adopted.unwrap_or_else(|_| Err("PostgreSQL was not verified in time".into()));
        adopted.map_err(|reason| {
            self.inner.link.replace(number, &reason);
            LinkError::Down(reason)
        })
    }

    /// Runs a statement that changes no record, once more after another lineage was verified.
    /// `parameters` are those behind the namespace and the lineage.
    async fn query(
        &self,
        place: usize,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LinkError> {
        let mut was_verified = false;
        loop {
            let Adopted { namespace, lineage } = self.adopted()?;
            let lineage = &*lineage;
            let first: [&(dyn ToSql + Sync); 2] = [&namespace, &lineage];
            let all: Vec<_> = first.into_iter().chain(parameters.iter().copied()).collect();
            match self.inner.link.query(place, &all).await {
                Err(LinkError::Server { code, .. }) if code == LINEAGE && !was_verified => {
                    was_verified = true;
                    self.verify_again().await?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn read_some(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let sent_ms = self.inner.time.monotonic_ms();
        let names: Vec<String> = keys.iter().map(Key::text).collect();
        let seen = signed(self.inner.witness.counter());
        let rows = self.query(session::READ, &[&seen, &names]).await.map_err(nothing_done)?;
        let read = |row: &Row| codec::read(keys, row);
        let (snapshots, counter, now_ms) = one(&rows, read).map_err(|e| unreadable(&e))?;
        self.inner.time.saw(now_ms, sent_ms);
        self.inner.witness.saw(counter);
        Ok((snapshots, counter))
    }

    /// Commits a batch. One that is refused because of the lineage or the clock has changed
    /// nothing, so it is sent again: once after a new verification, a few times after the clock was
    /// measured. What was long on its way has that much longer.
    async fn commit_batch(
        &self,
        batch: &Batch,
        bound_ms: &mut u64,
    ) -> Result<Committed, StoreError> {
        let PostgresInner { time, witness, .. } = &*self.inner;
        let arrays = Arrays::new(batch, &self.inner.namespace)?;
        // A lineage that lost it has to begin anew, so the verification has to know it too.
        witness.saw(batch.counter.saturating_sub(batch.ahead));
        let mut was_verified = false;
        let mut looked = 0;
        let mut slow_ms = 0;
        loop {
            let looks = time.looks();
            let Adopted { namespace, lineage } = self.adopted().map_err(refused)?;
            // Another lineage may not have the bound that the former one had.
            *bound_ms = time.promise(batch.lives_ms);
            let sent_ms = time.monotonic_ms();
            let latest_ms = time.latest_ms().saturating_add(slow_ms);
            let scalars = codec::Scalars {
                namespace,
                lineage: &lineage,
                seen: signed(witness.counter()),
                bound_ms: signed(*bound_ms),
                latest_ms: signed(latest_ms),
                earliest_ms: signed(time.earliest_ms()),
            };
            match self.inner.link.query(session::COMMIT, &arrays.parameters(&scalars)).await {
                Err(LinkError::Server { code, message, .. })
                    if code == LINEAGE && !was_verified =>
                {
                    tracing::warn!(message, "PostgreSQL is not as it was left; verifying it again");
                    was_verified = true;
                    self.verify_again().await.map_err(refused)?;
                }
                Err(LinkError::Server { code, .. }) if code == CLOCK && looked < LOOKS => {
                    tracing::debug!("looking at the clock of PostgreSQL again");
                    looked += 1;
                    slow_ms = time.monotonic_ms().saturating_sub(sent_ms);
                    self.settle_after(looks).await.map_err(refused)?;
                }
                Err(error) => return Err(refused(error)),
                Ok(rows) => {
                    let read = |row: &Row| arrays.committed(row);
                    let (base, now_ms, outcomes) = one(&rows, read).map_err(|why| {
                        StoreError::Unknown(format!("PostgreSQL's reply cannot be read: {why}"))
                    })?;
                    time.saw(now_ms, sent_ms);
                    witness.saw(base + batch.tokens);
                    let read = async |keys: &[Key]| Ok(self.read(keys).await?.0);
                    let groups = read_refused(&batch.groups, outcomes, read).await?;
                    let now_ms = Some(now_ms);
                    return Ok(Committed { base, now_ms, lineage: Some(lineage), groups });
                }
            }
        }
    }

    /// Keys of records whose names come after `after` and begin with `prefix`, in order, and
    /// whether there are more.
    async fn names<T>(
        &self,
        (after, prefix): (String, String),
        limit: usize,
        of: impl Fn(Key) -> Option<T>,
    ) -> Result<(Vec<T>, bool), StoreError> {
        // Behind every character of a name.
        let end = format!("{prefix}~");
        let most = signed(u64::try_from(limit).unwrap_or(u64::MAX)).saturating_add(1);
        let seen = signed(self.inner.witness.counter());
        let rows = self.query(session::NAMES, &[&seen, &after, &prefix, &end, &most]).await;
        let rows = rows.map_err(nothing_done)?;
        let keys = rows.iter().map(|row| row.try_get::<_, String>(0));
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
        let has_more = keys.len() > limit;
        let found = keys.iter().take(limit).filter_map(|key| of(Key::from_text(key)?));
        Ok((found.collect(), has_more))
    }
}

/// Reads the one row of a reply.
fn one<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, String>) -> Result<T, String> {
    rows.first().ok_or_else(|| "it has no row".to_owned()).and_then(read)
}

fn unreadable(error: &dyn fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("a record in PostgreSQL cannot be read: {error}"))
}

fn column<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, String> {
    row.try_get(at).map_err(|error: Error| error.to_string())
}

/// The error of a statement that has no result. What the server refused was rolled back.
fn refused(error: LinkError) -> StoreError {
    match error {
        LinkError::Down(reason) => StoreError::Unavailable(reason),
        LinkError::Unknown(reason) => StoreError::Unknown(reason),
        LinkError::Server { code, message, .. } => match code.as_str() {
            PAUSED => StoreError::Paused { left_ms: message.parse().unwrap_or(1) },
            EXHAUSTED => StoreError::Exhausted,
            _ => StoreError::Unavailable(format!(
                "PostgreSQL refuses to work: {message} ({code}); nothing was done"
            )),
        },
    }
}

/// As [`refused`], for a statement that was to change nothing.
fn nothing_done(error: LinkError) -> StoreError {
    match refused(error) {
        StoreError::Unknown(reason) => StoreError::Unavailable(reason),
        error => error,
    }
}

#[async_trait]
impl RecordStore for PostgresRecords {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn is_alone(&self) -> bool {
        false
    }

    /// As many as are under way: PostgreSQL begins with one while the other is on its way back.
    fn overlap_min(&self, under_way: usize) -> Option<usize> {
        Some(under_way.max(1))
    }

    fn now_ms(&self) -> u64 {
        self.inner.time.now_ms()
    }

    fn counter(&self) -> u64 {
        self.inner.witness.counter()
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
        let seen = signed(self.inner.witness.counter());
        let key = key.text();
        let limit = signed(u64::try_from(limit).unwrap_or(u64::MAX));
        let rows = self.query(session::ITEMS, &[&seen, &key, &after, &limit]).await;
        let item = |row: &Row| Ok((column(row, 0)?, column(row, 1)?));
        let items = rows.map_err(nothing_done)?.iter().map(item).collect::<Result<_, String>>();
        items.map_err(|error| unreadable(&error))
    }

    async fn item_count(&self, key: &Key) -> Result<usize, StoreError> {
        let seen = signed(self.inner.witness.counter());
        let rows = self.query(session::COUNT, &[&seen, &key.text()]).await;
        let count = one(&rows.map_err(nothing_done)?, |row| column::<i64>(row, 0));
        let count = unsigned(count.map_err(|error| unreadable(&error))?);
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let time = &self.inner.time;
        let lives_ms = batch.lives_ms;
        let sent_ms = time.monotonic_ms();
        let mut bound_ms = 0;
        let committed = self.commit_batch(&batch, &mut bound_ms).await;
        if let Err(StoreError::Paused { left_ms }) = &committed {
            self.inner.pauses.show(*left_ms);
        }
        time.promised(lives_ms, (bound_ms, sent_ms), committed.as_ref().map(|_| ()));
        committed
    }

    async fn locks(&self, query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        let after = query.after.as_ref().map(|after| format!("{LOCK}{after}"));
        let prefix = format!("{LOCK}{}", query.prefix);
        let lock = |key| match key {
            Key::Lock(lock) => Some(lock),
            Key::Session(_) => None,
        };
        self.names((after.unwrap_or_default(), prefix), query.limit, lock).await
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        let after = after.map(|after| format!("{SESSION}{after}"));
        let session = |key| match key {
            Key::Session(id) => Some(id),
            Key::Lock(_) => None,
        };
        self.names((after.unwrap_or_default(), SESSION.to_owned()), limit, session).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        // In this order: a verification that another task makes meanwhile knows the mark as well.
        self.inner.lineage.guards().saw(mark);
        self.verify_again().await.map_err(refused)
    }

    async fn beat(&self, server: ServerId, liveness_ms: u64) -> Result<Vec<ServerId>, StoreError> {
        let servers = self.settle(server.0, liveness_ms).await.map_err(nothing_done)?;
        let mut servers: Vec<ServerId> = servers.into_iter().map(ServerId).collect();
        servers.sort_unstable();
        Ok(servers)
    }

    fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        self.listen(server)
    }
}

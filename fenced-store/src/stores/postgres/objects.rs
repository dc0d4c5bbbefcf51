//! Objects in a table of an existing PostgreSQL, in one transaction with their marks.
//!
//! The marks are those of the SQL pack: the PostgreSQL port and direct clients of the same database
//! share them. A transaction holds its marks until it ends, so that a raise awaits it, and the
//! guard keeps no state: many guards before one database are as safe as one. This covers a
//! transaction of a connection that broke, too: whatever it still commits, it commits before a
//! higher token is admitted; its rows are locked, or compared with the tag that it was decided on.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Namespace, Token};
use postgres_link::{LinkOptions, PostgresConnection, PostgresLink, PostgresTarget};
use service_kit::Kit;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::etag::ETag;
use crate::stores::contract::{
    Effect, FenceList, FenceOutcome, FenceQuery, FenceStore, Fences, Object, Once, Operation,
    StoreError,
};
use crate::stores::report::{Shown, StoreReport};
use crate::verdict::{Fence, Mark, Verdict, judge};

mod batch;
mod probe;
mod queue;
mod transaction;
mod verify;

use batch::BatchStep;
use queue::Queue;
use transaction::mark_of;
use verify::ObjectsVerifier;

/// Reads outside of transactions at a time.
const READS_MAX: usize = 16;
/// Attempts of a read whose token is admitted, and not found to be the mark afterwards.
const READ_TRIES: usize = 8;
/// A read in one statement, and so of one moment: the mark that decides, and the object.
const READ: &str = "SELECT m.token, m.lease::text, greatest(coalesce(s.token, 0), b.floor), \
    o.etag, o.content_type, o.body, b.id::text || ' ' || b.tableoid::text FROM fence.meta b \
    LEFT JOIN fence.marks m ON m.namespace = $1 AND m.lock = $2 \
    LEFT JOIN fence.seals s ON s.namespace = $1 AND s.lock = $2 \
    LEFT JOIN fence.objects o ON o.namespace = $1 AND o.key = $3";
const HIGHEST: &str = "SELECT max(t.token) FROM (SELECT token FROM fence.marks WHERE namespace = $1 \
    UNION ALL SELECT token FROM fence.seals WHERE namespace = $1 \
    UNION ALL SELECT floor FROM fence.meta) t";
const SHOW: &str = "SELECT token, lease::text FROM fence.marks WHERE namespace = $1 AND lock = $2 \
    UNION ALL SELECT token, lease::text FROM fence.seals \
    WHERE namespace = $1 AND lock = $2 AND token > 0 ORDER BY token DESC LIMIT 1";
const LIST: &str = "SELECT token, lease::text, lock FROM fence.marks WHERE namespace = $1 \
    AND lock > $2 AND starts_with(lock, $3) ORDER BY lock LIMIT $4";

/// Marks and objects in one database.
#[derive(Debug)]
pub struct PostgresStore {
    namespace: Namespace,
    /// Reads have a connection of their own: they wait for no commit.
    reads: PostgresLink,
    /// Permits of reads, whose objects are in memory as a whole.
    reading: Semaphore,
    queue: Arc<Queue>,
    verifier: Arc<ObjectsVerifier>,
    shown: Shown,
}

impl PostgresStore {
    /// Connects, installs the pack if the database has none, and probes that its steps are atomic.
    ///
    /// # Errors
    /// A sentence with the address, the reason and the remedy.
    pub async fn open(
        target: PostgresTarget,
        namespace: &Namespace,
        floor: Option<Token>,
        kit: &Kit,
    ) -> Result<Self, String> {
        verify::install(&target, kit).await?;
        let words = probe::probe(&target).await?;
        let store = Self::connect(target, namespace, kit).await?;
        verify::follow(&store.reads, kit);
        if let Some(floor) = floor {
            store.set_floor(floor).await.map_err(|error| error.to_string())?;
        }
        Ok(Self { shown: Shown::atomic(words), ..store })
    }

    /// Connects, without a guarantee yet.
    async fn connect(
        target: PostgresTarget,
        namespace: &Namespace,
        kit: &Kit,
    ) -> Result<Self, String> {
        let verifier = Arc::new(ObjectsVerifier::default());
        let options = LinkOptions { reply_timeout: queue::REPLY_WITHIN, ..LinkOptions::default() };
        let link =
            || PostgresLink::start(target.clone(), options.clone(), verifier.clone(), &kit.tasks);
        let reads = link().await?;
        let queue =
            Queue::new(link().await?, namespace.clone(), verifier.clone(), kit.tasks.clone());
        let namespace = namespace.clone();
        let reading = Semaphore::new(READS_MAX);
        Ok(Self { namespace, reads, reading, queue, verifier, shown: Shown::default() })
    }

    /// Identity of the database's marks, which every copy of it has.
    pub(crate) fn database_id(&self) -> Option<&str> {
        self.verifier.database_id()
    }

    async fn step(
        &self,
        fence: Option<Fence>,
        operation: Option<Operation>,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        self.queue.submit(BatchStep { fence, operation, once }).await
    }

    /// Runs a statement without effect: a lost reply means `Unavailable`, not `Unknown`.
    async fn rows(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, StoreError> {
        let run = async |connection: &PostgresConnection| {
            connection.client().query_typed(statement, parameters).await
        };
        let rows = self.reads.run(run).await;
        rows.map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    /// Serves a read from one snapshot if no mark has to be raised; `None` otherwise.
    async fn read(
        &self,
        fence: Option<&Fence>,
        key: &str,
    ) -> Result<Option<FenceOutcome>, StoreError> {
        let lock = fence.map_or("", |fence| fence.lock.as_str());
        let namespace = self.namespace.as_str();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&namespace, Type::TEXT), (&lock, Type::TEXT), (&key, Type::TEXT)];
        let rows = self.rows(READ, &parameters).await?;
        let row = rows.first().ok_or_else(|| malformed("fence.meta is empty"))?;
        if self.verifier.database_id() != row.try_get(6).map_err(malformed)? {
            return Err(StoreError::Unavailable(verify::leave(&self.reads)));
        }
        if let Some(fence) = fence {
            let bound: i64 = row.try_get(2).map_err(malformed)?;
            let token = fence.presented.token;
            let found = mark_of(row, 0).map_err(malformed)?;
            let mark = self.verifier.marks.deciding(&fence.lock, found);
            let admits = |mark| judge(mark, fence.presented) == Verdict::Admit;
            // An announced token, or a floor: the transaction gives the refusal. It also brings
            // back a mark that only this guard knows.
            if token.get().cast_signed() < bound || !admits(found) || !admits(mark) {
                return Ok(None);
            }
            self.verifier.marks.remember(fence);
        }
        let etag: Option<&str> = row.try_get(3).map_err(malformed)?;
        let effect = match etag {
            None => Effect::Absent,
            Some(etag) => {
                let body: &[u8] = row.try_get(5).map_err(malformed)?;
                Effect::Found(Object {
                    etag: ETag::from_stored(etag),
                    content_type: row.try_get(4).map_err(malformed)?,
                    body: Bytes::copy_from_slice(body),
                })
            }
        };
        Ok(Some(FenceOutcome::Applied { effect, mark: fence.map(|f| f.presented.token) }))
    }
}

fn malformed(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("PostgreSQL replied with what this guard cannot read: {error}"))
}

#[async_trait]
impl Fences for PostgresStore {
    fn guarantee(&self) -> Guarantee {
        self.shown.guarantee()
    }

    fn report(&self) -> StoreReport {
        StoreReport {
            kind: "postgres",
            target: self.reads.target().to_string(),
            guarantee: self.guarantee(),
            probe: self.shown.words(),
            gaps: self.verifier.gaps(),
        }
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.step(Some(fence), None, None).await
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        // In a transaction of its own, and harmless if it is done twice.
        let floor = floor.get().cast_signed();
        let rows = self.rows("SELECT fence.set_floor($1)", &[(&floor, Type::INT8)]).await?;
        let row = rows.first().ok_or_else(|| malformed("no floor"))?;
        let floor: i64 = row.try_get(0).map_err(malformed)?;
        let floor = u64::try_from(floor).map_err(malformed)?;
        Token::new(floor).map(Some).map_err(malformed)
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        let rows = self.rows(HIGHEST, &[(&self.namespace.as_str(), Type::TEXT)]).await?;
        let row = rows.first().ok_or_else(|| malformed("no highest mark"))?;
        let highest: Option<i64> = row.try_get(0).map_err(malformed)?;
        Ok(highest.and_then(|token| Token::new(token.try_into().ok()?).ok()))
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.namespace.as_str(), Type::TEXT), (&lock.as_str(), Type::TEXT)];
        let rows = self.rows(SHOW, &parameters).await?;
        match rows.first() {
            Some(row) => mark_of(row, 0).map_err(malformed),
            None => Ok(None),
        }
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let after = query.after.as_ref().map_or("", LockName::as_str);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.namespace.as_str(), Type::TEXT),
            (&after, Type::TEXT),
            (&query.prefix, Type::TEXT),
            (&limit, Type::INT8),
        ];
        let rows = self.rows(LIST, &parameters).await?;
        let mut fences = Vec::new();
        for row in rows.iter().take(query.limit) {
            let lock = LockName::new(row.try_get(2).map_err(malformed)?).map_err(malformed)?;
            let mark = mark_of(row, 0).map_err(malformed)?;
            fences.push((lock, mark.ok_or_else(|| malformed("a mark without a lease"))?));
        }
        Ok(FenceList { more: rows.len() > query.limit, fences })
    }
}

#[async_trait]
impl FenceStore for PostgresStore {
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        let Operation::Get { key } = &operation else {
            return self.step(fence, Some(operation), once).await;
        };
        for _ in 0..READ_TRIES {
            // Never closed. Held until the body is read, not while it is sent, or a mark is raised.
            let reading = self.reading.acquire().await;
            let read = self.read(fence.as_ref(), key.as_str()).await?;
            drop(reading);
            if let Some(outcome) = read {
                return Ok(outcome);
            }
            // The mark has to be raised first, or refuses.
            let outcome = self.step(fence.clone(), None, None).await?;
            if !matches!(outcome, FenceOutcome::Applied { .. }) {
                return Ok(outcome);
            }
        }
        let reason = format!("the mark was lost {READ_TRIES} times while the object was read");
        Err(StoreError::Unavailable(reason))
    }
}

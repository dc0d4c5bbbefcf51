//! A batch as one transaction of the database.
//!
//! Three round trips: tokens, objects, changes with the COMMIT. Nothing of it depends on a setting
//! of the session, so that a pooler in between changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use fence_protocol::{LockName, Namespace, Token};
use futures_util::future::try_join;
use postgres_link::PostgresConnection;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::batch::{BatchStep, Decided, Found, Needs};
use super::verify::ObjectsVerifier;
use crate::etag::ETag;
use crate::stores::contract::FenceOutcome;
use crate::verdict::Mark;

/// A guard that vanished must not hold rows for long; guards wait for each other's rows, briefly.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
                     SET LOCAL lock_timeout = '5s'; \
                     SET LOCAL idle_in_transaction_session_timeout = '10s'";
const ADMIT: &str = "SELECT a.lock, a.token, a.lease::text, a.is_changed, \
                     b.id::text || ' ' || b.tableoid::text \
                     FROM fence.meta b, fence.admit_all($1, $2, $3, $4::text[]::uuid[]) a";
const LOCK_OBJECTS: &str = "SELECT key, etag FROM fence.lock_objects($1, $2)";
const LOAD_OUTCOMES: &str = "SELECT scope, name, outcome FROM fence.load_outcomes($1, $2, $3)";
const STORE_OBJECTS: &str = "SELECT fence.store_objects($1, $2, $3, $4, $5, $6)";
const STORE_OUTCOMES: &str = "SELECT fence.store_outcomes($1, $2, $3, $4, $5)";

/// Outcomes of a batch; `None` if the marks are others than at the start of this guard, and nothing
/// was applied.
type Outcomes = Option<Vec<Option<FenceOutcome>>>;

/// Runs a batch. Sets `is_committing` before its COMMIT is sent: a failure before that has changed
/// nothing.
///
/// # Errors
/// The driver's: nothing was applied, unless `is_committing` is set and the error is not the
/// server's refusal.
pub(super) async fn run(
    connection: &PostgresConnection,
    namespace: &Namespace,
    verifier: &ObjectsVerifier,
    steps: &[BatchStep],
    is_committing: &AtomicBool,
) -> Result<Outcomes, Error> {
    let client = connection.client();
    let transaction = Transaction { client, namespace: namespace.as_str(), verifier };
    let result = transaction.run(steps, is_committing).await;
    if !matches!(result, Ok(Some(_))) && !connection.is_closed() {
        // A connection that fails here is found broken by its next use.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    result
}

struct Transaction<'a> {
    client: &'a Client,
    namespace: &'a str,
    verifier: &'a ObjectsVerifier,
}

impl Transaction<'_> {
    async fn run(
        &self,
        steps: &[BatchStep],
        is_committing: &AtomicBool,
    ) -> Result<Outcomes, Error> {
        let needs = Needs::from_steps(steps);
        let mut found = Found::default();
        let Some(is_raised) = self.admit(&needs, &mut found).await? else { return Ok(None) };
        self.load(&needs, &mut found).await?;
        let decided = Decided::from_steps(steps, &found);
        if is_raised || !decided.objects.is_empty() || !decided.records.is_empty() {
            is_committing.store(true, Ordering::Release);
            self.store(&decided, &found).await?;
        } else {
            // Row locks alone need no commit, which would wait for the disk.
            self.client.batch_execute("ROLLBACK").await?;
        }
        Ok(Some(decided.outcomes))
    }

    /// Sends a statement with the types of its parameters, which need no round trip then.
    async fn query(
        &self,
        statement: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Error> {
        let namespace: (&(dyn ToSql + Sync), Type) = (&self.namespace, Type::TEXT);
        let all: Vec<_> = std::iter::once(namespace).chain(parameters.iter().cloned()).collect();
        self.client.query_typed(statement, &all).await
    }

    /// Begins, and has the tokens checked. Returns `true` if a mark was announced or raised; `None`
    /// if the marks are others than at the start of this guard.
    async fn admit(&self, needs: &Needs<'_>, found: &mut Found) -> Result<Option<bool>, Error> {
        let begin = self.client.batch_execute(BEGIN);
        if needs.fences.is_empty() {
            begin.await?;
            return Ok(Some(false));
        }
        let locks: Vec<&str> = needs.fences.keys().map(|lock| lock.as_str()).collect();
        // A mark that the database has lost is presented again in place of a lower token.
        let known = &self.verifier.marks;
        let marks =
            needs.fences.iter().filter_map(|(lock, mark)| known.deciding(lock, Some(*mark)));
        // Tokens have 15 digits at most.
        let (tokens, leases): (Vec<i64>, Vec<String>) =
            marks.map(|mark| (mark.token.get().cast_signed(), mark.lease.to_string())).unzip();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&locks, Type::TEXT_ARRAY), (&tokens, Type::INT8_ARRAY), (&leases, Type::TEXT_ARRAY)];
        let ((), rows) = try_join(begin, self.query(ADMIT, &parameters)).await?;
        let mut is_raised = false;
        for row in rows {
            if self.verifier.database_id() != row.try_get(4)? {
                return Ok(None);
            }
            is_raised |= row.try_get::<_, bool>(3)?;
            let lock = LockName::new(row.try_get(0)?);
            if let (Ok(lock), Some(mark)) = (lock, mark_of(&row, 1)?) {
                found.marks.insert(lock, mark);
            }
        }
        Ok(Some(is_raised))
    }

    async fn load(&self, needs: &Needs<'_>, found: &mut Found) -> Result<(), Error> {
        let objects = async {
            if needs.changed.is_empty() {
                return Ok(Vec::new());
            }
            self.query(LOCK_OBJECTS, &[(&needs.changed, Type::TEXT_ARRAY)]).await
        };
        let outcomes = async {
            if needs.names.is_empty() {
                return Ok(Vec::new());
            }
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&needs.scopes, Type::TEXT_ARRAY), (&needs.names, Type::TEXT_ARRAY)];
            self.query(LOAD_OUTCOMES, &parameters).await
        };
        let (objects, outcomes) = try_join(objects, outcomes).await?;
        for row in objects {
            let etag: String = row.try_get(1)?;
            found.objects.insert(row.try_get(0)?, ETag::from_stored(etag));
        }
        for row in outcomes {
            found.records.insert((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?);
        }
        Ok(())
    }

    /// Writes and commits, in one round trip: after a refused statement COMMIT rolls back.
    async fn store(&self, decided: &Decided, found: &Found) -> Result<(), Error> {
        let objects = self.store_objects(decided, found);
        let outcomes = self.store_outcomes(decided);
        let stored = try_join(objects, outcomes);
        try_join(stored, self.client.batch_execute("COMMIT")).await.map(drop)
    }

    async fn store_objects(&self, decided: &Decided, found: &Found) -> Result<(), Error> {
        let mut keys = Vec::new();
        let mut tags_before = Vec::new();
        let mut etags = Vec::new();
        let mut types = Vec::new();
        let mut bodies = Vec::new();
        for (key, object) in &decided.objects {
            let before = found.objects.get(key.as_str()).map(ETag::as_str);
            if object.is_none() && before.is_none() {
                continue;
            }
            keys.push(key.as_str());
            tags_before.push(before);
            etags.push(object.as_ref().map(|object| object.etag.as_str()));
            types.push(object.as_ref().map(|object| object.content_type.as_str()));
            bodies.push(object.as_ref().map(|object| &object.body[..]));
        }
        if keys.is_empty() {
            return Ok(());
        }
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&keys, Type::TEXT_ARRAY),
            (&tags_before, Type::TEXT_ARRAY),
            (&etags, Type::TEXT_ARRAY),
            (&types, Type::TEXT_ARRAY),
            (&bodies, Type::BYTEA_ARRAY),
        ];
        self.query(STORE_OBJECTS, &parameters).await.map(drop)
    }

    async fn store_outcomes(&self, decided: &Decided) -> Result<(), Error> {
        if decided.records.is_empty() {
            return Ok(());
        }
        let records = &decided.records;
        let scopes: Vec<&str> = records.iter().map(|new| new.once.scope()).collect();
        let names: Vec<&str> = records.iter().map(|new| new.once.id()).collect();
        let texts: Vec<&str> = records.iter().map(|new| new.record.as_str()).collect();
        let capacity = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let capacities: Vec<i32> =
            records.iter().map(|new| capacity(new.once.capacity())).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&scopes, Type::TEXT_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&texts, Type::TEXT_ARRAY),
            (&capacities, Type::INT4_ARRAY),
        ];
        self.query(STORE_OUTCOMES, &parameters).await.map(drop)
    }
}

/// Reads a token and its lease from two columns; `None` if they are null.
pub(super) fn mark_of(row: &Row, at: usize) -> Result<Option<Mark>, Error> {
    let token: Option<i64> = row.try_get(at)?;
    let lease: Option<&str> = row.try_get(at + 1)?;
    let token = token.and_then(|token| Token::new(token.try_into().ok()?).ok());
    let lease = lease.and_then(|lease| lease.parse().ok());
    Ok(token.zip(lease).map(|(token, lease)| Mark { token, lease }))
}

//! Preparation of a session: settings, tables, functions, statements.

use std::time::Duration;

use postgres_link::{LinkOptions, PostgresConnection, error_text};
use tokio_postgres::Error;

/// Places of the statements.
pub(super) const COMMIT: usize = 0;
pub(super) const READ: usize = 1;
pub(super) const BEAT: usize = 2;
pub(super) const SWEEP: usize = 3;
pub(super) const ADOPT: usize = 4;
pub(super) const NAMES: usize = 5;
pub(super) const ITEMS: usize = 6;
pub(super) const COUNT: usize = 7;
pub(super) const SETTINGS: usize = 8;
pub(super) const LINEAGE: usize = 9;

const STATEMENTS: [&str; 10] = [
    "SELECT * FROM pg_temp.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
     $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)",
    "SELECT * FROM pg_temp.read($1, $2, $3, $4)",
    "SELECT * FROM pg_temp.beat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    "SELECT * FROM pg_temp.sweep($1, $2, $3, $4, $5, $6)",
    "SELECT * FROM pg_temp.adopt($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    "SELECT x.key FROM fence_locks.records x JOIN fence_locks.namespaces n ON n.id = x.namespace \
     WHERE pg_temp.check_lineage($1, $2, $3) AND n.id = $1 \
     AND x.key > $4 AND x.key >= $5 AND x.key < $6 \
     AND (x.until_ms IS NULL OR x.until_ms > pg_temp.time_ms(n.clock_ahead_ms)) \
     ORDER BY x.key LIMIT $7",
    "SELECT i.name, i.value FROM fence_locks.items i \
     JOIN fence_locks.records x ON x.namespace = i.namespace AND x.key = i.key \
     JOIN fence_locks.namespaces n ON n.id = x.namespace \
     WHERE pg_temp.check_lineage($1, $2, $3) AND i.namespace = $1 AND i.key = $4 \
     AND ($5::text IS NULL OR i.name > $5) \
     AND (x.until_ms IS NULL OR x.until_ms > pg_temp.time_ms(n.clock_ahead_ms)) \
     ORDER BY i.name LIMIT $6",
    "SELECT count(*) FROM fence_locks.items i \
     WHERE pg_temp.check_lineage($1, $2, $3) AND i.namespace = $1 AND i.key = $4",
    "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
     current_setting('synchronous_standby_names'), \
     (SELECT count(*) FROM pg_stat_replication)",
    "SELECT * FROM pg_temp.lineage($1)",
];

/// Two servers may start at once; the number is the project's own, as in `schema.sql`.
const CREATE_SCHEMA: &str = "BEGIN; SELECT pg_advisory_xact_lock(7420076); \
    CREATE SCHEMA IF NOT EXISTS fence_locks; COMMIT";
/// The schema or a table whose owner could change what a lock server trusts: neither this role or
/// one of its groups, nor a superuser or the owner of the database. A superuser is in every group.
const FOREIGN: &str = "SELECT o.name, r.rolname FROM (\
     SELECT 'schema ' || nspname, nspowner FROM pg_namespace WHERE nspname = 'fence_locks' \
     UNION ALL SELECT 'fence_locks.' || relname, relowner FROM pg_class \
     WHERE relnamespace = to_regnamespace('fence_locks')) AS o(name, owner) \
     JOIN pg_roles r ON r.oid = o.owner JOIN pg_roles me ON me.rolname = current_user \
     WHERE NOT (r.oid = me.oid OR r.rolsuper OR r.rolname = 'pg_database_owner' \
     OR NOT me.rolsuper AND pg_has_role(me.oid, r.oid, 'USAGE') \
     OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())) \
     ORDER BY o.name DESC LIMIT 1";

/// Format of the tables; one database takes servers of one format.
const FORMAT: i32 = 1;

/// Settings of a session. A plan that was made for an empty table stays, so that scans of whole
/// tables are ruled out.
const OPTIONS: &str = "SET search_path = pg_catalog, pg_temp; SET client_min_messages = warning; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SET default_transaction_isolation = 'read committed'; \
    SET idle_in_transaction_session_timeout = '10s'; \
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3";

/// Options of the link: the server ends by itself what this server waits for no longer.
pub(super) fn limited(mut options: LinkOptions) -> LinkOptions {
    let limit = options.reply_timeout.max(Duration::from_millis(1));
    options.connect.application_name = "lock-server".to_owned();
    options.connect.statement_timeout = Some(limit);
    options.connect.lock_timeout = Some(limit);
    options
}

/// Makes a new session ready for every statement.
///
/// # Errors
/// A sentence that says why this database cannot be used.
pub(super) async fn prepare(connection: &PostgresConnection) -> Result<(), String> {
    let client = connection.client();
    let failed = |step: &str, error: Error| {
        format!("PostgreSQL cannot be used ({step}): {}", error_text(&error))
    };
    client.batch_execute(OPTIONS).await.map_err(|error| failed("its settings", error))?;
    // A weaker setting acknowledges what a crash of the server forgets.
    let durable = "SELECT set_config('synchronous_commit', 'on', false) \
        WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')";
    client.batch_execute(durable).await.map_err(|error| failed("synchronous_commit", error))?;
    let facts = "SELECT to_regnamespace('fence_locks') IS NULL";
    let facts = client.query_one(facts, &[]).await.map_err(|error| failed("its schema", error))?;
    if facts.get(0) {
        let created = client.batch_execute(CREATE_SCHEMA).await;
        created.map_err(|error| failed("creating schema fence_locks", error))?;
    }
    // Before anything of it is used: what belongs to another role runs that role's code.
    let foreign = client.query_opt(FOREIGN, &[]).await;
    if let Some(foreign) = foreign.map_err(|error| failed("its owners", error))? {
        let [object, owner]: [&str; 2] = [foreign.get(0), foreign.get(1)];
        return Err(format!(
            "{object} belongs to role {owner}, which could forge leases and lower tokens. If that \
             is right, make it this role's (ALTER … OWNER TO), or name that role in --store; if \
             not, stop all lock servers and remove it: DROP SCHEMA fence_locks CASCADE"
        ));
    }
    let facts = "SELECT to_regclass('fence_locks.about') IS NULL";
    let facts = client.query_one(facts, &[]).await.map_err(|error| failed("its tables", error))?;
    if facts.get(0) {
        let created = client.batch_execute(include_str!("schema.sql")).await;
        created.map_err(|error| failed("creating the tables of fence_locks", error))?;
    }
    let facts = "SELECT (SELECT max(format) FROM fence_locks.about), \
        (SELECT string_agg(relname, ', ') FROM pg_class WHERE relkind = 'r' \
        AND relnamespace = 'fence_locks'::regnamespace AND relpersistence <> 'p')";
    let facts = client.query_one(facts, &[]).await.map_err(|error| failed("its tables", error))?;
    let format: Option<i32> = facts.get(0);
    if format != Some(FORMAT) {
        return Err(format!(
            "the locks in this PostgreSQL are stored in format {}, and this lock-server stores \
             them in format {FORMAT}: run the version that wrote them, or use another database",
            format.unwrap_or_default()
        ));
    }
    if let Some(unlogged) = facts.get::<_, Option<String>>(1) {
        return Err(format!(
            "tables of schema fence_locks are unlogged ({unlogged}): a crash of PostgreSQL empties \
             them; ALTER TABLE … SET LOGGED"
        ));
    }
    let created = client.batch_execute(include_str!("functions.sql")).await;
    created.map_err(|error| failed("creating functions, which needs TEMPORARY", error))?;
    connection.prepare(&STATEMENTS).await.map_err(|error| failed("its statements", error))
}

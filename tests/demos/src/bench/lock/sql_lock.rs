//! Locks of PostgreSQL's own: advisory ones, and a lease in a row.

use postgres_link::{ConnectOptions, PostgresConnection, PostgresTarget};
use service_kit::tasks::Tasks;

/// Statements that acquire and release. Of a lease, both name its holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlCommands {
    acquire: &'static str,
    release: &'static str,
    has_holder: bool,
}

/// Locks of the session, without a token or a time to live.
pub(super) const ADVISORY: SqlCommands = SqlCommands {
    acquire: "SELECT pg_advisory_lock(hashtextextended($1, 0))",
    release: "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
    has_holder: false,
};
/// A row a lock, with a token.
pub(super) const LEASE: SqlCommands = SqlCommands {
    acquire: "INSERT INTO fence_bench.leases AS l VALUES ($1, $2, \
              nextval('fence_bench.tokens'), clock_timestamp() + interval '30 s') \
              ON CONFLICT (lock) DO UPDATE SET holder = excluded.holder, token = excluded.token, \
              until = excluded.until WHERE l.until < clock_timestamp() RETURNING token",
    release: "UPDATE fence_bench.leases SET until = '-infinity' WHERE lock = $1 AND holder = $2",
    has_holder: true,
};

const SETUP: &str = "DROP SCHEMA IF EXISTS fence_bench CASCADE; CREATE SCHEMA fence_bench; \
    CREATE SEQUENCE fence_bench.tokens; CREATE TABLE fence_bench.leases \
    (lock text PRIMARY KEY, holder text, token bigint, until timestamptz) WITH (fillfactor = 50)";
const CLEANUP: &str = "DROP SCHEMA fence_bench CASCADE";

/// A client with a session of its own.
pub(super) struct SqlLock {
    connection: PostgresConnection,
    has_holder: bool,
}

impl SqlLock {
    pub(super) async fn open(url: &str, commands: SqlCommands) -> Result<Self, String> {
        let connection = connect(url).await?;
        let prepared = connection.prepare(&[commands.acquire, commands.release]).await;
        prepared.map_err(|error| error.to_string())?;
        Ok(Self { connection, has_holder: commands.has_holder })
    }

    pub(super) async fn lock(&self, lock: &str, holder: &str) -> Result<(), String> {
        match self.run(0, lock, holder).await? {
            1 => Ok(()),
            rows => Err(format!("{lock}: {rows} rows")),
        }
    }

    pub(super) async fn unlock(&self, lock: &str, holder: &str) -> Result<(), String> {
        self.run(1, lock, holder).await.map(drop)
    }

    async fn run(&self, place: usize, lock: &str, holder: &str) -> Result<usize, String> {
        let rows = match self.has_holder {
            true => self.connection.query(place, &[&lock, &holder]).await,
            false => self.connection.query(place, &[&lock]).await,
        };
        rows.map(|rows| rows.len()).map_err(|error| error.to_string())
    }
}

/// Makes the tables anew.
pub(super) async fn set_up(url: &str) -> Result<(), String> {
    execute(url, SETUP).await
}

/// Removes them.
pub(super) async fn clean_up(url: &str) -> Result<(), String> {
    execute(url, CLEANUP).await
}

async fn execute(url: &str, statements: &str) -> Result<(), String> {
    let connection = connect(url).await?;
    let done = connection.client().batch_execute(statements).await;
    done.map_err(|error| error.to_string())
}

async fn connect(url: &str) -> Result<PostgresConnection, String> {
    let target = url.parse::<PostgresTarget>().map_err(|error| error.to_string())?;
    target.connect(&ConnectOptions::default(), &Tasks::new()).await
}

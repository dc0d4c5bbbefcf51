//! The PostgreSQL port over real processes: a real server, drivers that know nothing of fences, and
//! everything that may happen to both between two steps of a hand-over.

mod bad_input;
mod drivers;
mod failover;
mod handover;
mod judges;
mod late_token;
mod poolers;
mod protocol;
mod race;
mod rules;
mod start;
mod synchronous;
mod tls;

use fence_tests::postgres_client::{PostgresClient, SqlError, credential_of};
use fence_tests::postgres_server::Postgres;
use fence_tests::process::{Process, command};
use fence_tests::servers::{Server, Setup};
use fenced_store::stores::postgres::pack;

/// Roles and the database of the tests; the pack is installed by the guard's own role.
const ROLES: &str = "CREATE ROLE guard LOGIN; GRANT pg_read_all_stats, pg_signal_backend TO guard; \
                     CREATE ROLE writer LOGIN; CREATE ROLE reader LOGIN";

/// Made by the writer; the reader may read it and nothing of schema fence.
const JOURNAL: &str = "CREATE TABLE journal (token bigint, seq bigint); \
                       GRANT SELECT ON journal TO reader";

/// A guard with a port.
pub(crate) struct Port {
    pub(crate) server: Server,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
}

/// A server with database `shop`, the pack in it, and an empty table `journal`.
pub(crate) async fn database() -> Postgres {
    let postgres = Postgres::start().await;
    prepare(&postgres).await;
    postgres
}

pub(crate) async fn prepare(postgres: &Postgres) {
    let script = [
        ROLES,
        "CREATE DATABASE shop",
        "GRANT CREATE ON DATABASE shop TO guard",
        "\\connect shop",
        "GRANT CREATE ON SCHEMA public TO writer",
        "\\connect - guard",
        &pack::sql(),
        "\\connect - writer",
        JOURNAL,
    ];
    postgres.script(&script).await;
}

/// Runs statements in the database at the server itself.
pub(crate) async fn shop(postgres: &Postgres, role: &str, sql: &str) -> String {
    let mut psql = command("psql");
    let url = format!("postgres://{role}@{}/shop", postgres.address());
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", sql]);
    psql.env("PGOPTIONS", "-c client_min_messages=warning");
    let ended = Process::spawn("psql", psql).ended().await;
    assert_eq!(ended.code, 0, "{sql}\n{}", ended.stderr);
    ended.stdout.trim_end().to_owned()
}

pub(crate) fn setup(postgres: &Postgres) -> Setup {
    setup_at(&format!("postgres://guard@{}/shop", postgres.address()))
        .args(&["--postgres-writer", "writer"])
}

/// A guard before the database of a URL, without a role for clients with a token.
pub(crate) fn setup_at(url: &str) -> Setup {
    let listen = ["--unsigned", "--postgres-listen", "127.0.0.1:0"];
    let setup = Setup::bare("fenced-store").args(&listen).args(&["--postgres-upstream", url]);
    setup.args(&["--postgres-reader", "reader"])
}

/// Starts it and waits until both listen.
pub(crate) async fn port(setup: &Setup) -> Port {
    let mut server = setup.start().await;
    let url = server.postgres_port().await;
    let address = url.trim_start_matches("postgres://").trim_end_matches("/shop").to_owned();
    Port { server, address }
}

impl Port {
    /// Logs in with a token of the database's lock; its lease has the token's number.
    pub(crate) async fn log_in(&self, token: u64) -> Result<PostgresClient, SqlError> {
        let credential = credential_of("shop", token, token);
        PostgresClient::log_in(&self.address, "app", "shop", &credential).await
    }

    /// psql with a token.
    pub(crate) fn psql(&self, token: u64, args: &[&str]) -> std::process::Command {
        let mut psql = command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]);
        psql.arg(format!("postgres://app@{}/shop", self.address));
        psql.env("PGPASSWORD", credential_of("shop", token, token)).args(args);
        psql
    }
}

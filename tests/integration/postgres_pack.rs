//! The SQL pack in a real PostgreSQL: no transaction of an older holder takes effect after a seal.

mod command;
mod handover;
mod mutants;
mod newer;
mod plain_file;
pub(crate) mod race;
mod replication;
mod rights;
mod roles;
mod sessions;
mod stalled;
mod synchronous;
mod tables;
mod upgrade;

use fence_tests::postgres_database::Database;
use fence_tests::postgres_server::Postgres;
use fence_tests::psql::Psql;
use fenced_store::stores::postgres::pack;

const OLD: &str = "11111111-1111-4111-8111-111111111111";
const NEW: &str = "22222222-2222-4222-8222-222222222222";

/// The role that owns nothing.
const APP: &str = "create role app login";

/// A table that is guarded by row, and the rights of the role.
const TABLES: &str = "create table docs (id int primary key, v text);
    insert into docs select g, 'first' from generate_series(1, 3) g;
    select fence.guard('docs', 'docs/{id}');
    grant all on docs to app;
    grant execute on function fence.enter(text, bigint, uuid, text),
      fence.seal(text, bigint, uuid, text, integer) to app";

/// A PostgreSQL with the pack, and a table `docs` guarded by row.
async fn installed() -> Postgres {
    installed_as(&pack::sql()).await
}

/// With a pack of other statements: a mutant.
async fn installed_as(statements: &str) -> Postgres {
    installed_with(&[], statements).await
}

/// Installs the pack and the tables in a server that runs.
async fn install_on(server: &Database) {
    server.script(&[APP, &pack::sql(), TABLES]).await;
}

/// With other settings of the server.
async fn installed_with(options: &[(&str, &str)], statements: &str) -> Postgres {
    let server = Postgres::with(options).await;
    server.script(&[APP, statements, TABLES]).await;
    server
}

/// A session of the role that owns nothing.
fn app(server: &Database) -> Psql {
    Psql::start(&server.url().replace("postgres@", "app@"))
}

fn enter(lock: &str, token: u64, lease: &str) -> String {
    format!("select fence.enter('{lock}', {token}, '{lease}');")
}

fn seal(lock: &str, token: u64, lease: &str, wait_ms: u64) -> String {
    format!("select fence.seal('{lock}', {token}, '{lease}', 'default', {wait_ms});")
}

/// Version of document 1.
async fn document(server: &Database) -> String {
    server.sql("select v from docs where id = 1").await
}

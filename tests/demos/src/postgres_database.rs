//! A database and a role of the demo's own in a PostgreSQL; both are dropped in the end.

use fence_terminal::exit::{Failure, code};
use fenced_store::stores::postgres::pack;
use postgres_link::{ConnectOptions, PostgresConnection, PostgresTarget};
use service_kit::ids;
use service_kit::tasks::Tasks;

/// Names of the database and the role.
#[derive(Clone)]
pub(crate) struct PostgresDatabase {
    target: PostgresTarget,
    /// User and password as the URL has them.
    login: String,
    address: String,
    pub(crate) name: String,
    writer: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresDatabase").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PostgresDatabase {
    /// Makes up the names; nothing is created yet.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn new(url: &str) -> Result<Self, String> {
        let target: PostgresTarget =
            url.parse().map_err(|error: postgres_link::TargetError| error.to_string())?;
        let [(host, port)] = target.addresses() else {
            return Err("a demo takes one host".to_owned());
        };
        if url.contains('?') {
            return Err("a demo takes no options behind the database".to_owned());
        }
        let address = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let login = rest.rsplit_once('@').map_or(target.user(), |(login, _)| login).to_owned();
        let name = format!("fence_demo_{}", ids::random_hex(6));
        let writer = format!("{name}_writer");
        Ok(Self { target, login, address, name, writer, password: ids::random_hex(16) })
    }

    /// URL for the guard.
    pub(crate) fn guard_url(&self) -> String {
        format!("postgres://{}@{}/{}", self.login, self.address, self.name)
    }

    /// URL of the workers' role.
    pub(crate) fn writer_url(&self) -> String {
        let Self { writer, password, address, name, .. } = self;
        format!("postgres://{writer}:{password}@{address}/{name}")
    }

    /// Name of the workers' role.
    pub(crate) fn writer(&self) -> &str {
        &self.writer
    }

    pub(crate) fn shown(&self) -> String {
        format!("{}, database {}", self.target, self.name)
    }

    /// Creates database, role, SQL pack and the table of accounts.
    ///
    /// # Errors
    /// What the login may not do, or why the server is unreachable.
    pub(crate) async fn create(&self) -> Result<(), Failure> {
        let Self { name, writer, password, .. } = self;
        let server = connect(&self.target).await?;
        self.run(&server, &format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
        self.run(&server, &format!("CREATE ROLE {writer} LOGIN PASSWORD '{password}'")).await?;
        let target = self.target.clone();
        let user = target.user().to_owned();
        let password = target.password().cloned();
        let database = connect(&target.with_session(&user, password, Some(name))).await?;
        self.run(&database, &pack::sql()).await?;
        let table = format!(
            "CREATE TABLE accounts (key text PRIMARY KEY, document text NOT NULL); \
             GRANT SELECT, INSERT, UPDATE ON accounts TO {writer}"
        );
        self.run(&database, &table).await
    }

    /// Drops everything that [`create`](Self::create) has created.
    ///
    /// # Errors
    /// Names what remains.
    pub(crate) async fn drop_all(&self) -> Result<(), Failure> {
        let Self { name, writer, .. } = self;
        let server = connect(&self.target).await?;
        self.run(&server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        self.run(&server, &format!("DROP ROLE IF EXISTS {writer}")).await
    }

    async fn run(&self, connection: &PostgresConnection, sql: &str) -> Result<(), Failure> {
        connection.client().batch_execute(sql).await.map_err(|error| {
            let reason = postgres_link::refusal(&error)
                .map_or_else(|| error.to_string(), |refusal| refusal.to_string());
            let message = format!(
                "{}: {reason}. The demo creates and drops a database and a role of its own; name \
                 a superuser in --store",
                self.shown()
            );
            Failure::new(code::UNAVAILABLE, message)
        })
    }
}

async fn connect(target: &PostgresTarget) -> Result<PostgresConnection, Failure> {
    let connected = target.connect(&ConnectOptions::default(), &Tasks::new()).await;
    connected.map_err(|error| Failure::new(code::UNAVAILABLE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_names_of_its_own_and_no_secret_is_shown() {
        let database = || PostgresDatabase::new("postgres://me:hunt%40r2@[::1]:7/x").unwrap();
        let one = database();
        assert_ne!(one.name, database().name);
        let expected = format!("postgres://me:hunt%40r2@[::1]:7/{}", one.name);
        assert_eq!(one.guard_url(), expected);
        assert!(!format!("{one:?} {}", one.shown()).contains("hunt"));
        for bad in ["postgres://a,b/x?sslmode=disable", "postgres://localhost/x?sslmode=disable"] {
            assert!(PostgresDatabase::new(bad).is_err(), "{bad}");
        }
    }
}

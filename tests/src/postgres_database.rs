//! A database of a real PostgreSQL.

use crate::postgres_server::USER;
use crate::process::{Output, Process, command};

/// A database, for its superuser `postgres`, who needs no password from this machine.
#[derive(Debug)]
pub struct Database {
    port: u16,
    name: String,
}

impl Database {
    pub(crate) fn at(port: u16, name: &str) -> Self {
        Self { port, name: name.to_owned() }
    }

    /// Makes another one of the same server, whose roles are the same.
    pub async fn create(&self, name: &str) -> Self {
        self.sql(&format!("CREATE DATABASE {name}")).await;
        Self::at(self.port, name)
    }

    /// `postgres://postgres@127.0.0.1:PORT/NAME`.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@{}/{}", self.address(), self.name)
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// TCP port, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Runs statements by psql as the superuser; returns the rows, fields separated by `|`.
    ///
    /// # Panics
    /// If they fail.
    pub async fn sql(&self, statements: &str) -> String {
        self.script(&[statements]).await
    }

    /// Runs statements as [`sql`](Self::sql) does, each element in a transaction of its own, and
    /// psql's own commands, such as `\connect - ROLE`, as elements between them.
    ///
    /// # Panics
    /// If they fail.
    pub async fn script(&self, elements: &[&str]) -> String {
        let ended = self.try_script(elements).await;
        assert_eq!(ended.code, 0, "{elements:?}\n{}", ended.stderr);
        ended.stdout.trim_end().to_owned()
    }

    /// Runs statements by psql as the superuser.
    pub async fn try_sql(&self, statements: &str) -> Output {
        self.try_script(&[statements]).await
    }

    async fn try_script(&self, elements: &[&str]) -> Output {
        let mut psql = command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]).arg(self.url());
        for element in elements {
            psql.arg("-c").arg(element);
        }
        Process::spawn("psql", psql).ended().await
    }
}

//! Storage of the demo's servers: embedded stores in a folder, a Redis in a namespace of its own
//! that is deleted in the end, or a database of its own in a PostgreSQL.

use std::fmt;
use std::time::Duration;

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis_link::{RedisTarget, TargetError};
use service_kit::ids;
use service_kit::login::without_password;

use crate::postgres_database::PostgresDatabase;

use fence_terminal::exit::{Failure, code};

/// Keys in one delete.
const KEYS_AT_ONCE: usize = 500;

/// Time-out of a connection to Redis.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Store of leases, marks and documents.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    Embedded,
    /// Embedded leases; documents in a plain HTTP datastore of the demo's own.
    Http,
    Redis {
        target: Box<RedisTarget>,
        url: Secret,
        namespace: String,
    },
    /// Embedded leases; documents in a PostgreSQL.
    Postgres(Box<PostgresDatabase>),
}

/// A URL that may hold a password: it is handed on in the environment, and never shown.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Backing {
    /// From `--store`.
    pub(crate) fn from_flag(store: Option<&str>) -> Result<Self, Failure> {
        let url = match store {
            None | Some("embedded") => return Ok(Self::Embedded),
            Some("http") => return Ok(Self::Http),
            Some(url) => url,
        };
        if url.starts_with("postgres://") {
            let database = PostgresDatabase::new(url).map_err(|error| {
                Failure::usage(format!("--store: {error}, or --store postgres"))
            })?;
            return Ok(Self::Postgres(Box::new(database)));
        }
        if !url.starts_with("redis://") {
            return Err(Failure::usage(format!(
                "--store {}: a demo takes embedded, http, redis, redis://HOST:PORT, postgres, or \
                 postgres://USER@HOST:PORT/DATABASE",
                without_password(url)
            )));
        }
        Self::redis(url, "demo")
            .map_err(|error| Failure::usage(format!("--store: {error}, or --store embedded")))
    }

    /// A Redis, and a new namespace in it whose name begins with `purpose`.
    pub(crate) fn redis(url: &str, purpose: &str) -> Result<Self, TargetError> {
        let target: RedisTarget = url.parse()?;
        let namespace = format!("{purpose}-{}", ids::random_hex(6));
        Ok(Self::Redis { target: Box::new(target), url: Secret(url.to_owned()), namespace })
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Embedded => "embedded".to_owned(),
            Self::Http => "http".to_owned(),
            Self::Redis { target, namespace, .. } => format!("{target}, namespace {namespace}"),
            Self::Postgres(database) => database.shown(),
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        match self {
            Self::Embedded | Self::Http | Self::Postgres(_) => "default",
            Self::Redis { namespace, .. } => namespace,
        }
    }

    /// The database that the URL names, as the end of another URL: `/3`, or nothing.
    pub(crate) fn database(&self) -> String {
        let Self::Redis { url, .. } = self else { return String::new() };
        let rest = url.0.split_once("://").map_or("", |(_, rest)| rest);
        // A password may have slashes in it; what comes after the last @ has one at most.
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        match place.split_once('/') {
            None | Some((_, "")) => String::new(),
            Some((_, database)) => format!("/{database}"),
        }
    }

    /// Checks that Redis replies, or makes the database; nothing is started otherwise.
    pub(crate) async fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Embedded | Self::Http => Ok(()),
            Self::Redis { target, .. } => connect(target).await.map(drop),
            Self::Postgres(database) => {
                let created = database.create().await;
                if created.is_err() {
                    // The reason of the failure is what helps.
                    let _ = database.drop_all().await;
                }
                created
            }
        }
    }

    /// Deletes everything that was left in Redis: what the servers keep, and the documents, whose
    /// keys begin with the namespace. In a PostgreSQL, the database.
    pub(crate) async fn clean(&self) -> Result<(), Failure> {
        if let Self::Postgres(database) = self {
            return database.drop_all().await;
        }
        let Self::Redis { namespace, .. } = self else { return Ok(()) };
        self.delete(&format!("{{fence:{namespace}}}:*")).await?;
        self.delete(&format!("{namespace}/*")).await
    }

    async fn delete(&self, pattern: &str) -> Result<(), Failure> {
        let Self::Redis { target, namespace, .. } = self else { return Ok(()) };
        let mut redis = connect(target).await?;
        let failed = |error: redis::RedisError| {
            let message =
                format!("namespace {namespace} at {target} could not be deleted: {error}");
            Failure::new(code::UNAVAILABLE, message)
        };
        let mut cursor: u64 = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_AT_ONCE);
            let (next, keys): (u64, Vec<String>) =
                scan.query_async(&mut redis).await.map_err(failed)?;
            if !keys.is_empty() {
                let _: i64 = redis.unlink(keys).await.map_err(failed)?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// A connection to Redis.
pub(crate) async fn connect(target: &RedisTarget) -> Result<MultiplexedConnection, Failure> {
    let connected = target.connect(CONNECT_TIMEOUT).await;
    connected.map_err(|error| Failure::new(code::UNAVAILABLE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_goes_with_the_port() {
        let database = |url: &str| Backing::from_flag(Some(url)).unwrap().database();
        assert_eq!(database("redis://127.0.0.1:1"), "");
        assert_eq!(database("redis://127.0.0.1:1/"), "");
        assert_eq!(database("redis://app:a%2Fb@127.0.0.1:1/3"), "/3");
    }

    #[test]
    fn every_run_has_a_namespace_of_its_own() {
        let namespace = || {
            let backing = Backing::from_flag(Some("redis://:hunter2@127.0.0.1:1")).unwrap();
            assert!(!format!("{backing:?} {}", backing.name()).contains("hunter2"));
            fence_protocol::Namespace::new(backing.namespace()).unwrap()
        };
        assert_ne!(namespace(), namespace());
        assert!(matches!(Backing::from_flag(None), Ok(Backing::Embedded)));
        assert_eq!(Backing::from_flag(Some("mysql://x")).unwrap_err().code(), code::USAGE);
    }
}

//! Opening of the store that `--store` names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use fence_protocol::{Invalid, Namespace};
use postgres_link::PostgresTarget;
use redis_link::{ClusterTarget, RedisTarget, TargetError};
use service_kit::Kit;
use service_kit::login::{NO_LOGIN, StoreLogin, without_password};

use super::commit::FolderError;
use super::contract::FenceStore;
use super::embedded::EmbeddedStore;
use super::memory::MemoryStore;
use super::postgres::objects::PostgresStore;
use super::redis::{RedisOptions, RedisStore, Shared};

/// Folder of the objects' and the port's keys in Redis.
const FOLDER: &str = "guard";

/// A store: `memory:`, `embedded:DIR`, `redis://host:port`, `redis-sentinel://host:port/master`,
/// `redis-cluster://host:port,host:port` or `postgres://user@host:port/database`.
///
/// Its text hides passwords.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// Everything in memory; a restart forgets it.
    Memory,
    /// One redb file in this folder.
    Embedded(PathBuf),
    /// One Redis, version 7 or later, or the master that sentinels name.
    Redis(RedisTarget),
    /// A Redis Cluster; the objects are in one slot of it.
    Cluster(ClusterTarget),
    /// A database of PostgreSQL, version 13 or later.
    Postgres(PostgresTarget),
}

impl FromStr for StoreUrl {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = |rule: &str| Invalid::new("store", without_password(text), rule);
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if let Some(folder) = text.strip_prefix("embedded:") {
            return match folder {
                "" => Err(refuse("names no folder; write embedded:DIR")),
                folder => Ok(Self::Embedded(PathBuf::from(folder))),
            };
        }
        let unusable = |error: TargetError| {
            Invalid::new("store", "redis://…", format!("cannot be used: {error}"))
        };
        let unreadable = |error: postgres_link::TargetError| {
            Invalid::new("store", "postgres://…", format!("cannot be used: {error}"))
        };
        match text.split_once("://") {
            Some(("redis" | "rediss" | "redis-sentinel" | "rediss-sentinel", _)) => {
                text.parse().map(Self::Redis).map_err(unusable)
            }
            Some(("redis-cluster" | "rediss-cluster", _)) => {
                text.parse().map(Self::Cluster).map_err(unusable)
            }
            Some(("postgres" | "postgresql", _)) => {
                text.parse().map(Self::Postgres).map_err(unreadable)
            }
            _ => Err(refuse(
                "is not known; write memory:, embedded:DIR, redis://HOST:PORT, \
                 redis-sentinel://HOST:PORT/MASTER or redis-cluster://HOST:PORT,HOST:PORT, and \
                 rediss in place of redis for TLS, or postgres://USER@HOST:PORT/DATABASE",
            )),
        }
    }
}

impl StoreUrl {
    /// Adds the login that other settings name.
    ///
    /// # Errors
    /// A sentence that names the flag, if the store takes no login.
    pub fn with_login(self, login: &StoreLogin) -> Result<Self, String> {
        match self {
            Self::Redis(target) => target.with_login(login).map(Self::Redis),
            Self::Cluster(target) => target.with_login(login).map(Self::Cluster),
            Self::Postgres(target) => target.with_login(login).map(Self::Postgres),
            Self::Memory | Self::Embedded(_) if !login.is_empty() => Err(NO_LOGIN.to_owned()),
            local => Ok(local),
        }
    }

    /// Returns `true` for a store reached over TLS.
    pub fn is_tls(&self) -> bool {
        match self {
            Self::Memory | Self::Embedded(_) => false,
            Self::Redis(target) => target.is_tls(),
            Self::Cluster(target) => target.is_tls(),
            Self::Postgres(target) => target.is_tls(),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Embedded(folder) => write!(f, "embedded:{}", folder.display()),
            Self::Redis(target) => target.fmt(f),
            Self::Cluster(target) => target.fmt(f),
            Self::Postgres(target) => target.fmt(f),
        }
    }
}

/// A store that cannot be used, with the reason and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Redis or PostgreSQL cannot be used.
    #[error("{0}")]
    Server(String),
    /// The memory store failed its probe.
    #[error("memory: {0}")]
    Memory(String),
}

/// Opens the store of `url` and probes its guarantee. `kit` gives it tasks, and a place to report
/// failures.
///
/// # Errors
/// [`OpenError`], a sentence with the path or address and what to do.
pub async fn open(
    url: &StoreUrl,
    namespace: &Namespace,
    options: RedisOptions,
    kit: &Kit,
) -> Result<Opened, OpenError> {
    let opened = |store: Arc<dyn FenceStore>| Opened { store, redis: None, database_id: None };
    Ok(match url {
        StoreUrl::Memory => {
            let store = MemoryStore::probed(kit).await;
            opened(Arc::new(store.map_err(OpenError::Memory)?))
        }
        StoreUrl::Embedded(folder) => opened(Arc::new(EmbeddedStore::probed(folder, kit).await?)),
        StoreUrl::Redis(target) => {
            let store = RedisStore::open(target.clone(), namespace, FOLDER, options, kit).await;
            let store = store.map_err(OpenError::Server)?;
            Opened { redis: Some(Behind::One(store.shared())), ..opened(Arc::new(store)) }
        }
        StoreUrl::Cluster(target) => {
            // All keys of the objects share a hash tag, so they have a node of their own.
            let owner = target.owner_of(format!("{{fence:{namespace}}}").as_bytes());
            let store = RedisStore::open(owner, namespace, FOLDER, options, kit).await;
            let store = Arc::new(store.map_err(OpenError::Server)?);
            Opened { redis: Some(Behind::Cluster(target.clone())), ..opened(store) }
        }
        StoreUrl::Postgres(target) => {
            let store = PostgresStore::open(target.clone(), namespace, options.floor, kit).await;
            let store = store.map_err(OpenError::Server)?;
            let database_id = store.database_id().map(str::to_owned);
            Opened { database_id, ..opened(Arc::new(store)) }
        }
    })
}

/// A store that has proved its guarantee.
#[derive(Debug)]
pub struct Opened {
    /// Store, ready for use.
    pub store: Arc<dyn FenceStore>,
    /// Backend of a Redis port.
    pub(crate) redis: Option<Behind>,
    /// Identity of a PostgreSQL's marks.
    pub(crate) database_id: Option<String>,
}

/// Backend of a Redis port.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    /// The same Redis as the objects; the port shares the marks with them.
    One(Arc<Shared>),
    /// A cluster, in which every slot has marks of its own.
    Cluster(ClusterTarget),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for good in [
            "memory:",
            "embedded:data",
            "embedded:/var/lib/x",
            "redis://127.0.0.1:6379",
            "redis-sentinel://a:1,b:2/main",
            "redis-cluster://a:1,b:2",
            "rediss://a",
            "rediss-sentinel://a:1,b:2/main",
            "rediss-cluster://a:1,b:2",
            "postgres://localhost/shop",
        ] {
            assert_eq!(good.parse::<StoreUrl>().unwrap().to_string(), good);
        }
        for bad in ["", "memory", "embedded:", "mysql://a", "redis:/a", "redis://", "data"] {
            let error = bad.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.starts_with("store \""), "{error}");
        }
        let secret = "redis://app:hunter2@127.0.0.1:0x".parse::<StoreUrl>().unwrap_err();
        assert!(!secret.to_string().contains("hunter2"), "{secret}");
        let other = "mysql://root:hunter2@db/x".parse::<StoreUrl>().unwrap_err().to_string();
        assert!(other.contains("@db/x") && !other.contains("hunter2"), "{other}");
    }
}

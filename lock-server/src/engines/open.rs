//! Selection of the store that a URL names.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::Token;
use postgres_link::PostgresTarget;
use redis_link::{ClusterTarget, RedisTarget, TargetError};
use service_kit::Kit;
use service_kit::login::{NO_LOGIN, StoreLogin, without_password};
use service_kit::process::StartError;

use super::contract::{RecordStore, ServerId};
use super::etcd::{EtcdRecords, EtcdTarget};
use super::options::StoreOptions;
use super::postgres::PostgresRecords;
use super::quorum::{QuorumStore, QuorumUrl};
use super::redis::RedisRecords;
use super::{embedded, etcd, postgres, quorum, redis};
use crate::driver::Driver;
use crate::guards::{Guards, RETRY_INTERVAL};
use crate::store::LockStore;
use lease::tokens;

/// The value of `--store`.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// Leases in this process: `memory:`.
    Memory,
    /// `embedded:DIR`
    Embedded(PathBuf),
    /// `redis://…`, `redis-sentinel://…` or `redis-cluster://…`; of a cluster it is the owner of
    /// some slot, see [`RedisTarget::in_slot_of`].
    Redis(RedisTarget),
    /// Leases in etcd: `etcd://…`, `etcds://…`.
    Etcd(EtcdTarget),
    /// Leases in PostgreSQL: `postgres://…`.
    Postgres(PostgresTarget),
    /// `redis-quorum:redis://a,redis://b,redis://c`
    Quorum(QuorumUrl),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("embedded", "")) => {
                Err("\"embedded:\" names no folder; write embedded:DIR".to_owned())
            }
            Some(("embedded", dir)) => Ok(Self::Embedded(dir.into())),
            Some(("redis" | "rediss" | "redis-sentinel" | "rediss-sentinel", _)) => {
                url.parse().map(Self::Redis).map_err(|error: TargetError| error.to_string())
            }
            Some(("redis-cluster" | "rediss-cluster", _)) => {
                let cluster = url.parse().map_err(|error: TargetError| error.to_string())?;
                Ok(Self::Redis(ClusterTarget::owner_of(&cluster, b"")))
            }
            Some(("redis-quorum", _)) => url.parse().map(Self::Quorum),
            Some(("etcd" | "etcds", _)) => url.parse().map(Self::Etcd),
            Some(("postgres" | "postgresql", _)) => {
                let target = url.parse::<PostgresTarget>();
                target.map(Self::Postgres).map_err(|error| error.to_string())
            }
            _ => Err(format!(
                "\"{}\" is no store; use memory:, embedded:DIR, redis://host:port, \
                 redis-sentinel://host:port,host:port/master-name, \
                 redis-cluster://host:port,host:port, \
                 redis-quorum:redis://a,redis://b,redis://c, etcd://host:port,host:port or \
                 postgres://user@host/database; rediss in place of redis, and etcds in place of \
                 etcd, is TLS",
                without_password(url)
            )),
        }
    }
}

impl StoreUrl {
    /// Adds the login options that are given beside the URL.
    ///
    /// # Errors
    /// A sentence that names the flag, if it does not apply to the store.
    pub fn with_login(self, login: &StoreLogin) -> Result<Self, String> {
        match self {
            Self::Redis(target) => target.with_login(login).map(Self::Redis),
            Self::Postgres(target) => target.with_login(login).map(Self::Postgres),
            Self::Quorum(_) | Self::Etcd(_) if login.sentinel_password.is_some() => {
                Err("--sentinel-password-file is for Redis sentinels; leave it out".to_owned())
            }
            Self::Quorum(url) => url.with_login(login).map(Self::Quorum),
            Self::Memory | Self::Embedded(_) if !login.is_empty() => Err(NO_LOGIN.to_owned()),
            local => Ok(local),
        }
    }
}

/// Retries in the background while a guard has not replied, and raises the counter above every
/// mark.
fn follow_guards(guards: Guards, store: &Arc<dyn LockStore>, kit: &Kit) {
    if guards.is_empty() {
        return;
    }
    let stop = kit.tasks.shutdown_token();
    // The store must be able to shut down while this waits.
    let store = Arc::downgrade(store);
    kit.tasks.spawn(async move {
        stop.run_until_cancelled(retry_guards(guards, store)).await;
    });
}

async fn retry_guards(guards: Guards, store: Weak<dyn LockStore>) {
    loop {
        tokio::time::sleep(RETRY_INTERVAL).await;
        let Some(store) = store.upgrade() else { return };
        if !guards.is_incomplete() {
            continue;
        }
        if let Some(mark) = guards.marks().await.highest
            && let Err(error) = store.lift(mark).await
        {
            tracing::error!(%mark, %error, "the counter could not be raised above a guard's mark");
            guards.set_incomplete();
        }
    }
}

/// Opens the store that `url` names. Its next token is above every mark that the guards report.
///
/// # Errors
/// [`StartError`] where it cannot be reached, used or read, and where tokens would begin at 1 and a
/// guard does not say whether it has seen some.
pub async fn open(
    url: &StoreUrl,
    options: &StoreOptions,
    kit: &Kit,
) -> Result<Arc<dyn LockStore>, StartError> {
    let guards = Guards::new(&options.guards, &options.namespace, &kit.health)?;
    let store = open_store(url, options, &guards, kit).await?;
    if !guards.were_asked()
        && let Some(mark) = guards.marks().await.highest
    {
        store.lift(mark).await?;
    }
    follow_guards(guards, &store, kit);
    Ok(store)
}

async fn open_store(
    url: &StoreUrl,
    options: &StoreOptions,
    guards: &Guards,
    kit: &Kit,
) -> Result<Arc<dyn LockStore>, StartError> {
    Ok(match url {
        StoreUrl::Memory => Arc::new(super::memory::open::start(options.limits, kit)),
        StoreUrl::Embedded(dir) => {
            // Each namespace has its own counter, so it has its own folder.
            let dir = dir.join(options.namespace.as_str());
            let opened = embedded::open(&dir)?;
            let begins_at =
                begins_at(&dir, opened.is_new(), guards, options.start_timeout, kit).await?;
            Arc::new(opened.serve(begins_at, options.limits, kit)?)
        }
        StoreUrl::Redis(target) => {
            let records = RedisRecords::start(target, options, guards.clone(), kit).await?;
            shared(Arc::new(records), options, kit).await?
        }
        StoreUrl::Etcd(target) => {
            let records = EtcdRecords::start(target, options, guards.clone(), kit).await?;
            shared(Arc::new(records), options, kit).await?
        }
        StoreUrl::Postgres(target) => {
            let records = PostgresRecords::start(target, options, guards.clone(), kit).await?;
            shared(Arc::new(records), options, kit).await?
        }
        StoreUrl::Quorum(url) => {
            Arc::new(QuorumStore::start(url, options.clone(), guards.clone(), kit).await?)
        }
    })
}

/// Prepares a namespace that has never issued a token. Returns its target and the lowest token that
/// it can issue; `None` for stores that need no preparation.
///
/// # Errors
/// A sentence where it is not new, or where the store cannot be used.
pub async fn init_fresh(
    url: &StoreUrl,
    options: &StoreOptions,
    guards: &Guards,
) -> Option<Result<(String, u64), String>> {
    let StoreOptions { key_prefix, namespace, .. } = options;
    Some(match url {
        StoreUrl::Memory | StoreUrl::Embedded(_) => return None,
        StoreUrl::Redis(target) => {
            let made = redis::init_fresh(target, key_prefix, namespace, guards).await;
            made.map(|()| (target.to_string(), 1))
        }
        StoreUrl::Etcd(target) => {
            let made = etcd::init_fresh(target, options, guards).await;
            made.map(|first| (target.to_string(), first))
        }
        StoreUrl::Postgres(target) => {
            let made = postgres::init_fresh(target, namespace, guards).await;
            made.map(|()| (target.to_string(), 1))
        }
        StoreUrl::Quorum(url) => {
            let made = quorum::init_fresh(url, key_prefix, namespace, guards).await;
            made.map(|()| (url.to_string(), 1))
        }
    })
}

/// Serves records that other servers may serve, too.
async fn shared(
    records: Arc<dyn RecordStore>,
    options: &StoreOptions,
    kit: &Kit,
) -> Result<Arc<dyn LockStore>, StartError> {
    let server = ServerId::random();
    let liveness = options.liveness;
    let driver = Driver::shared(records, server, liveness, options.limits, kit);
    driver.live().await?;
    Ok(Arc::new(driver))
}

/// Interval of reading the guards while an empty folder waits for them.
const START_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the first counter of an embedded store. An empty folder may be new, or its content may
/// be lost; if a guard has seen a token, it is the latter. Guards that start together with this
/// server are waited for.
async fn begins_at(
    dir: &Path,
    is_new: bool,
    guards: &Guards,
    start_timeout: Duration,
    kit: &Kit,
) -> Result<u64, StartError> {
    if guards.is_empty() || !is_new {
        return Ok(0);
    }
    let timeout_ms = u64::try_from(start_timeout.as_millis()).unwrap_or(u64::MAX);
    let end_ms = kit.clock.monotonic_ms().saturating_add(timeout_ms);
    let mut testimony = guards.marks().await;
    while !testimony.unreachable.is_empty() && kit.clock.monotonic_ms() < end_ms {
        tokio::time::sleep(START_RETRY_INTERVAL).await;
        testimony = guards.marks().await;
    }
    testimony
        .check_complete()
        .map_err(|reason| format!("{} is empty, and {reason}", dir.display()))?;
    if !testimony.has_marks {
        return Ok(0);
    }
    let mark = testimony.highest.map_or(0, Token::get);
    let begins_at = tokens::after_loss(mark, kit.clock.wall_ms());
    tracing::warn!(
        dir = %dir.display(), mark, begins_at,
        "the folder is empty, and a guard has seen tokens: what it held is lost; tokens continue above \
         everything that can have been issued"
    );
    Ok(begins_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_select_their_store() {
        assert!(matches!("memory:".parse(), Ok(StoreUrl::Memory)));
        assert!(matches!("embedded:/tmp/x".parse(), Ok(StoreUrl::Embedded(_))));
        assert!(matches!("redis://127.0.0.1:6379".parse(), Ok(StoreUrl::Redis(_))));
        assert!(matches!("etcd://127.0.0.1:2379".parse(), Ok(StoreUrl::Etcd(_))));
        assert!(matches!("etcds://locks@a,b,c".parse(), Ok(StoreUrl::Etcd(_))));
        assert!(matches!("postgres://locks@localhost/db".parse(), Ok(StoreUrl::Postgres(_))));
        let target = |url: &str| match url.parse() {
            Ok(StoreUrl::Redis(target)) => target,
            other => panic!("{url}: {other:?}"),
        };
        assert!(target("redis-sentinel://a,b:7/orders").is_sentinel());
        assert!(target("redis-cluster://a:1,b:2").is_cluster());
        assert!("redis-cluster://a/1".parse::<StoreUrl>().is_err());
        let quorum = "redis-quorum:redis://a,redis://b,redis://c";
        assert!(matches!(quorum.parse(), Ok(StoreUrl::Quorum(_))));
    }

    #[test]
    fn unknown_urls_are_refused_without_their_password() {
        let error = "mysql://root:hunter2@db/x".parse::<StoreUrl>().unwrap_err();
        assert!(error.contains("db/x") && !error.contains("hunter2"), "{error}");
        assert!("embedded:".parse::<StoreUrl>().is_err());
        assert!("memory:x".parse::<StoreUrl>().is_err());
        let even = "redis-quorum:redis://a,redis://b".parse::<StoreUrl>().unwrap_err();
        assert!(even.contains("3 or 5"), "{even}");
    }
}

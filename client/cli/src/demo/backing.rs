//! Where the demo's servers keep things: embedded stores in a folder, or a Redis of the user's in a
//! namespace of its own that is deleted in the end.

use std::fmt;
use std::time::Duration;

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use service_kit::ids;
use service_kit::redis_link::RedisTarget;

use crate::exit::{Failure, code};

/// How many keys are deleted at once.
const KEYS_AT_ONCE: usize = 500;

/// How long a connection to Redis may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What keeps leases, marks and documents.
#[derive(Clone, Debug)]
pub(super) enum Backing {
    Embedded,
    Redis { target: Box<RedisTarget>, url: Secret, namespace: String },
}

/// A URL that may hold a password: it is handed on in the environment, and never shown.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Backing {
    /// From `--store`.
    pub(super) fn from_flag(store: Option<&str>) -> Result<Self, Failure> {
        let Some(url) = store.filter(|store| *store != "embedded") else {
            return Ok(Self::Embedded);
        };
        let target: RedisTarget = url
            .parse()
            .map_err(|error| Failure::usage(format!("--store: {error}, or --store embedded")))?;
        let namespace = format!("demo-{}", ids::random_hex(6));
        Ok(Self::Redis { target: Box::new(target), url: Secret(url.to_owned()), namespace })
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Embedded => "embedded".to_owned(),
            Self::Redis { target, namespace, .. } => format!("{target}, namespace {namespace}"),
        }
    }

    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Embedded => "default",
            Self::Redis { namespace, .. } => namespace,
        }
    }

    /// Whether Redis answers; nothing is started otherwise.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let Self::Redis { target, .. } = self else { return Ok(()) };
        connect(target).await.map(drop)
    }

    /// Deletes everything that the demo left in Redis.
    pub(super) async fn clean(&self) -> Result<(), Failure> {
        let Self::Redis { target, namespace, .. } = self else { return Ok(()) };
        let mut redis = connect(target).await?;
        let failed = |error: redis::RedisError| {
            let message =
                format!("namespace {namespace} at {target} could not be deleted: {error}");
            Failure::new(code::UNAVAILABLE, message)
        };
        let pattern = format!("{{fence:{namespace}}}:*");
        let mut cursor: u64 = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(KEYS_AT_ONCE);
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
pub(super) async fn connect(target: &RedisTarget) -> Result<MultiplexedConnection, Failure> {
    let connected = target.connect(CONNECT_TIMEOUT).await;
    connected.map_err(|error| Failure::new(code::UNAVAILABLE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

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

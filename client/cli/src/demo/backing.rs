//! Where the demo's servers keep things: embedded stores in a folder, or a Redis of the user's in a
//! namespace of its own that is deleted in the end.

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use service_kit::ids;

use crate::exit::{Failure, code};

/// How many keys are deleted at once.
const KEYS_AT_ONCE: usize = 500;

/// What keeps leases, marks and documents.
#[derive(Clone, Debug)]
pub(super) enum Backing {
    Embedded,
    Redis { url: String, namespace: String },
}

impl Backing {
    /// From `--store`.
    pub(super) fn from_flag(store: Option<&str>) -> Result<Self, Failure> {
        match store {
            None | Some("embedded") => Ok(Self::Embedded),
            Some(url) if url.starts_with("redis://") => Ok(Self::Redis {
                url: url.to_owned(),
                namespace: format!("demo-{}", ids::random_hex(6)),
            }),
            Some(other) => Err(Failure::usage(format!(
                "--store {other:?} is neither \"embedded\" nor like redis://127.0.0.1:6379"
            ))),
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Embedded => "embedded".to_owned(),
            Self::Redis { url, namespace } => format!("{url}, namespace {namespace}"),
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
        let Self::Redis { url, .. } = self else { return Ok(()) };
        connect(url).await.map(drop)
    }

    /// Deletes everything that the demo left in Redis.
    pub(super) async fn clean(&self) -> Result<(), Failure> {
        let Self::Redis { url, namespace } = self else { return Ok(()) };
        let mut redis = connect(url).await?;
        let failed = |error: redis::RedisError| {
            let message = format!("namespace {namespace} at {url} could not be deleted: {error}");
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
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    let client = redis::Client::open(url)
        .map_err(|error| Failure::usage(format!("--store {url:?} cannot be used: {error}")))?;
    client.get_multiplexed_async_connection().await.map_err(|error| {
        let message = format!("Redis at {url} cannot be reached: {error}. Start one, or leave out --store");
        Failure::new(code::UNAVAILABLE, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_namespace_of_its_own() {
        let namespace = || {
            let backing = Backing::from_flag(Some("redis://127.0.0.1:1")).unwrap();
            fence_protocol::Namespace::new(backing.namespace()).unwrap()
        };
        assert_ne!(namespace(), namespace());
        assert!(matches!(Backing::from_flag(None), Ok(Backing::Embedded)));
        assert_eq!(Backing::from_flag(Some("mysql://x")).unwrap_err().code(), code::USAGE);
    }
}

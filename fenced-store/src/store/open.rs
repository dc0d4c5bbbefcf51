//! From the `--store` setting to a store that is ready.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use fence_protocol::{Invalid, Namespace};
use service_kit::Kit;
use service_kit::redis_link::{RedisTarget, without_password};

use super::FenceStore;
use super::embedded::EmbeddedStore;
use super::memory::MemoryStore;
use super::redis::RedisStore;
use crate::commit::FolderError;

/// Which store: `memory:`, `embedded:DIR` or `redis://host:port`.
///
/// Its text hides passwords.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// Everything in memory; a restart forgets it.
    Memory,
    /// One redb file in this folder.
    Embedded(PathBuf),
    /// One Redis, version 7 or later.
    Redis(RedisTarget),
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
        if text.starts_with("redis://") {
            return text.parse().map(Self::Redis).map_err(
                |error: service_kit::redis_link::TargetError| {
                    Invalid::new("store", "redis://…", format!("cannot be used: {error}"))
                },
            );
        }
        Err(refuse("is not known; write memory:, embedded:DIR or redis://HOST:PORT"))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Embedded(folder) => write!(f, "embedded:{}", folder.display()),
            Self::Redis(target) => target.fmt(f),
        }
    }
}

/// A store that cannot be used: which, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Redis.
    #[error("{0}")]
    Redis(String),
}

/// Opens the store of `url` and lets it prove what it guarantees. `kit` gives it tasks, and a
/// place to say when it fails.
///
/// # Errors
/// [`OpenError`], a sentence with the path or address and what to do.
pub async fn open(
    url: &StoreUrl,
    namespace: &Namespace,
    kit: &Kit,
) -> Result<Arc<dyn FenceStore>, OpenError> {
    match url {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
        StoreUrl::Embedded(folder) => Ok(Arc::new(EmbeddedStore::open(folder, &kit.health)?)),
        StoreUrl::Redis(target) => {
            let store = RedisStore::open(target.clone(), namespace, kit).await;
            Ok(Arc::new(store.map_err(OpenError::Redis)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for good in ["memory:", "embedded:data", "embedded:/var/lib/x", "redis://127.0.0.1:6379"] {
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

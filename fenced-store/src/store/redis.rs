//! The store in a Redis that exists already: one Lua script does check, raise and effect.
//!
//! All keys of a namespace share the hash tag `{fence:<namespace>}`, so that marks and data are in
//! one slot whatever the rules map where. (A tag for each lock would spread over a cluster, but an
//! object would move, and be lost, when its rule is changed.) The marks are one hash, which nothing
//! but a FLUSH or an eviction removes; the start-up probe refuses a Redis that may evict it.
//!
//! The guard itself remembers nothing: any number of guards before one Redis are as safe as one.

use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Namespace};
use redis::{Cmd, Value};
use service_kit::Kit;
use service_kit::redis_link::{LinkError, LinkOptions, RedisLink, RedisTarget};

use super::{FenceList, FenceQuery, FenceStore, Fences, Operation, Outcome, StoreError};
use crate::etag::Condition;
use crate::guard::{Fence, Mark};

mod probe;
mod reply;
mod scripts;
mod verify;

use scripts::Scripts;

/// Marks and objects in one Redis.
#[derive(Debug)]
pub struct RedisStore {
    link: RedisLink,
    scripts: Arc<Scripts>,
    keys: Keys,
}

/// The names of the keys of one namespace.
#[derive(Clone, Debug)]
struct Keys {
    prefix: String,
    marks: String,
    locks: String,
}

impl Keys {
    fn new(namespace: &Namespace, folder: &str) -> Self {
        let prefix = format!("{{fence:{namespace}}}:{folder}:");
        Self { marks: format!("{prefix}marks"), locks: format!("{prefix}locks"), prefix }
    }

    fn object(&self, key: &str) -> String {
        format!("{}object:{key}", self.prefix)
    }
}

impl RedisStore {
    /// Connects, judges the Redis, and shows by a probe that its scripts are atomic.
    ///
    /// # Errors
    /// A sentence with the address, why this Redis cannot be used, and what to do.
    pub async fn open(
        target: RedisTarget,
        namespace: &Namespace,
        kit: &Kit,
    ) -> Result<Self, String> {
        let scripts = Arc::new(Scripts::new());
        let verifier = verify::GuardVerifier::new(Arc::clone(&scripts), kit.health.clone());
        let options = LinkOptions::default();
        let link =
            RedisLink::start(target.clone(), options, Arc::new(verifier), &kit.tasks).await?;
        verify::follow(&link, kit);
        probe::probe(&target, options.connect_timeout, namespace, &scripts).await?;
        Ok(Self { link, scripts, keys: Keys::new(namespace, "guard") })
    }

    async fn run(&self, command: Cmd) -> Result<Value, StoreError> {
        self.link.call(&command).await.map_err(|error| match error {
            LinkError::Down(_) => StoreError::Unavailable(error.to_string()),
            // A script of ours writes nothing before the last thing that can fail.
            LinkError::Server { .. } => StoreError::Unavailable(error.to_string()),
            LinkError::Unknown(_) => StoreError::Unknown(error.to_string()),
        })
    }

    /// As `run`, for what only looks: a lost reply is then simply no answer.
    async fn look(&self, command: Cmd) -> Result<Value, StoreError> {
        self.run(command).await.map_err(|error| match error {
            StoreError::Unknown(text) => StoreError::Unavailable(text),
            other => other,
        })
    }
}

#[async_trait]
impl Fences for RedisStore {
    fn guarantee(&self) -> Guarantee {
        // `open` fails where the probe did not show it.
        Guarantee::Atomic
    }

    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError> {
        let command = self.scripts.seal(&self.keys, &fence);
        reply::outcome(self.run(command).await?, Some(&fence))
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(&self.keys.marks).arg(lock.as_str());
        reply::mark(self.look(command).await?)
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let command = self.scripts.list(&self.keys, &query);
        reply::page(self.look(command).await?, query.limit)
    }
}

#[async_trait]
impl FenceStore for RedisStore {
    async fn apply(
        &self,
        fence: Option<Fence>,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        let command = self.scripts.apply(&self.keys, fence.as_ref(), &operation);
        reply::outcome(self.run(command).await?, fence.as_ref())
    }
}

/// A condition as the scripts read it: its kind, the number of tags, the tags.
fn add_condition(command: &mut Cmd, condition: &Condition) {
    let (kind, tags) = match condition {
        Condition::None => ("none", &[][..]),
        Condition::Exists => ("exists", &[][..]),
        Condition::Absent => ("absent", &[][..]),
        Condition::AnyOf(tags) => ("any-of", &tags[..]),
        Condition::NoneOf(tags) => ("none-of", &tags[..]),
    };
    command.arg(kind).arg(tags.len());
    for tag in tags {
        command.arg(tag.as_str());
    }
}

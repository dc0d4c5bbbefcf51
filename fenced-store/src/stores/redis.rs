//! Store in an existing Redis: one Lua script does check, raise and effect.
//!
//! All keys of a namespace share the hash tag `{fence:<namespace>}`, so that marks and data are in
//! one slot whatever the rules. (A tag for each lock would spread over a cluster, but an object
//! would move, and be lost, when its rule is changed.) The marks are one hash, which only a FLUSH
//! or an eviction removes; the start-up probe refuses a Redis that may evict it.
//!
//! The guard keeps no state itself: many guards before one Redis are as safe as one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use redis_link::{LinkError, LinkOptions, LinkState, RedisLink, RedisTarget};
use service_kit::Kit;

use super::contract::{
    FenceList, FenceOutcome, FenceQuery, FenceStore, Fences, Once, Operation, StoreError,
};
use super::report::StoreReport;
use crate::fail_points::{FailPoint, FailPoints};
use crate::verdict::{Fence, Mark};

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod gaps;
pub(crate) mod lanes;
pub(crate) mod preempt;
mod probe;
pub(crate) mod reply;
pub(crate) mod scripts;
mod state;
mod verify;

use preempt::Registration;
use reply::ScriptReply;
use scripts::Scripts;
pub(crate) use state::GuardState;
pub use state::LostMarks;
pub(crate) use verify::judge;

/// Maximum number of attempts of an operation that meets lower connections, or a state to be
/// verified again.
const TRIES: usize = 8;

/// Reason of a refusal that persists although Redis is verified.
const UNVERIFIED: &str = "the mark of this lock in Redis was changed by another program; state a floor above \
                          every token that was issued: POST /v1/floor";

/// Time that a new floor may wait for an unreachable Redis.
const FLOOR_WITHIN: Duration = Duration::from_secs(5);

/// Marks and objects in one Redis.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// Marks of one Redis, shared by the objects and the port.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: RedisLink,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) keys: Keys,
    pub(crate) state: Arc<GuardState>,
    pub(crate) fail_points: FailPoints,
}

/// Options of the Redis behind a guard.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisOptions {
    /// Treatment of a Redis that has lost marks.
    pub lost_marks: LostMarks,
    /// First token to admit, stated at start.
    pub floor: Option<Token>,
    /// Points at which a test makes the guard fail.
    pub fail_points: FailPoints,
    /// Marks belong to data that is elsewhere: without `lost_marks: Accept`, a Redis is refused
    /// that may lose acknowledged writes in a crash.
    pub outlives_data: bool,
}

/// Names of the keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Begins every key of the guard.
    prefix: String,
    pub(crate) marks: String,
    pub(crate) locks: String,
    pub(crate) state: String,
}

impl Keys {
    pub(crate) fn new(namespace: &Namespace, folder: &str) -> Self {
        let prefix = format!("{{fence:{namespace}}}:{folder}:");
        Self {
            marks: format!("{prefix}marks"),
            locks: format!("{prefix}locks"),
            state: format!("{prefix}state"),
            prefix,
        }
    }

    /// Returns the key of the connections registered under `lock`.
    pub(crate) fn conns(&self, lock: &LockName) -> String {
        format!("{}conns:{lock}", self.prefix)
    }

    /// Returns the key of a lock's named operations.
    fn names(&self, lock: &str) -> String {
        format!("{}names:{lock}", self.prefix)
    }

    /// Stamps a probe's marks with its state's id.
    pub(crate) fn stamp(&self, state: &str) -> Cmd {
        let mut command = redis::cmd("HSET");
        command.arg(&self.marks).arg("#").arg(state);
        command
    }

    fn object(&self, key: &str) -> String {
        format!("{}object:{key}", self.prefix)
    }
}

impl RedisStore {
    /// Connects, checks the Redis, and probes that its scripts are atomic. Its keys are in
    /// `folder`.
    ///
    /// # Errors
    /// A sentence with the address, the reason and the remedy.
    pub(crate) async fn open(
        target: RedisTarget,
        namespace: &Namespace,
        folder: &str,
        options: RedisOptions,
        kit: &Kit,
    ) -> Result<Self, String> {
        let scripts = Arc::new(Scripts::new());
        let keys = Keys::new(namespace, folder);
        let state = Arc::new(GuardState::new(namespace, keys.clone(), options));
        if let Some(floor) = options.floor {
            state.state_floor(floor);
        }
        let verifier = verify::GuardVerifier::new(
            Arc::clone(&scripts),
            Arc::clone(&state),
            kit.health.clone(),
        );
        let link_options = LinkOptions::default();
        let link =
            RedisLink::start(target.clone(), link_options, Arc::new(verifier), &kit.tasks).await?;
        verify::follow(&link, kit);
        probe::probe(&target, link_options.connect_timeout, namespace, &scripts).await?;
        let fail_points = options.fail_points;
        Ok(Self { shared: Arc::new(Shared { link, scripts, keys, state, fail_points }) })
    }

    /// Returns the state that the port shares with the objects.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    /// Runs a fenced operation; ends lower connections first if it meets any.
    ///
    /// # Errors
    /// As [`FenceStore::apply`].
    pub(crate) async fn fenced(
        &self,
        fence: Option<&Fence>,
        command: impl Fn(&str) -> Cmd + Send + Sync,
    ) -> Result<FenceOutcome, StoreError> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let generation = self.link.generation();
            let value = self.run(command(&self.state.id())).await?;
            match (reply::parse(value, fence)?, fence) {
                (ScriptReply::Done(outcome), Some(fence)) => {
                    if outcome.mark().is_some() {
                        self.state.remember(fence);
                    }
                    return Ok(outcome);
                }
                (ScriptReply::Done(outcome), None) => return Ok(outcome),
                (ScriptReply::Sealing, Some(fence)) => match self.settle(&fence.lock).await {
                    Ok(()) => {}
                    Err(reason) => {
                        last =
                            format!("connections with lower tokens could not be ended: {reason}");
                    }
                },
                (ScriptReply::Sealing | ScriptReply::Unverified, _) => {
                    UNVERIFIED.clone_into(&mut last);
                    let verified = self.link.verify_again(generation).await;
                    verified.map_err(|error| StoreError::Unavailable(error.to_string()))?;
                }
            }
        }
        Err(StoreError::Unavailable(last))
    }

    /// Raises the mark without any other effect.
    ///
    /// # Errors
    /// As [`Fences::seal`].
    pub(crate) async fn seal(&self, fence: &Fence) -> Result<FenceOutcome, StoreError> {
        self.fenced(Some(fence), |state| self.scripts.seal(&self.keys, state, fence)).await
    }

    /// Ends the connections registered below the mark of `lock`.
    ///
    /// # Errors
    /// A sentence; the next operation on the lock continues.
    pub(crate) async fn settle(&self, lock: &LockName) -> Result<(), String> {
        let mut pinned = self.link.pinned().map_err(|error| error.to_string())?;
        preempt::settle(&mut pinned, &self.scripts, &self.keys, lock, &self.fail_points).await
    }

    /// Sets the floor at the next verification of Redis, awaits that, and returns the floor in
    /// force: a higher one stays.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; the floor is then set as soon as Redis is usable.
    async fn state_floor(&self, floor: Token) -> Result<Token, StoreError> {
        let unavailable = |reason: String| {
            StoreError::Unavailable(format!(
                "{reason}; the floor {floor} will be set as soon as Redis is usable"
            ))
        };
        self.state.state_floor(floor);
        for _ in 0..TRIES {
            let generation = self.link.generation();
            if generation > 0 {
                let verified = self.link.verify_again(generation).await;
                verified.map_err(|error| unavailable(error.to_string()))?;
            } else {
                let mut states = self.link.watch();
                let up = states.wait_for(|state| matches!(state, LinkState::Up(_)));
                let up = tokio::time::timeout(FLOOR_WITHIN, up).await;
                up.map_err(|_| unavailable("Redis is still not usable".to_owned()))?
                    .map_err(|error| unavailable(error.to_string()))?;
            }
            if let Some(floor) = self.state.floor_in_force() {
                return Token::new(floor).map_err(|error| unavailable(error.to_string()));
            }
        }
        Err(unavailable("Redis had to be verified too often".to_owned()))
    }

    /// Removes ended connections from the registry.
    ///
    /// # Errors
    /// A sentence; the caller may retry.
    pub(crate) async fn retire(&self, registrations: &[&Registration]) -> Result<(), String> {
        self.fail_points.reached(FailPoint::BeforeRetire);
        let mut pinned = self.link.pinned().map_err(|error| error.to_string())?;
        preempt::retire(&mut pinned, &self.scripts, &self.keys, registrations).await
    }

    async fn run(&self, command: Cmd) -> Result<Value, StoreError> {
        self.link.call(&command).await.map_err(|error| match error {
            LinkError::Down(_) => StoreError::Unavailable(error.to_string()),
            // Our scripts write only after the last command that can fail.
            LinkError::Server { .. } => StoreError::Unavailable(error.to_string()),
            LinkError::Unknown(_) => StoreError::Unknown(error.to_string()),
        })
    }

    /// Runs a command without effect: a lost reply means `Unavailable`, not `Unknown`.
    async fn run_read(&self, command: Cmd) -> Result<Value, StoreError> {
        let reply = self.link.call(&command).await;
        reply.map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

#[async_trait]
impl Fences for RedisStore {
    fn guarantee(&self) -> Guarantee {
        // `open` fails if the probe did not show it.
        Guarantee::Atomic
    }

    fn report(&self) -> StoreReport {
        let mut gaps = self.shared.state.gaps();
        gaps.inherent.splice(..0, gaps::target_gap(self.shared.link.target()));
        StoreReport {
            kind: "redis",
            target: self.shared.link.target().to_string(),
            guarantee: self.guarantee(),
            probe: "its scripts refused stale and colliding tokens, and in races of many leases \
                    over several connections one lease won each token"
                .to_owned(),
            gaps,
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&self.shared.keys.state).arg("highest").arg("floor");
        reply::highest(self.shared.run_read(command).await?)
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.shared.seal(&fence).await
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        self.shared.state_floor(floor).await.map(Some)
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(&self.shared.keys.marks).arg(lock.as_str());
        reply::mark(self.shared.run_read(command).await?)
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let command = self.shared.scripts.list(&self.shared.keys, &query);
        reply::page(self.shared.run_read(command).await?, query.limit)
    }
}

#[async_trait]
impl FenceStore for RedisStore {
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        let shared = &*self.shared;
        let fence = fence.as_ref();
        let once = once.as_ref();
        let command =
            |state: &str| shared.scripts.apply(&shared.keys, state, fence, &operation, once);
        shared.fenced(fence, command).await
    }
}

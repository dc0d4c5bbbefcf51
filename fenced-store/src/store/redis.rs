//! The store in a Redis that exists already: one Lua script does check, raise and effect.
//!
//! All keys of a namespace share the hash tag `{fence:<namespace>}`, so that marks and data are in
//! one slot whatever the rules map where. (A tag for each lock would spread over a cluster, but an
//! object would move, and be lost, when its rule is changed.) The marks are one hash, which nothing
//! but a FLUSH or an eviction removes; the start-up probe refuses a Redis that may evict it.
//!
//! The guard itself remembers nothing: any number of guards before one Redis are as safe as one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Namespace, Token};
use redis::{Cmd, Value};
use redis_link::{LinkError, LinkOptions, LinkState, RedisLink, RedisTarget};
use service_kit::Kit;

use super::{
    FenceList, FenceQuery, FenceStore, Fences, Once, Operation, Outcome, StoreError, StoreReport,
};
use crate::etag::Condition;
use crate::fail_points::{FailPoint, FailPoints};
use crate::verdict::{Fence, Mark};

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod gaps;
pub(crate) mod preempt;
mod probe;
pub(crate) mod reply;
pub(crate) mod scripts;
mod state;
mod verify;

use preempt::Registration;
use reply::Step;
use scripts::Scripts;
pub(crate) use state::GuardState;
pub use state::LostMarks;
pub(crate) use verify::judge;

/// How often an operation is tried when it finds lower connections to be ended, or a state that
/// has to be verified again.
const TRIES: usize = 8;

/// Why an operation is refused again and again although Redis is verified.
const UNVERIFIED: &str = "the mark of this lock in Redis is not as it was left; state a floor above \
                          every token that was issued: POST /v1/floor";

/// How long a floor that was stated may wait for a Redis that is down.
const FLOOR_WITHIN: Duration = Duration::from_secs(5);

/// Marks and objects in one Redis.
#[derive(Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// What the objects and the port before one Redis share: the marks.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: RedisLink,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) keys: Keys,
    pub(crate) state: Arc<GuardState>,
    pub(crate) fail_points: FailPoints,
}

/// How a guard treats the Redis behind it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisOptions {
    /// What becomes of marks that Redis has lost.
    pub lost_marks: LostMarks,
    /// The first token to be admitted, where an operator states it at the start.
    pub floor: Option<Token>,
    /// Where a test makes the guard fail.
    pub fail_points: FailPoints,
}

/// The names of the keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
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

    /// Where the port's connections are registered under `lock`.
    pub(crate) fn conns(&self, lock: &LockName) -> String {
        format!("{}conns:{lock}", self.prefix)
    }

    /// What is kept of the operations that were named, of one lock.
    fn names(&self, lock: &str) -> String {
        format!("{}names:{lock}", self.prefix)
    }

    /// Makes the marks of a probe belong to its state.
    pub(crate) fn stamp(&self, state: &str) -> Cmd {
        let mut command = redis::cmd("HSET");
        command.arg(&self.marks).arg("#").arg(state);
        command
    }

    /// What every key of the guard begins with.
    fn prefix(&self) -> &str {
        &self.prefix
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
        options: RedisOptions,
        kit: &Kit,
    ) -> Result<Self, String> {
        let scripts = Arc::new(Scripts::new());
        let keys = Keys::new(namespace, "guard");
        let state = Arc::new(GuardState::new(namespace, keys.clone(), options.lost_marks));
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

    /// What the port shares with the objects.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Shared {
    /// Runs a fenced operation; ends lower connections first where it meets some.
    ///
    /// # Errors
    /// As [`FenceStore::apply`].
    pub(crate) async fn fenced(
        &self,
        fence: Option<&Fence>,
        command: impl Fn(&str) -> Cmd + Send + Sync,
    ) -> Result<Outcome, StoreError> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let generation = self.link.generation();
            let value = self.run(command(&self.state.id())).await?;
            match (reply::step(value, fence)?, fence) {
                (Step::Done(outcome), Some(fence)) => {
                    if outcome.mark().is_some() {
                        self.state.remember(fence);
                    }
                    return Ok(outcome);
                }
                (Step::Done(outcome), None) => return Ok(outcome),
                (Step::Sealing, Some(fence)) => match self.settle(&fence.lock).await {
                    Ok(()) => {}
                    Err(reason) => {
                        last =
                            format!("connections with lower tokens could not be ended: {reason}");
                    }
                },
                (Step::Sealing | Step::Unverified, _) => {
                    UNVERIFIED.clone_into(&mut last);
                    let verified = self.link.verify_again(generation).await;
                    verified.map_err(|error| StoreError::Unavailable(error.to_string()))?;
                }
            }
        }
        Err(StoreError::Unavailable(last))
    }

    /// Raises the mark and nothing else.
    ///
    /// # Errors
    /// As [`Fences::seal`].
    pub(crate) async fn seal(&self, fence: &Fence) -> Result<Outcome, StoreError> {
        self.fenced(Some(fence), |state| self.scripts.seal(&self.keys, state, fence)).await
    }

    /// Ends what is registered below the mark of `lock`.
    ///
    /// # Errors
    /// A sentence; the next one who meets the lock goes on.
    pub(crate) async fn settle(&self, lock: &LockName) -> Result<(), String> {
        let mut pinned = self.link.pinned().map_err(|error| error.to_string())?;
        preempt::settle(&mut pinned, &self.scripts, &self.keys, lock, &self.fail_points).await
    }

    /// Has the floor stated when Redis is verified next, awaits that, and says which floor is in
    /// force: a higher one stays.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; the floor is then stated as soon as Redis is usable.
    async fn state_floor(&self, floor: Token) -> Result<Token, StoreError> {
        let unavailable = |reason: String| {
            StoreError::Unavailable(format!(
                "{reason}; the floor {floor} is stated as soon as Redis is usable"
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
        Err(unavailable("Redis is verified again and again".to_owned()))
    }

    /// Takes connections that are not used any more out of the registry.
    ///
    /// # Errors
    /// A sentence; it can be tried again.
    pub(crate) async fn retire(&self, registrations: &[&Registration]) -> Result<(), String> {
        self.fail_points.reached(FailPoint::BeforeRetire);
        let mut pinned = self.link.pinned().map_err(|error| error.to_string())?;
        preempt::retire(&mut pinned, &self.scripts, &self.keys, registrations).await
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

    fn report(&self) -> StoreReport {
        StoreReport {
            kind: "redis",
            target: self.shared.link.target().to_string(),
            guarantee: self.guarantee(),
            probe: "its scripts refused stale and colliding tokens, and of many leases that raced \
                    over several connections one won each token"
                .to_owned(),
            gaps: gaps::of_target(self.shared.link.target())
                .into_iter()
                .chain(self.shared.state.gaps())
                .collect(),
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(&self.shared.keys.state).arg("highest").arg("floor");
        reply::highest(self.shared.look(command).await?)
    }

    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError> {
        self.shared.seal(&fence).await
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        self.shared.state_floor(floor).await.map(Some)
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(&self.shared.keys.marks).arg(lock.as_str());
        reply::mark(self.shared.look(command).await?)
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        let command = self.shared.scripts.list(&self.shared.keys, &query);
        reply::page(self.shared.look(command).await?, query.limit)
    }
}

#[async_trait]
impl FenceStore for RedisStore {
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<Outcome, StoreError> {
        let (shared, fence, once) = (&*self.shared, fence.as_ref(), once.as_ref());
        let command =
            |state: &str| shared.scripts.apply(&shared.keys, state, fence, &operation, once);
        shared.fenced(fence, command).await
    }
}

/// A condition as the scripts read it: its kind, the number of tags, the tags.
fn add_condition(command: &mut Cmd, condition: &Condition) {
    let (kind, tags) = condition.parts();
    command.arg(kind).arg(tags.len());
    for tag in tags {
        command.arg(tag.as_str());
    }
}

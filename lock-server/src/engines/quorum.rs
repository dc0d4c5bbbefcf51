//! Leases in a quorum of independent Redis nodes: 3 or 5, of which one or two may fail.
//!
//! A grant is a majority of votes for the same lease and token; the rules are in [`rules`], the
//! nodes' part of them in `quorum/*.lua`. This module asks the nodes (`round`), proposes
//! (`propose`), keeps who waits here in order (`queue`, `acquire`), and keeps the nodes one quorum
//! (`membership`, `plan`). Any number of lock servers may use the same nodes.

mod acquire;
mod calls;
mod counters;
mod current;
mod effects;
mod ending;
mod init;
mod listing;
mod membership;
mod nodes;
mod plan;
mod propose;
mod queue;
mod refused;
pub mod replies;
mod round;
pub mod rules;
mod run_ids;
pub mod scripts;
mod shown;
mod silence;
mod url;
mod verify;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Token, Ttl};
use redis_link::RedisLink;
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::tasks::Tasks;

use self::calls::Calls;
use self::counters::Counters;
use self::current::Current;
use self::membership::Membership;
use self::membership::drive::Driver;
use self::nodes::{Node, Notes};
use self::queue::Queues;
use self::rules::{BUCKETS, Members, majority};
use self::run_ids::Runs;
use self::scripts::{Keys, Scripts};
use self::verify::NodeVerifier;
use super::options::StoreOptions;
use crate::guards::Guards;
use crate::store::figures::StoreTimes;
use crate::store::{Acquire, Grant, ListQuery, LockStore, Revoke, StoreError};

pub use self::init::init_fresh;
pub use self::url::QuorumUrl;

/// Name of the store in errors and logs.
const NAME: &str = "redis-quorum";
/// Time in which the nodes must agree on one view, if they are found in several.
const VIEW_PATIENCE: Duration = Duration::from_millis(500);
/// Time for which a start waits for a majority, beyond the time-out of a connection.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The `redis-quorum:` store. Cheap to clone.
#[derive(Clone)]
pub struct QuorumStore {
    inner: Arc<QuorumInner>,
}

struct QuorumInner {
    nodes: Vec<Arc<Node>>,
    scripts: Arc<Scripts>,
    membership: Arc<Membership>,
    queues: Queues,
    counters: Counters,
    times: StoreTimes,
    options: StoreOptions,
    /// Highest token that a guard has seen: every token proposed here is above it.
    floor: AtomicU64,
    renewals: ending::Renewals,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl fmt::Debug for QuorumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumStore").field("nodes", &self.inner.nodes).finish_non_exhaustive()
    }
}

impl QuorumStore {
    /// Connects to the nodes, makes them one quorum, and starts what runs in the background. Where
    /// a majority answers and does not vote yet, it starts and is not ready.
    ///
    /// # Errors
    /// A sentence where fewer than a majority answer, with each node's reason, and where two URLs
    /// lead to one node.
    pub async fn start(
        url: &QuorumUrl,
        options: StoreOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let mark = guards.marks().await.highest;
        let store = Self::prepare(url, options, guards, false, kit);
        store.majority_answers().await?;
        if let Some(mark) = mark {
            // It is noted here first: a quorum that is not ready yet is lifted by the next
            // proposal.
            if let Err(error) = store.lift_counters(mark).await {
                tracing::warn!(%mark, %error, "the nodes were not lifted above a guard's mark yet");
            }
        }
        Ok(store)
    }

    fn prepare(
        url: &QuorumUrl,
        options: StoreOptions,
        guards: Guards,
        is_fresh: bool,
        kit: &Kit,
    ) -> Self {
        let targets = url.targets();
        let scripts = Scripts::new(Keys::new(&options.key_prefix, &options.namespace));
        let scripts = Arc::new(scripts);
        let counters = Counters::new(kit);
        let names = targets.iter().map(ToString::to_string).collect();
        let membership = Membership::new(names, counters.clone(), kit.health.clone());
        let membership = Arc::new(membership);
        let runs = Arc::new(Runs::new(targets.len()));
        let node = |(index, target): (usize, &redis_link::RedisTarget)| {
            let notes = Arc::new(Notes::new(usize::from(BUCKETS)));
            let verifier = NodeVerifier {
                index,
                scripts: scripts.clone(),
                notes: notes.clone(),
                runs: runs.clone(),
                membership: membership.clone(),
            };
            let target = target.clone();
            let verifier = Arc::new(verifier);
            let link = RedisLink::start_lazily(target, options.link, verifier, &kit.tasks);
            let calls = Calls::new(index, link.clone(), scripts.clone(), kit.tasks.clone());
            Arc::new(Node { index, link, calls: Arc::new(calls), notes })
        };
        let nodes: Vec<Arc<Node>> = targets.iter().enumerate().map(node).collect();
        runs.follow(nodes.iter().map(|node| node.link.watch()).collect());
        let clock = kit.clock.clone();
        let tasks = kit.tasks.clone();
        let driver = Driver {
            membership: membership.clone(),
            nodes: nodes.clone(),
            scripts: scripts.clone(),
            clock: clock.clone(),
            guards,
            is_fresh,
        };
        tasks.spawn(driver.run(tasks.shutdown_token()));
        let queues = Queues::default();
        let floor = AtomicU64::new(0);
        let renewals = ending::Renewals::new();
        let inner = QuorumInner {
            nodes,
            scripts,
            membership,
            queues,
            counters,
            times: StoreTimes::new(&kit.metrics),
            options,
            floor,
            renewals,
            clock,
            tasks,
        };
        let store = Self { inner: Arc::new(inner) };
        store.listen();
        store
    }

    /// Starts the background work.
    fn listen(&self) {
        let tasks = &self.inner.tasks;
        let stop = self.inner.tasks.shutdown_token();
        for node in &self.inner.nodes {
            let store = self.clone();
            let node = node.clone();
            let stop = stop.clone();
            tasks.spawn(async move {
                stop.run_until_cancelled(wake::listen(store, node)).await;
            });
        }
        let store = self.clone();
        tasks.spawn(async move {
            stop.run_until_cancelled(store.follow()).await;
        });
    }

    /// Waiters retry whenever a majority is reachable again.
    async fn follow(&self) {
        let mut probes = self.inner.membership.probes();
        let mut before = 0;
        while probes.changed().await.is_ok() {
            let (voting, _) = self.inner.membership.summary();
            if voting > before {
                wake::wake_all(self);
            }
            before = voting;
        }
    }

    /// Waits until a majority votes, or says why it does not.
    async fn majority_answers(&self) -> Result<(), String> {
        let needed = majority(self.inner.nodes.len());
        let patience = self.inner.options.link.connect_timeout + START_PATIENCE;
        let ready = async {
            let mut probes = self.inner.membership.probes();
            loop {
                if let Some(text) = self.inner.membership.duplicate() {
                    return Err(text);
                }
                // The last of them may turn out to be one of the others.
                let tried = self.inner.nodes.iter().all(|node| node.link.was_tried());
                if tried && self.inner.membership.summary().0 >= needed {
                    return Ok(());
                }
                if probes.changed().await.is_err() {
                    return Err("the lock server is shutting down".to_owned());
                }
            }
        };
        if let Ok(ready) = tokio::time::timeout(patience, ready).await {
            return ready;
        }
        let up = |node: &&Arc<Node>| node.link.generation() > 0;
        let answering = self.inner.nodes.iter().filter(up).count();
        let (_, reasons) = self.inner.membership.summary();
        if answering >= needed {
            tracing::warn!(reasons, "the quorum does not grant yet");
            return Ok(());
        }
        Err(format!(
            "{answering} of the quorum's {} nodes can be used, and {needed} are needed: {reasons}",
            self.inner.nodes.len()
        ))
    }

    fn now_ms(&self) -> u64 {
        self.inner.clock.monotonic_ms()
    }

    fn queues(&self) -> &Queues {
        &self.inner.queues
    }

    /// The view to ask under.
    fn current(&self) -> Result<Arc<Current>, StoreError> {
        self.inner.membership.current().ok_or_else(|| {
            let (_, reasons) = self.inner.membership.summary();
            StoreError::Unavailable(format!("the quorum has not begun: {reasons}"))
        })
    }

    fn adopt_view(&self, number: u64, members: Members) {
        self.inner.membership.learn(number, members);
    }
}

#[async_trait]
impl LockStore for QuorumStore {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        self.acquire_one(request).await
    }

    async fn acquire_all(&self, mut parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        match parts.len() {
            0 => Ok(Vec::new()),
            1 => {
                let part = parts.swap_remove(0);
                let lock = part.lock.clone();
                match self.acquire_one(part).await {
                    Ok(grant) => Ok(vec![grant]),
                    Err(error @ StoreError::NotOffered { .. }) => Err(error),
                    Err(refusal) => Err(StoreError::Part { lock, refusal: Box::new(refusal) }),
                }
            }
            _ => Err(refused::not_offered("several locks in one step")),
        }
    }

    async fn renew_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.renew_lease(principal, lock, lease, ttl).await
    }

    async fn release_as(
        &self,
        principal: Option<&str>,
        lock: &LockName,
        lease: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.release_lease(principal, lock, lease).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.revoke_lease(lock, revoke).await
    }

    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError> {
        self.mint_token(lock).await
    }

    async fn floor(&self) -> Result<Token, StoreError> {
        self.floor_of_all_buckets().await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        self.show_lock(lock).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.list_locks(query).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.lift_counters(mark).await.map(drop)
    }

    fn name(&self) -> &'static str {
        NAME
    }
}

/// A random number below `bound`; 0 where that is 0.
fn random_below(bound: u64) -> u64 {
    let random = u64::from_str_radix(&service_kit::ids::random_hex(7), 16).unwrap_or(0);
    random.checked_rem(bound).unwrap_or(0)
}

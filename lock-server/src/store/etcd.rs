//! Leases in etcd: a lock is held where its key exists, and its token is the revision that created
//! the key.
//!
//! etcd is talked to through its JSON gateway (`gateway`), because that needs no generated code.
//! Keys are under `fencepost/<namespace>/`:
//!
//! | key | what | hangs on |
//! | --- | --- | --- |
//! | `meta` | the offset of the tokens, and which cluster it was made for | nothing |
//! | `m` | written for the revision that a minted token is made of | nothing |
//! | `h/<lock>` | the live lease | an etcd lease of its own, or its session's |
//! | `r/<lock>` | the ids that were granted and ended lately | an etcd lease that lives longer |
//! | `q/<lock>!<lease id>` | a place in the queue, in the order of `create_revision` | the etcd lease of the server that its caller is connected to |
//! | `l/<id>`, `s/<id>` | a session lives; it serves | its own etcd lease |
//! | `S/<id>` | what is known of a session | an etcd lease that outlives it |
//! | `b/<id>/<lock>!<lease id>` | a lease or waiting request of a session | the session's etcd lease; that of the waiter's place |
//!
//! Every transition is one transaction that compares the revisions of what it was decided by:
//! nothing is locked between reading and writing, and whoever comes second reads again.
//!
//! What it costs, in round trips, where nobody else is at the same lock: an acquire 2 (the view of
//! the lock and both etcd leases at the same time, then the transaction), a renewal 1 (transaction
//! and both keepalives at the same time), a release 1. A server that did not grant or renew the
//! lease itself reads first: 1 more. Why it is as it is stands in docs/decisions/0039-etcd.md.

mod acquire;
mod alive;
mod background;
mod counter;
mod ending;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gateway;
mod granting;
mod identity;
mod keeper;
mod keys;
mod leases;
mod offset;
mod places;
mod renewing;
mod sessions;
mod shown;
mod sweep;
mod txn;
mod url;
mod values;
mod versions;
mod view;
mod waiting;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndReason, EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Namespace, Token, Ttl};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::login::StoreLogin;
use service_kit::tasks::Tasks;

use self::counter::{Counter, Occasion};
use self::gateway::{Gateway, GatewayError};
use self::granting::Unjudged;
use self::keeper::Keeper;
use self::keys::Keys;
use self::leases::Remembering;
use self::places::Places;
pub use self::url::EtcdTarget;
use super::{
    Acquire, Grant, Limits, ListQuery, LockStore, Mode, Revoke, StoreError, StoreOptions, Takeover,
};
use crate::guards::Guards;

/// The store's name.
const NAME: &str = "etcd";
/// How often a transition is tried anew that others were faster at.
const TRIES: usize = 32;

/// How the store talks to its etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Tenant.
    pub namespace: Namespace,
    /// Bounds.
    pub limits: Limits,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long one member may take to answer before the outcome is unknown.
    pub reply_timeout: Duration,
    /// For how long the waiters of a server that fell silent keep their places.
    pub liveness: Duration,
    /// User, password and certificates.
    pub login: StoreLogin,
}

impl EtcdOptions {
    /// Of what every store is told.
    pub fn of(options: &StoreOptions) -> Self {
        Self {
            namespace: options.namespace.clone(),
            limits: options.limits,
            connect_timeout: options.link.connect_timeout,
            reply_timeout: options.link.reply_timeout,
            liveness: options.liveness,
            login: options.login.clone(),
        }
    }
}

/// The `etcd://…` store. Cheap to clone.
#[derive(Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

struct Inner {
    gateway: Gateway,
    keys: Keys,
    counter: Counter,
    keeper: Arc<Keeper>,
    unjudged: Unjudged,
    remembering: Remembering,
    places: Places,
    watched: sessions::Watched,
    options: EtcdOptions,
    server_id: String,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("gateway", &self.inner.gateway).finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// Connects, verifies version and counter, and starts what runs in the background.
    ///
    /// # Errors
    /// A sentence where etcd cannot be reached or cannot be used.
    pub async fn start(
        target: &EtcdTarget,
        options: EtcdOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let gateway = gateway(target, &options)?;
        let keys = Keys::new(&options.namespace);
        versions::check(&gateway).await?;
        let keeper = Arc::new(Keeper::default());
        let counter = Counter::new(&keys, guards, keeper.clone(), kit);
        if let Err(error) = counter.verify(&gateway, Occasion::Start).await {
            return Err(background::with_leader(&gateway, error.to_string()).await);
        }
        let inner = Inner {
            gateway,
            keys,
            counter,
            keeper,
            unjudged: Unjudged::default(),
            remembering: Remembering::default(),
            places: Places::default(),
            watched: sessions::Watched::default(),
            options,
            server_id: service_kit::ids::random_hex(8),
            clock: kit.clock.clone(),
            tasks: kit.tasks.clone(),
        };
        let store = Self { inner: Arc::new(inner) };
        background::start(&store, kit.health.clone());
        Ok(store)
    }

    /// What the docs call something that this store cannot do.
    fn not_offered(what: &'static str) -> StoreError {
        StoreError::NotOffered { store: NAME, what }
    }

    fn now_ms(&self) -> u64 {
        self.inner.clock.monotonic_ms()
    }

    fn wall_ms(&self) -> u64 {
        self.inner.clock.wall_ms()
    }
}

fn gateway(target: &EtcdTarget, options: &EtcdOptions) -> Result<Gateway, String> {
    Gateway::new(target, &options.login, options.connect_timeout, options.reply_timeout)
}

/// Prepares a namespace that has never issued a token, and gives the lowest that it can issue.
///
/// # Errors
/// A sentence where it is not new, or where etcd cannot be used.
pub async fn init_fresh(
    target: &EtcdTarget,
    options: &EtcdOptions,
    guards: &Guards,
) -> Result<u64, String> {
    let gateway = gateway(target, options)?;
    versions::check(&gateway).await?;
    counter::init_fresh(&gateway, &Keys::new(&options.namespace), guards).await
}

/// What only other stores can do.
fn check(request: &Acquire) -> Result<(), StoreError> {
    if request.takeover != Takeover::Never {
        return Err(EtcdStore::not_offered("takeover"));
    }
    if request.mode != Mode::Exclusive {
        return Err(EtcdStore::not_offered("shared leases and permits"));
    }
    if request.lock_delay_ms > 0 {
        return Err(EtcdStore::not_offered("lock-delay"));
    }
    Ok(())
}

#[async_trait]
impl LockStore for EtcdStore {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        check(&request)?;
        if request.wait_ms > 0 {
            self.wait(request).await
        } else {
            self.acquire_now(&request).await
        }
    }

    async fn acquire_all(&self, mut parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        let Some(part) = parts.pop() else { return Ok(Vec::new()) };
        if !parts.is_empty() {
            return Err(Self::not_offered("several locks in one step"));
        }
        let lock = part.lock.clone();
        match self.acquire(part).await {
            Ok(grant) => Ok(vec![grant]),
            Err(error @ StoreError::NotOffered { .. }) => Err(error),
            Err(refusal) => Err(StoreError::Part { lock, refusal: Box::new(refusal) }),
        }
    }

    async fn renew(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.renew_lease(lock, lease, ttl).await
    }

    async fn release(&self, lock: &LockName, lease: LeaseId) -> Result<EndedReply, StoreError> {
        self.end_lease(lock, lease, EndReason::Released, None).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        self.revoke_lease(lock, revoke).await
    }

    async fn mint(&self, _lock: &LockName) -> Result<Token, StoreError> {
        self.mint_token().await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        self.show_lock(lock).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.list_locks(query).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.inner.counter.lift(&self.inner.gateway, mark).await
    }

    fn name(&self) -> &'static str {
        NAME
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds in whole seconds, rounded up.
fn secs(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}

/// What a failed call means for the operation that it carried.
fn store_error(error: GatewayError) -> StoreError {
    match error {
        GatewayError::Down(reason) => StoreError::Unavailable(reason),
        GatewayError::Unknown(reason) => StoreError::Unknown(format!(
            "whether etcd did it is not known ({reason}); repeat it with the same lease_id"
        )),
        GatewayError::Refused { message, .. } => {
            StoreError::Unavailable(format!("etcd refuses, and nothing was done: {message}"))
        }
    }
}

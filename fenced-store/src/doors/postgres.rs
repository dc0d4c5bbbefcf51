//! The PostgreSQL port: clients keep their driver and send their token as password, and the guard
//! relays to one database.
//!
//! Preempt and abort, as at the Redis port. Each client has a session of its own at the server,
//! which is registered under the client's tokens before a byte of the client is relayed
//! (`registry`). A higher token is admitted once every session registered below it has ended, and
//! with it its open transaction. So statements travel unchanged, and cost no more than behind a
//! plain proxy.
//!
//! ```text
//! client --- first packets, credential (client) ---> session at the server --- PostgreSQL
//!    ^                                                     ^
//!    '------ bytes both ways, one task (relay) ------------'
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{Code, Namespace, Token};
use service_kit::Kit;
use service_kit::tasks::Tasks;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::doors::tcp::front::{BoundDoor, CONNECTION, FrontSettings, ThreadedDoor};
use crate::fail_points::FailPoints;
use crate::guard::{Guard, RequestSummary};
use crate::lock_servers::LockServers;
use crate::stores::contract::{FenceOutcome, Fences};
use crate::verdict::{Fence, Mark};

mod admission;
mod cancel;
mod client;
mod counters;
mod fences;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod late_token;
mod login;
mod probe;
mod refusal;
mod registry;
mod relay;
mod roles;
mod server;
mod startup;
mod traffic;
mod upstream;
mod version;

use cancel::CancelKeys;
use counters::PortCounters;
use fences::DatabaseMarks;
use refusal::Refusal;
use registry::{NotAdmitted, Registry};
pub use server::ServerLogin;
pub use upstream::Upstream;

/// State of one thread of the port.
#[derive(Debug)]
pub(crate) struct PortThread {
    port: Arc<Port>,
    /// The thread's own connections to the registry: no wake-ups between threads.
    registry: Registry,
}

/// Settings of the port.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Address, threads and clients.
    pub front: FrontSettings,
    /// The database behind the port, with the guard's own login.
    pub upstream: Upstream,
    /// First token to be admitted, after marks were lost.
    pub floor: Option<Token>,
    /// Logins of clients with a token, at least one.
    pub writers: Vec<ServerLogin>,
    /// Role of clients without a token, who log in with its password.
    pub reader: Option<String>,
    /// Time that a client may take to log in.
    pub login_within: Duration,
    /// Points at which a test makes the guard stop or end.
    pub fail_points: FailPoints,
}

impl PortSettings {
    /// With the lock servers that the port asks for a floor if PostgreSQL loses marks.
    #[must_use]
    pub fn with_lock_servers(self, lock_servers: Option<LockServers>) -> Self {
        Self { upstream: self.upstream.with_lock_servers(lock_servers), ..self }
    }
}

/// State that all threads of the port share.
#[derive(Debug)]
pub(crate) struct Port {
    guard: Arc<Guard>,
    settings: PortSettings,
    cancels: CancelKeys,
    counters: PortCounters,
}

/// Probes the database behind the port, and returns its marks.
///
/// # Errors
/// A sentence.
pub(crate) async fn open_marks(
    settings: &PortSettings,
    namespace: &Namespace,
) -> Result<Arc<dyn Fences>, String> {
    let registry = Registry::new(settings, namespace, FailPoints::default());
    let probed = probe::probe(&registry, settings).await?;
    if let Some(floor) = settings.floor {
        let set = registry.set_floor(floor).await;
        set.map_err(|error| format!("--floor {floor} cannot be set: {error}"))?;
    }
    let registry = Registry::new(settings, namespace, settings.fail_points);
    Ok(Arc::new(DatabaseMarks::new(registry, probed)))
}

/// Probes the database behind the port, and checks that it is the one with the objects: a lock has
/// one mark.
///
/// # Errors
/// A sentence.
pub(crate) async fn check_store(
    settings: &PortSettings,
    namespace: &Namespace,
    database_id: Option<&str>,
) -> Result<(), String> {
    let registry = Registry::new(settings, namespace, FailPoints::default());
    probe::probe(&registry, settings).await?;
    let rows =
        registry.query("SELECT b.id::text || ' ' || b.tableoid::text FROM fence.meta b").await;
    let rows = rows.map_err(|error| error.to_string())?;
    match rows.first().and_then(|row| row.first()?.as_deref()) {
        id if id.is_some() && id == database_id => Ok(()),
        _ => Err("--postgres-upstream and --store name different databases: a lock has one mark; \
                  run two guards with locks of their own"
            .to_owned()),
    }
}

impl ThreadedDoor for Port {
    const NAME: &'static str = "PostgreSQL port";
    const THREAD: &'static str = "postgres-port";
    type Thread = PortThread;

    fn front(&self) -> &FrontSettings {
        &self.settings.front
    }

    fn tasks(&self) -> &Tasks {
        &self.guard.kit.tasks
    }

    fn thread(self: Arc<Self>) -> Rc<PortThread> {
        let registry = self.registry();
        Rc::new(PortThread { port: self, registry })
    }

    fn serve(
        thread: Rc<PortThread>,
        stream: TcpStream,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + 'static {
        client::serve(thread, stream, stop)
    }
}

impl BoundDoor<Port> {
    /// URL of the port, by its address.
    pub(crate) fn url(&self) -> Option<String> {
        let database = self.door.settings.upstream.database();
        Some(format!("postgres://{}/{database}", self.addr()?))
    }
}

impl Port {
    /// Makes a port before a database that was probed.
    pub(crate) fn new(guard: Arc<Guard>, settings: PortSettings, kit: &Kit) -> Arc<Self> {
        let counters = PortCounters::new(&kit.metrics);
        Arc::new(Self { guard, settings, cancels: CancelKeys::default(), counters })
    }

    fn registry(&self) -> Registry {
        Registry::new(&self.settings, &self.guard.fencing.namespace, self.settings.fail_points)
    }

    /// Counts a refusal by the fence in the guard's account.
    fn record_refusal(&self, fence: &Fence, refused: &NotAdmitted, refusal: &Refusal) {
        let (code, outcome) = match refused {
            NotAdmitted::Stale(mark) => (Code::StaleToken, FenceOutcome::Stale { mark: *mark }),
            NotAdmitted::Collision(mark) => {
                (Code::TokenCollision, FenceOutcome::Collision { mark: *mark })
            }
            NotAdmitted::OtherServer => return,
            NotAdmitted::Failed(error) => {
                tracing::warn!(lock = %fence.lock, "a session was not registered: {error}");
                return;
            }
        };
        self.guard.observer.passes(code, CONNECTION, &refusal.text());
        self.record_outcome(fence, outcome);
    }

    /// Counts a session that a higher token ended.
    fn record_preempted(&self, fence: &Fence, mark: Mark) {
        self.record_outcome(fence, FenceOutcome::Stale { mark });
    }

    fn record_outcome(&self, fence: &Fence, outcome: FenceOutcome) {
        let text = "a session of the PostgreSQL port".to_owned();
        let summary =
            RequestSummary { fence: Some(fence.clone()), kind: "postgres", text, owner: None };
        // The client gets the refusal in PostgreSQL's form.
        let _ = self.guard.account(&summary, Ok(outcome));
    }
}

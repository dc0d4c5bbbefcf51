//! A lock server with guards of its own.

use std::any::Any;

use fence_protocol::wire::lock::{LeaseReply, RevokedReply};
use fence_tests::api::{Endpoint, Locks, Reply, encode};
use fence_tests::etcd_server::Etcd;
use fence_tests::in_process::InProcess;
use fence_tests::key_file::{KeyFile, lease_id};
use fence_tests::postgres_server::Postgres;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Server, Setup};
use serde_json::{Value, json};

use super::guards::with_guards;

/// Store of a site's leases, and of the guards' marks where it can keep them; other marks are in
/// files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Embedded,
    Redis,
    Postgres,
    Etcd,
    Quorum,
}

pub(crate) const KINDS: [Kind; 2] = [Kind::Embedded, Kind::Redis];

/// A lock server that knows some guards, and signs for them. The guards are processes, which can be
/// killed and paused.
pub(crate) struct Site<S = InProcess> {
    pub(crate) server: S,
    pub(crate) guards: Vec<Server>,
    behind: Behind,
}

/// Servers are dropped before what they stand on.
struct Behind {
    _folders: Vec<DataDir>,
    _engine: Box<dyn Any + Send + Sync>,
    _keys: KeyFile,
}

/// Starts an engine; a file needs none.
async fn engine(kind: Kind) -> (Box<dyn Any + Send + Sync>, Option<String>) {
    fn kept<T: Any + Send + Sync>(
        engine: T,
        url: String,
    ) -> (Box<dyn Any + Send + Sync>, Option<String>) {
        (Box::new(engine), Some(url))
    }
    match kind {
        Kind::Embedded => (Box::new(()), None),
        Kind::Redis => {
            let redis = Redis::start().await;
            let url = redis.url();
            kept(redis, url)
        }
        Kind::Postgres => {
            let postgres = Postgres::start().await;
            let url = postgres.url();
            kept(postgres, url)
        }
        Kind::Etcd => {
            let etcd = Etcd::start().await;
            let url = etcd.url();
            kept(etcd, url)
        }
        Kind::Quorum => {
            let nodes = QuorumNodes::start(3).await;
            let url = nodes.url();
            kept(nodes, url)
        }
    }
}

impl Site {
    /// The lock server is in this process.
    pub(crate) async fn new(kind: Kind, guards: usize, args: &[&str]) -> Self {
        let site = Site::prepared(kind, guards, args).await;
        let server = site.server.in_process().await;
        site.with(server)
    }
}

impl Site {
    /// With another lock server on the same store, which is not embedded.
    pub(crate) async fn with_another(
        kind: Kind,
        guards: usize,
        args: &[&str],
    ) -> (Self, InProcess) {
        let site = Site::prepared(kind, guards, args).await;
        let server = site.server.in_process().await;
        let another = site.server.in_process().await;
        (site.with(server), another)
    }
}

impl Site<Server> {
    /// The lock server is a process.
    pub(crate) async fn with_socket(kind: Kind, guards: usize, args: &[&str]) -> Self {
        let site = Site::prepared(kind, guards, args).await;
        let server = site.server.start().await;
        site.with(server)
    }
}

impl Site<Setup> {
    async fn prepared(kind: Kind, guards: usize, args: &[&str]) -> Self {
        let (engine, url) = engine(kind).await;
        let keys = KeyFile::new("k1", 7);
        let mut folders = Vec::new();
        let mut file = || {
            folders.push(DataDir::new());
            folders[folders.len() - 1].store()
        };
        let leases = url.clone().unwrap_or_else(&mut file);
        let mut marks = || match (kind, &url) {
            (Kind::Redis | Kind::Postgres, Some(url)) => url.clone(),
            _ => file(),
        };
        let mut servers = Vec::new();
        for _ in 0..guards {
            let guard = Setup::fenced_store(&marks()).keys(&keys.path());
            servers.push(guard.start().await);
        }
        let bases: Vec<&str> = servers.iter().map(|guard| guard.base.as_str()).collect();
        let server = with_guards(&leases, &bases).keys(&keys.path()).args(args);
        Self {
            server,
            guards: servers,
            behind: Behind { _folders: folders, _engine: engine, _keys: keys },
        }
    }

    fn with<S>(self, server: S) -> Site<S> {
        Site { server, guards: self.guards, behind: self.behind }
    }
}

impl<S: Endpoint> Site<S> {
    pub(crate) fn locks(&self) -> Locks {
        Locks(self.server.api())
    }

    /// A write under this lease at one of the guards, which must be taken.
    pub(crate) async fn writes(&self, guard: usize, lease: &LeaseReply) {
        let reply = self.write(guard, lease).await;
        assert!(is_done(&reply), "{reply:?}");
    }

    /// A write under this lease at one of the guards.
    pub(crate) async fn write(&self, guard: usize, lease: &LeaseReply) -> Reply {
        let guard = self.guards[guard].guard();
        guard.put(lease.lock.as_str(), &lease.fencing_token, "data").await
    }
}

/// The first write of an object is 201, the next ones are 204.
pub(crate) fn is_done(write: &Reply) -> bool {
    matches!(write.status, 201 | 204)
}

/// `POST …/revoke` with any body.
pub(crate) async fn revoke(locks: &Locks, lock: &str, body: Value) -> Reply {
    locks.0.post(&format!("/v1/locks/{}/revoke", encode(lock)), &body).await
}

pub(crate) async fn revoked(locks: &Locks, lock: &str) -> RevokedReply {
    locks.revoke(lock, "the worker hangs").await.expect(200).read()
}

/// A request in the queue of a lock.
pub(crate) fn waiting(locks: &Locks, lock: &'static str) -> tokio::task::JoinHandle<Reply> {
    let locks = locks.clone();
    let body = json!({"ttl_ms": 60_000, "wait_ms": 60_000, "lease_id": lease_id()});
    tokio::spawn(async move { locks.acquire(lock, body).await })
}

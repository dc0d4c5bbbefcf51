//! Peers that are measured beside each other, and their processes.

use tempfile::TempDir;

use super::clients::{BATON, Commands, SCRIPTS, Target};
use crate::backing::Backing;
use crate::bench::http;
use crate::bench::load::Counted;
use crate::bench::redis::plain_address;
use crate::bench::server::Server;
use crate::own_redis::{OwnRedis, find, free_port};
use crate::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};

/// Settings of a Redis that keeps what it acknowledged, but for the last second.
pub(super) const EVERY_SECOND: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];
/// Settings of a Redis that keeps all that it acknowledged.
pub(super) const ALWAYS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// A Redis of the benchmark's own, or one that was given.
pub(super) struct Redis {
    url: String,
    own: Option<OwnRedis>,
    /// Namespaces that were used, to be deleted from a Redis that was given.
    backings: Vec<Backing>,
}

impl Redis {
    /// Starts one. It is killed when this is dropped.
    pub(super) async fn start(settings: &[&str]) -> Result<Self, Failure> {
        let own = OwnRedis::start_with("name one: --redis redis://HOST:PORT", settings).await?;
        Ok(Self { url: own.url().to_owned(), own: Some(own), backings: Vec::new() })
    }

    /// The Redis at `url`, which must reply.
    pub(super) async fn given(url: &str) -> Result<Self, Failure> {
        let url = format!("redis://{}", plain_address(url)?);
        let redis = Self { url, own: None, backings: Vec::new() };
        redis.backing()?.check().await?;
        Ok(redis)
    }

    fn backing(&self) -> Result<Backing, Failure> {
        let backing = Backing::redis(&self.url, "bench");
        backing.map_err(|error| Failure::usage(format!("--redis: {error}")))
    }

    /// A namespace of its own, so that servers do not see each other.
    fn namespace(&mut self) -> Result<String, Failure> {
        let backing = self.backing()?;
        let namespace = backing.namespace().to_owned();
        self.backings.push(backing);
        Ok(namespace)
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Its process; none where it was given, and may run anywhere.
    pub(super) fn counted(&self) -> Vec<Counted> {
        self.own.iter().map(|own| ("redis", own.pid())).collect()
    }

    /// Raw Redis with the two least scripts.
    pub(super) fn raw(&mut self) -> Result<Peer, Failure> {
        self.commands("raw Redis", SCRIPTS)
    }

    pub(super) fn baton(&mut self) -> Result<Peer, Failure> {
        self.commands("BLPOP baton", BATON)
    }

    fn commands(&mut self, name: &str, commands: Commands) -> Result<Peer, Failure> {
        let prefix = format!("{}/", self.namespace()?);
        let target = Target::Redis { urls: vec![self.url.clone()], prefix, commands };
        Ok(Peer::new(name, target, self.counted()))
    }

    /// The thin handler around the two scripts.
    pub(super) async fn thin_handler(&mut self) -> Result<Peer, Failure> {
        let prefix = format!("--prefix={}/", self.namespace()?);
        let role = ["bench-handler", "--redis", &self.url, &prefix];
        let server = Server::start_role("handler", &role).await?;
        Ok(Peer::served("thin handler on Redis", "handler", vec![server], self.counted()))
    }

    /// Lock servers of one namespace.
    pub(super) async fn lock_servers(
        &mut self,
        name: &str,
        count: usize,
        args: &[&str],
    ) -> Result<Peer, Failure> {
        let namespace = self.namespace()?;
        let args = [&["--namespace", &namespace], args].concat();
        Peer::lock_servers(name, count, &self.url, &args, self.counted()).await
    }

    /// Ends it, or deletes what was written where it was given.
    pub(super) async fn end(self) -> Result<(), Failure> {
        match self.own {
            Some(own) => own.end().await,
            None => {
                for backing in self.backings {
                    backing.clean().await?;
                }
            }
        }
        Ok(())
    }
}

/// One side of a row: where locks are taken, and whose CPU time is counted.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) target: Target,
    pub(super) counted: Vec<Counted>,
    servers: Vec<Server>,
}

impl Peer {
    pub(super) fn new(name: &str, target: Target, counted: Vec<Counted>) -> Self {
        Self { name: name.to_owned(), target, counted, servers: Vec::new() }
    }

    fn served(
        name: &str,
        process: &'static str,
        servers: Vec<Server>,
        mut counted: Vec<Counted>,
    ) -> Self {
        counted.extend(servers.iter().map(|server| (process, server.pid())));
        let urls = servers.iter().map(|server| server.url.clone()).collect();
        let target = Target::Http { urls, auth: None };
        Self { name: name.to_owned(), target, counted, servers }
    }

    async fn lock_servers(
        name: &str,
        count: usize,
        store: &str,
        args: &[&str],
        behind: Vec<Counted>,
    ) -> Result<Self, Failure> {
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(Server::start("lock-server", store, args).await?);
        }
        Ok(Self::served(name, "lock-server", servers, behind))
    }

    /// A lock server on a store of its own, and the processes `behind` it.
    pub(super) async fn lock_server(
        name: &str,
        store: &str,
        behind: Vec<Counted>,
    ) -> Result<Self, Failure> {
        Self::lock_servers(name, 1, store, &["--namespace", "bench"], behind).await
    }

    /// URL of its first server.
    pub(super) fn url(&self) -> &str {
        self.servers.first().map_or("", |server| &server.url)
    }

    /// Ends its servers and waits until they are gone.
    pub(super) async fn end(self) {
        for server in self.servers {
            server.end().await;
        }
    }
}

/// An etcd of one member, killed when this is dropped.
pub(super) struct Etcd {
    at: String,
    process: Process,
    _folder: TempDir,
}

impl Etcd {
    pub(super) async fn start() -> Result<Self, Failure> {
        let program = find("etcd").ok_or_else(|| {
            let message = "etcd is not in the PATH. Install it (Debian and Ubuntu: apt install \
                           etcd-server)";
            Failure::new(code::UNAVAILABLE, message)
        })?;
        let broken = |error: std::io::Error| Failure::new(code::UNAVAILABLE, error.to_string());
        let folder = tempfile::Builder::new().prefix("fence-bench-").tempdir().map_err(broken)?;
        let at = format!("127.0.0.1:{}", free_port().map_err(broken)?);
        let peer = format!("http://127.0.0.1:{}", free_port().map_err(broken)?);
        let args = [
            "--name=bench".to_owned(),
            format!("--data-dir={}", folder.path().join("data").display()),
            format!("--listen-client-urls=http://{at}"),
            format!("--advertise-client-urls=http://{at}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=bench={peer}"),
        ];
        let process = Process::start_other("etcd", &program, &args, folder.path())?;
        let serves = async || Ok(is_healthy(&at).await.then_some(()));
        awaited("an etcd that serves", serves).await?;
        Ok(Self { at, process, _folder: folder })
    }

    /// etcd's own lock.
    pub(super) fn own_lock(&self) -> Peer {
        Peer::new("etcd's own lock", Target::Etcd { at: self.at.clone() }, self.counted())
    }

    pub(super) async fn lock_server(&self) -> Result<Peer, Failure> {
        Peer::lock_server("lock-server", &format!("etcd://{}", self.at), self.counted()).await
    }

    fn counted(&self) -> Vec<Counted> {
        vec![("etcd", self.process.pid())]
    }
}

async fn is_healthy(at: &str) -> bool {
    let Ok(mut connection) = http::Connection::open(at, None).await else { return false };
    let reply = connection.send("GET", "/health", "", b"").await;
    reply.is_ok_and(|(status, body)| status == 200 && body.windows(4).any(|at| at == b"true"))
}

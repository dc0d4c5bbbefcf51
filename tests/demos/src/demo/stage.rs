//! The stage: a lock server and a guard, each a process of its own, on ports of the system's
//! choice.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fence_client::Client;
use service_kit::ids;
use tempfile::TempDir;

use super::account::Account;
use super::worker::{self, BASE};
use crate::backing::Backing;
use crate::process::Process;
use fence_terminal::exit::{Failure, code};

/// Keys that need no token: where the unguarded story takes place.
pub(super) const OPEN_RULE: &str = "--rule=unguarded/**=@open";

/// Variable with the guard's URL of a PostgreSQL, which may hold a password.
const UPSTREAM: &str = "FENCED_STORE_POSTGRES_UPSTREAM";

/// The running servers. Whatever still runs when this is dropped is killed, and the folder goes.
#[derive(Debug)]
pub(super) struct Stage {
    lock_server: String,
    guard: String,
    /// The guard's second listener: its reverse proxy, its Redis port, or its PostgreSQL port.
    port: Option<String>,
    servers: Vec<Process>,
    namespace: String,
    dir: TempDir,
}

/// Setup of the guard.
#[derive(Clone, Debug)]
pub(super) enum Guarding {
    /// The objects API over the demo's own backing.
    Objects,
    /// The objects API on this disk, taking tokens without signatures.
    UnsignedOnDisk,
    /// The Redis port before the demo's own backing, which is a Redis.
    RedisPort,
    /// The PostgreSQL port before the demo's own backing, which is a PostgreSQL.
    PostgresPort,
    /// The reverse proxy before this datastore.
    Proxy { upstream: String },
}

impl Stage {
    /// Starts both servers.
    pub(super) async fn set(backing: &Backing, guarding: &Guarding) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new().prefix("fence-demo-").tempdir().map_err(|error| {
            Failure::new(code::UNAVAILABLE, format!("a temporary folder cannot be made: {error}"))
        })?;
        let keys = match guarding {
            Guarding::UnsignedOnDisk => "--unsigned".to_owned(),
            _ => format!("--token-key-file={}", key_file(dir.path())?.display()),
        };
        let common = ["--listen=127.0.0.1:0".to_owned(), keys];
        let namespace = backing.namespace().to_owned();
        if let Backing::Redis { .. } = backing {
            init(backing, dir.path()).await?;
        }
        let mut locks = vec!["lock-server".to_owned()];
        locks.extend(common.iter().cloned());
        locks.extend(store(backing, &dir.path().join("locks")));
        if let Guarding::UnsignedOnDisk = guarding {
            // The demo empties the store and shows what the guard does then.
            locks.push("--after-loss=grant".to_owned());
        }
        let mut guard = vec!["fenced-store".to_owned(), OPEN_RULE.to_owned()];
        guard.extend(common);
        guard.extend(guarded(backing, guarding, dir.path())?);
        let upstream = match backing {
            Backing::Postgres(database) => Some(database.guard_url()),
            _ => None,
        };
        let mut locks = Process::start_with(
            "lock-server",
            &locks,
            dir.path(),
            variable("LOCK_SERVER_STORE", backing),
        )?;
        let guard_variable = match guarding {
            Guarding::Objects | Guarding::RedisPort => variable("FENCED_STORE_STORE", backing),
            Guarding::PostgresPort => upstream.as_deref().map(|url| (UPSTREAM, url)),
            Guarding::UnsignedOnDisk | Guarding::Proxy { .. } => None,
        };
        let mut guard = Process::start_with("fenced-store", &guard, dir.path(), guard_variable)?;
        let lock_server = address(&mut locks).await?;
        let api = address(&mut guard).await?;
        let port = match guarding {
            Guarding::Proxy { .. } | Guarding::RedisPort | Guarding::PostgresPort => {
                Some(address(&mut guard).await?)
            }
            Guarding::Objects | Guarding::UnsignedOnDisk => None,
        };
        let servers = vec![locks, guard];
        Ok(Self { lock_server, guard: api, port, servers, namespace, dir })
    }

    /// The address of the lock server.
    pub(super) fn lock_server(&self) -> &str {
        &self.lock_server
    }

    /// Prefix of the URL of an object of the guard.
    pub(super) fn objects(&self) -> String {
        format!("{}/v1/objects/", self.guard)
    }

    /// Prefix of the URL of an object behind the guard's reverse proxy.
    pub(super) fn proxied(&self) -> String {
        format!("{}/", self.port.as_deref().unwrap_or(&self.guard))
    }

    /// The guard's Redis or PostgreSQL port, without a token.
    pub(super) fn second_port(&self) -> &str {
        self.port.as_deref().unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// For questions to both servers.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let builder = Client::builder().lock_server(&self.lock_server).fenced_store(&self.guard);
        Ok(builder.owner("director").build()?)
    }

    /// A worker that writes to objects whose addresses begin with `base`, or to the Redis or
    /// PostgreSQL at `base`.
    pub(super) fn worker(&self, name: &str, base: &str) -> Result<Process, Failure> {
        let role = worker::role(name, &self.lock_server);
        Process::start_with(name, &role, self.dir.path(), Some((BASE, base)))
    }

    /// One line on what runs.
    pub(super) fn described(&self) -> String {
        let pids: Vec<_> = self.servers.iter().map(|server| server.pid().to_string()).collect();
        let port = self.port.as_ref().map(|port| match port.split(':').next() {
            Some("redis") => format!(", its Redis port {port},"),
            Some("postgres") => format!(", its PostgreSQL port {port},"),
            _ => format!(", its proxy {port}"),
        });
        format!(
            "lock-server {} and fenced-store {}{} run as processes {}",
            self.lock_server,
            self.guard,
            port.unwrap_or_default(),
            pids.join(" and "),
        )
    }

    /// Ends the servers and waits until they are gone.
    pub(super) async fn strike(self) {
        for server in self.servers {
            server.end().await;
        }
    }
}

fn guarded(backing: &Backing, guarding: &Guarding, dir: &Path) -> Result<Vec<String>, Failure> {
    Ok(match guarding {
        Guarding::Objects => store(backing, &dir.join("objects")),
        Guarding::RedisPort => {
            let mut args = store(backing, dir);
            args.push("--redis-listen=127.0.0.1:0".to_owned());
            args
        }
        Guarding::UnsignedOnDisk => {
            let mut args = store(&Backing::Embedded, &dir.join("objects"));
            args.push(format!("--namespace={}", backing.namespace()));
            args
        }
        Guarding::Proxy { upstream } => vec![
            "--proxy-listen=127.0.0.1:0".to_owned(),
            format!("--upstream={upstream}"),
            "--max-request-lifetime=30s".to_owned(),
            format!("--state={}", dir.join("lanes").display()),
            format!("--namespace={}", backing.namespace()),
        ],
        Guarding::PostgresPort => postgres_port(backing, dir)?,
    })
}

/// One lock covers the database: that of the guarded account.
fn postgres_port(backing: &Backing, dir: &Path) -> Result<Vec<String>, Failure> {
    let Backing::Postgres(database) = backing else { return Ok(Vec::new()) };
    let file = dir.join("writer-password.txt");
    std::fs::write(&file, format!("{}\n", database.password))
        .map_err(|error| Failure::internal(format!("{}: {error}", file.display())))?;
    Ok(vec![
        "--postgres-listen=127.0.0.1:0".to_owned(),
        format!("--postgres-writer={}", database.writer()),
        format!("--postgres-writer-password-file={}", file.display()),
        format!("--rule={}={}", database.name, Account::new(true).key),
    ])
}

fn store(backing: &Backing, dir: &Path) -> Vec<String> {
    match backing {
        Backing::Embedded | Backing::Http | Backing::Postgres(_) => {
            vec![format!("--store=embedded:{}", dir.display())]
        }
        Backing::Redis { namespace, .. } => vec![format!("--namespace={namespace}")],
    }
}

/// The URL of Redis, which may hold a password, goes to the servers in their environment.
fn variable<'a>(name: &'a str, backing: &'a Backing) -> Option<(&'a str, &'a str)> {
    match backing {
        Backing::Embedded | Backing::Http | Backing::Postgres(_) => None,
        Backing::Redis { url, .. } => Some((name, &url.0)),
    }
}

/// The namespace was made up a moment ago, so we can vouch that it is new: its tokens begin at 1.
async fn init(backing: &Backing, dir: &Path) -> Result<(), Failure> {
    let mut role = vec!["lock-server".to_owned(), "init".to_owned(), "--fresh".to_owned()];
    role.extend(store(backing, Path::new("")));
    let url = variable("LOCK_SERVER_STORE", backing);
    let mut init = Process::start_with("lock-server init", &role, dir, url)?;
    let ready = init.line().await;
    init.end().await;
    ready.map(drop)
}

/// The address in the next line that a server says.
async fn address(server: &mut Process) -> Result<String, Failure> {
    let line = server.line().await?;
    match line.split_once(" listening on ") {
        Some((_, address)) => Ok(address.to_owned()),
        None => Err(server.failed(&format!("it said {line:?} in place of its address"))),
    }
}

fn key_file(dir: &Path) -> Result<PathBuf, Failure> {
    let path = dir.join("token-keys.txt");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| writeln!(file, "demo:{}", ids::random_hex(32)))
        .map_err(|error| Failure::internal(format!("{}: {error}", path.display())))?;
    Ok(path)
}

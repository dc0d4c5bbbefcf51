//! Clients that take locks: of a lock server, and of its peers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fence_client::{BearerToken, ids};

use super::etcd_lock::EtcdLock;
use super::sql_lock::{SqlCommands, SqlLock};
use crate::bench::load::{self, Client};
use crate::bench::{http, resp};

/// The least script that gives a token. Keys: the lock and the counter. Arguments: the holder, and
/// the time to live in milliseconds.
pub(super) const ACQUIRE: &str = "if redis.call('SET',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then \
                                  return redis.call('INCR',KEYS[2]) else return 0 end";
/// The smallest script that releases only the holder's own lock.
pub(super) const RELEASE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then \
                                  return redis.call('DEL',KEYS[1]) else return 0 end";

/// Commands that acquire and release, with what is filled in: `$ACQUIRE` and `$RELEASE` are digests
/// of the scripts. All nodes receive a command at once, and a majority must do what it says.
pub(super) type Commands = [&'static str; 2];
/// The two least scripts.
pub(super) const SCRIPTS: Commands =
    ["EVALSHA $ACQUIRE 2 $LOCK $TOKENS $HOLDER 30000", "EVALSHA $RELEASE 1 $LOCK $HOLDER"];
/// One value on a majority of several Redis, as the libraries do it.
pub(super) const REDLOCK: Commands =
    ["SET $LOCK $HOLDER NX PX 30000", "EVALSHA $RELEASE 1 $LOCK $HOLDER"];
/// A list with one element that is taken and put back: the floor of a hand-over.
pub(super) const BATON: Commands = ["BLPOP $LOCK 0", "RPUSH $LOCK baton"];

/// Lock names that each client takes in turn.
const NAMES: u64 = 100;
/// The lock that all clients want.
const CONTENDED: &str = "bench/contended";
/// Time-out of a request to a lock server.
const WAIT_MS: u32 = 60_000;

const HEADERS: &str = "content-type: application/json\r\n";

/// Service that grants the locks.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The HTTP API, of one server or of several that the clients are spread over.
    Http { urls: Vec<String>, auth: Option<BearerToken> },
    /// Commands for one Redis or for several; their keys begin with the prefix.
    Redis { urls: Vec<String>, prefix: String, commands: Commands },
    /// etcd's own lock, at `HOST:PORT`.
    Etcd { at: String },
    /// Statements of a PostgreSQL, one session a client.
    Sql { url: String, commands: SqlCommands },
}

/// Operation that is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Acquire and release of a lock that no other client wants.
    Distinct,
    /// Acquire and release; the latency is that of the acquire alone.
    Acquire,
    /// Acquire and release of one lock that all want, held for no time; its latency is that from
    /// the start of a release until the next holder knows.
    Contended,
}

/// One client, which does one kind of work.
pub(super) struct Worker {
    locker: Locker,
    work: Work,
    number: u16,
    /// When the lock was last released, by any client of the side.
    released: Rc<Cell<Option<Instant>>>,
    latency: Option<Duration>,
}

impl Worker {
    /// Connects `count` clients.
    pub(super) async fn open(target: &Target, work: Work, count: u16) -> Result<Vec<Self>, String> {
        let released = Rc::default();
        let mut workers = Vec::new();
        for number in 0..count {
            let locker = Locker::open(target, number).await?;
            let released = Rc::clone(&released);
            workers.push(Self { locker, work, number, released, latency: None });
        }
        if let (Target::Redis { commands: BATON, .. }, [first, ..]) = (target, &mut workers[..]) {
            first.locker.release(CONTENDED, "").await?;
        }
        Ok(workers)
    }
}

impl Client for Worker {
    async fn begin(&mut self) -> Result<(), String> {
        match &mut self.locker {
            Locker::Http(connection) => connection.reopen().await,
            Locker::Redis { .. } | Locker::Etcd(_) | Locker::Sql(_) => Ok(()),
        }
    }

    async fn once(&mut self, number: u64) -> Result<(), String> {
        let lease = ids::lease_id().to_string();
        if self.work == Work::Contended {
            if number == 0 {
                // What is there is of the round before.
                self.released.set(None);
            }
            self.locker.acquire(CONTENDED, &lease, WAIT_MS).await?;
            let now = load::now();
            let before = self.released.replace(Some(now));
            self.latency = before.map(|before| now.duration_since(before));
            return self.locker.release(CONTENDED, &lease).await;
        }
        let lock = format!("bench/{}/{}", self.number, number % NAMES);
        let began = load::now();
        self.locker.acquire(&lock, &lease, 0).await?;
        self.latency = Some(load::now().duration_since(began));
        self.locker.release(&lock, &lease).await
    }

    fn latency(&self, all: Duration) -> Option<Duration> {
        match self.work {
            Work::Distinct => Some(all),
            Work::Acquire | Work::Contended => self.latency,
        }
    }
}

/// A connection over which locks are taken, one at a time.
enum Locker {
    Http(http::Connection),
    Redis { nodes: Vec<resp::Connection>, prefix: String, commands: [Vec<String>; 2] },
    Etcd(Box<EtcdLock>),
    Sql(SqlLock),
}

impl Locker {
    async fn open(target: &Target, number: u16) -> Result<Self, String> {
        match target {
            Target::Http { urls, auth } => {
                let url = &urls[usize::from(number) % urls.len()];
                Ok(Self::Http(http::Connection::open(url, auth.as_ref()).await?))
            }
            Target::Redis { urls, prefix, commands } => {
                let mut nodes = Vec::new();
                let mut scripts = [String::new(), String::new()];
                for url in urls {
                    let mut node = resp::Connection::open(url).await?;
                    scripts = [load(&mut node, ACQUIRE).await?, load(&mut node, RELEASE).await?];
                    nodes.push(node);
                }
                let words = |command: &str| {
                    let words = command.split(' ').map(|word| match word {
                        "$ACQUIRE" => scripts[0].clone(),
                        "$RELEASE" => scripts[1].clone(),
                        "$TOKENS" => format!("{prefix}tokens"),
                        word => word.to_owned(),
                    });
                    words.collect()
                };
                Ok(Self::Redis { nodes, prefix: prefix.clone(), commands: commands.map(words) })
            }
            Target::Etcd { at } => Ok(Self::Etcd(Box::new(EtcdLock::open(at).await?))),
            Target::Sql { url, commands } => Ok(Self::Sql(SqlLock::open(url, *commands).await?)),
        }
    }

    /// Takes the lock. A lock server lets it wait for `wait_ms`; etcd and the baton always wait.
    async fn acquire(&mut self, lock: &str, lease: &str, wait_ms: u32) -> Result<(), String> {
        match self {
            Self::Http(connection) => {
                let body = format!(
                    "{{\"ttl_ms\":30000,\"wait_ms\":{wait_ms},\"owner\":\"bench\",\
                     \"lease_id\":\"{lease}\"}}"
                );
                post(connection, lock, "acquire", &body).await
            }
            Self::Redis { nodes, prefix, commands } => {
                vote(nodes, &commands[0], &format!("{prefix}{lock}"), lease).await
            }
            Self::Etcd(etcd) => etcd.lock(lock).await,
            Self::Sql(sql) => sql.lock(lock, lease).await,
        }
    }

    async fn release(&mut self, lock: &str, lease: &str) -> Result<(), String> {
        match self {
            Self::Http(connection) => {
                post(connection, lock, "release", &format!("{{\"lease_id\":\"{lease}\"}}")).await
            }
            Self::Redis { nodes, prefix, commands } => {
                vote(nodes, &commands[1], &format!("{prefix}{lock}"), lease).await
            }
            Self::Etcd(etcd) => etcd.unlock().await,
            Self::Sql(sql) => sql.unlock(lock, lease).await,
        }
    }
}

async fn post(
    connection: &mut http::Connection,
    lock: &str,
    verb: &str,
    body: &str,
) -> Result<(), String> {
    let path = format!("/v1/locks/{}/{verb}", lock.replace('/', "%2F"));
    match connection.send("POST", &path, HEADERS, body.as_bytes()).await? {
        (200, _) => Ok(()),
        (status, body) => Err(format!("{verb}: {status} {}", String::from_utf8_lossy(&body))),
    }
}

/// Loads a script; its digest.
async fn load(redis: &mut resp::Connection, script: &str) -> Result<String, String> {
    let reply = redis.call(&[b"SCRIPT", b"LOAD", script.as_bytes()]).await?;
    let digest = reply.get(5..45).and_then(|digest| std::str::from_utf8(digest).ok());
    digest.map(str::to_owned).ok_or_else(|| "Redis did not reply with a digest".to_owned())
}

/// Sends a command to every node at once; a majority must have done it.
async fn vote(
    nodes: &mut [resp::Connection],
    command: &[String],
    lock: &str,
    lease: &str,
) -> Result<(), String> {
    let filled_in = command.iter().map(|word| match word.as_str() {
        "$LOCK" => lock.as_bytes(),
        "$HOLDER" => lease.as_bytes(),
        word => word.as_bytes(),
    });
    let filled_in: Vec<&[u8]> = filled_in.collect();
    for node in &mut *nodes {
        node.send(&filled_in).await?;
    }
    let mut votes = 0;
    for node in &mut *nodes {
        // A script that changed nothing, and a SET that found a value.
        votes += usize::from(!matches!(node.reply().await?, b":0\r\n" | b"$-1\r\n"));
    }
    if votes * 2 > nodes.len() { Ok(()) } else { Err(format!("{lock}: {votes} votes")) }
}

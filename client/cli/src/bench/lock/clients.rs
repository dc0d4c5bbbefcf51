//! What takes locks: clients of a lock server, and of what it is compared with.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fence_client::{BearerToken, ids};

use super::etcd_lock::EtcdLock;
use crate::bench::load::{self, Client};
use crate::bench::{http, resp};

/// The least script that gives a token. Keys: the lock and the counter. Arguments: the holder, and
/// the time to live in milliseconds.
pub(super) const ACQUIRE: &str = "if redis.call('SET',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then \
                                  return redis.call('INCR',KEYS[2]) else return 0 end";
/// The least script that gives back only what the holder has.
pub(super) const RELEASE: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then \
                                  return redis.call('DEL',KEYS[1]) else return 0 end";

/// Lock names that each client takes in turn.
const NAMES: u64 = 100;
/// Long enough that nothing expires while it is measured.
const TTL_MS: u64 = 30_000;
const WAIT_MS: u64 = 60_000;
/// The lock that all clients want.
const CONTENDED: &str = "bench/contended";

const HEADERS: &str = "content-type: application/json\r\n";

/// Where locks are taken, and how.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The HTTP API, of one server or of several that the clients are spread over.
    Http { urls: Vec<String>, auth: Option<BearerToken> },
    /// The two least scripts, sent straight to Redis; keys begin with the prefix.
    Scripts { url: String, prefix: String },
    /// A list with one element that clients take with BLPOP and put back: the floor of a hand-over.
    Baton { url: String, prefix: String },
    /// The same value set on a majority of several Redis.
    Redlock { urls: Vec<String> },
    /// etcd's own lock, at `HOST:PORT`.
    Etcd { at: String },
}

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Acquire and release of a lock that no other client wants.
    Distinct,
    /// The same; its latency is that of the acquire alone.
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
    /// When the lock was last released, by any client of the row.
    released: Rc<Cell<Option<Instant>>>,
    latency: Option<Duration>,
}

impl Worker {
    /// Connects `count` clients.
    pub(super) async fn open(target: &Target, work: Work, count: u16) -> Result<Vec<Self>, String> {
        if let Target::Baton { url, prefix } = target {
            let mut redis = resp::Connection::open(url).await?;
            let list = format!("{prefix}{CONTENDED}");
            redis.call(&[b"DEL", list.as_bytes()]).await?;
            redis.call(&[b"RPUSH", list.as_bytes(), b"baton"]).await?;
        }
        let released = Rc::default();
        let mut workers = Vec::new();
        for number in 0..count {
            let locker = Locker::open(target, number).await?;
            workers.push(Self {
                locker,
                work,
                number,
                released: Rc::clone(&released),
                latency: None,
            });
        }
        Ok(workers)
    }
}

impl Client for Worker {
    async fn once(&mut self, number: u64) -> Result<(), String> {
        let lease = ids::lease_id().to_string();
        if self.work == Work::Contended {
            if number == 0 {
                // That of the round before.
                self.released.set(None);
            }
            self.locker.acquire(CONTENDED, &lease, WAIT_MS).await?;
            let now = load::now();
            self.latency =
                self.released.replace(Some(now)).map(|before| now.duration_since(before));
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
    Scripts { redis: resp::Connection, prefix: String, tokens: String, scripts: [Vec<u8>; 2] },
    Baton { redis: resp::Connection, prefix: String },
    Redlock { nodes: Vec<resp::Connection>, release: Vec<u8> },
    Etcd(Box<EtcdLock>),
}

impl Locker {
    async fn open(target: &Target, number: u16) -> Result<Self, String> {
        Ok(match target {
            Target::Http { urls, auth } => {
                let url = &urls[usize::from(number) % urls.len()];
                Self::Http(http::Connection::open(url, auth.as_ref()).await?)
            }
            Target::Scripts { url, prefix } => {
                let mut redis = resp::Connection::open(url).await?;
                let scripts = [load(&mut redis, ACQUIRE).await?, load(&mut redis, RELEASE).await?];
                let tokens = format!("{prefix}tokens");
                Self::Scripts { redis, prefix: prefix.clone(), tokens, scripts }
            }
            Target::Baton { url, prefix } => {
                Self::Baton { redis: resp::Connection::open(url).await?, prefix: prefix.clone() }
            }
            Target::Redlock { urls } => {
                let mut nodes = Vec::new();
                let mut release = Vec::new();
                for url in urls {
                    let mut node = resp::Connection::open(url).await?;
                    release = load(&mut node, RELEASE).await?;
                    nodes.push(node);
                }
                Self::Redlock { nodes, release }
            }
            Target::Etcd { at } => Self::Etcd(Box::new(EtcdLock::open(at).await?)),
        })
    }

    /// Takes the lock. A lock server lets it wait for `wait_ms`; etcd and the baton always wait.
    async fn acquire(&mut self, lock: &str, lease: &str, wait_ms: u64) -> Result<(), String> {
        let ttl = TTL_MS.to_string();
        match self {
            Self::Http(connection) => {
                let body = format!(
                    "{{\"ttl_ms\":{TTL_MS},\"wait_ms\":{wait_ms},\"owner\":\"bench\",\
                     \"lease_id\":\"{lease}\"}}"
                );
                post(connection, lock, "acquire", &body).await
            }
            Self::Scripts { redis, prefix, tokens, scripts } => {
                let key = format!("{prefix}{lock}");
                let call: [&[u8]; 7] = [
                    b"EVALSHA",
                    &scripts[0],
                    b"2",
                    key.as_bytes(),
                    tokens.as_bytes(),
                    lease.as_bytes(),
                    ttl.as_bytes(),
                ];
                changed(redis.call(&call).await?, lock)
            }
            Self::Baton { redis, prefix } => {
                let list = format!("{prefix}{lock}");
                redis.call(&[b"BLPOP", list.as_bytes(), b"0"]).await.map(drop)
            }
            Self::Redlock { nodes, .. } => {
                let set: [&[u8]; 6] =
                    [b"SET", lock.as_bytes(), lease.as_bytes(), b"NX", b"PX", ttl.as_bytes()];
                vote(nodes, &set, b"+OK\r\n", lock).await
            }
            Self::Etcd(etcd) => etcd.lock(lock).await,
        }
    }

    async fn release(&mut self, lock: &str, lease: &str) -> Result<(), String> {
        match self {
            Self::Http(connection) => {
                let body = format!("{{\"lease_id\":\"{lease}\"}}");
                post(connection, lock, "release", &body).await
            }
            Self::Scripts { redis, prefix, scripts, .. } => {
                let key = format!("{prefix}{lock}");
                let call: [&[u8]; 5] =
                    [b"EVALSHA", &scripts[1], b"1", key.as_bytes(), lease.as_bytes()];
                changed(redis.call(&call).await?, lock)
            }
            Self::Baton { redis, prefix } => {
                let list = format!("{prefix}{lock}");
                redis.call(&[b"RPUSH", list.as_bytes(), b"baton"]).await.map(drop)
            }
            Self::Redlock { nodes, release } => {
                let call: [&[u8]; 5] =
                    [b"EVALSHA", release, b"1", lock.as_bytes(), lease.as_bytes()];
                vote(nodes, &call, b":1\r\n", lock).await
            }
            Self::Etcd(etcd) => etcd.unlock().await,
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
async fn load(redis: &mut resp::Connection, script: &str) -> Result<Vec<u8>, String> {
    let reply = redis.call(&[b"SCRIPT", b"LOAD", script.as_bytes()]).await?;
    let digest = reply.strip_prefix(b"$40\r\n").and_then(|rest| rest.strip_suffix(b"\r\n"));
    digest.map(<[u8]>::to_vec).ok_or_else(|| "Redis did not reply with a digest".to_owned())
}

/// A script that changed nothing measures something else.
fn changed(reply: &[u8], lock: &str) -> Result<(), String> {
    if reply == b":0\r\n" { Err(format!("{lock} is in use by another")) } else { Ok(()) }
}

/// Sends a command to every node at once; a majority must reply what is expected.
async fn vote(
    nodes: &mut [resp::Connection],
    command: &[&[u8]],
    expected: &[u8],
    lock: &str,
) -> Result<(), String> {
    for node in &mut *nodes {
        node.send(command).await?;
    }
    let mut votes = 0;
    for node in &mut *nodes {
        votes += usize::from(node.reply().await? == expected);
    }
    if votes * 2 > nodes.len() { Ok(()) } else { Err(format!("{lock} has {votes} votes")) }
}

//! redis-amnesia: Redis is emptied while a lease is held. A counter that lives there alone starts
//! again; the lock server detects the loss, and continues above every token that it may have
//! issued.

use std::time::Duration;

use fence_client::protocol::{FencingToken, LockName, Namespace, Token};
use fence_client::{Client, ids};
use redis::aio::MultiplexedConnection;
use serde_json::json;

use super::account::{DIRECTOR, DOCUMENT, LOCK_SERVER, WORKER_A, WORKER_B};
use super::actor::described;
use super::narrator::{EventFigures, Narrator};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage};
use super::verdict::Amnesia;
use super::worker::Objects;
use crate::backing::{Backing, connect};
use fence_terminal::exit::{Failure, code};

pub(super) const TITLE: &str = "Redis forgets everything while a lease is held";
pub(super) const EXPLANATION: &str = "\
Worker A holds the lock and has written with its token when Redis is emptied (FLUSHALL) and \
worker B gets the lock; the guard keeps its marks on a disk of its own. Where the counter simply \
starts again, the guard takes the old holder for the new one; the lock server detects that its \
lineage is gone, and continues above every token that it may have issued. Grants would wait for \
A's lease, unless --after-loss grant lets them continue at once, as it does here.";

const NAIVE: &str = "naive locks";
/// Longer than the story, in milliseconds.
const TTL_MS: u64 = 20_000;

/// Runs it with a naive counter and with the lock server, both on `backing`, which is emptied.
pub(super) async fn run(narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    let Backing::Redis { target, .. } = backing else {
        return Err(Failure::internal("redis-amnesia was started without a Redis"));
    };
    let mut redis = connect(target).await?;
    for (name, title, lock, lock_lane) in [
        ("unguarded", "a lock and a counter in Redis: SET NX PX and INCR", "naive/account", NAIVE),
        ("guarded", "lock-server on the same Redis", "guarded/account", LOCK_SERVER),
    ] {
        let stage = Stage::set(backing, &Guarding::UnsignedOnDisk).await?;
        let lanes = [lock_lane, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];
        narrator.begin(name, title, &lanes)?;
        narrator.remark(&stage.described())?;
        let lock = LockName::new(lock)?;
        let locks = match lock_lane {
            NAIVE => Locks::naive(redis.clone(), Namespace::new(stage.namespace())?).await?,
            _ => Locks::Server(Box::new(stage.client()?)),
        };
        story(narrator, &stage, &mut redis, &lock, locks).await?;
        stage.strike().await;
        // The lock server may have begun a new lineage after the flush; the next one starts anew.
        let _: String = redis::cmd("FLUSHALL").query_async(&mut redis).await.map_err(broken)?;
    }
    Ok(())
}

/// The service that grants the lock.
enum Locks {
    /// The lock service of many a tutorial: one key with a time to live, one counter.
    Naive(MultiplexedConnection, Namespace),
    Server(Box<Client>),
}

/// A grant: token, fencing header, time on the machine's clock in milliseconds.
struct Granted {
    token: u64,
    header: String,
    at_ms: u64,
}

impl Locks {
    async fn naive(mut redis: MultiplexedConnection, space: Namespace) -> Result<Self, Failure> {
        // Two earlier holders, so that the counter stands above its start.
        let mut count = redis::cmd("INCRBY");
        let _: u64 =
            count.arg("naive:token").arg(2).query_async(&mut redis).await.map_err(broken)?;
        Ok(Self::Naive(redis, space))
    }

    async fn acquire(
        &mut self,
        narrator: &mut Narrator,
        worker: &str,
        lock: &LockName,
    ) -> Result<Granted, Failure> {
        let (token, header) = match self {
            Self::Naive(redis, namespace) => {
                let lease = ids::lease_id();
                let mut set = redis::cmd("SET");
                set.arg("naive:lock").arg(lease.to_string()).arg("NX").arg("PX").arg(TTL_MS);
                let held: Option<String> = set.query_async(redis).await.map_err(broken)?;
                held.ok_or_else(|| Failure::internal("the naive lock is held"))?;
                let mut count = redis::cmd("INCR");
                let token = count.arg("naive:token").query_async(redis).await.map_err(broken)?;
                let lock = lock.clone();
                let namespace = namespace.clone();
                let token = Token::new(token)?;
                let header = FencingToken { token, lock, lease, namespace, signature: None };
                (token, header.to_string())
            }
            Self::Server(client) => {
                let request = client.lock(lock.as_str()).ttl(Duration::from_millis(TTL_MS));
                let grant = request.acquire_detached().await?;
                (grant.token, grant.fencing_token)
            }
        };
        let at_ms = narrator.now();
        let token = token.get();
        let figures = EventFigures { token: Some(token), status: None };
        let text = format!("is granted {lock}: token {token}");
        narrator.event_at(at_ms, worker, Kind::Granted, &text, figures)?;
        Ok(Granted { token, header, at_ms })
    }
}

fn broken(error: redis::RedisError) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("Redis: {error}"))
}

async fn story(
    narrator: &mut Narrator,
    stage: &Stage,
    redis: &mut MultiplexedConnection,
    lock: &LockName,
    mut locks: Locks,
) -> Result<(), Failure> {
    let objects = Objects::new(stage.objects())?;
    let a = locks.acquire(narrator, WORKER_A, lock).await?;
    write(narrator, WORKER_A, &objects, lock, &a).await?;
    let reply: String = redis::cmd("FLUSHALL").query_async(redis).await.map_err(broken)?;
    narrator.event(DIRECTOR, Kind::Delay, &format!("empties Redis (FLUSHALL): {reply}"))?;
    lease_until_now(narrator, WORKER_A, &a);
    let b = locks.acquire(narrator, WORKER_B, lock).await?;
    let new_status = write(narrator, WORKER_B, &objects, lock, &b).await?;
    let old_status = write(narrator, WORKER_A, &objects, lock, &a).await?;
    lease_until_now(narrator, WORKER_B, &b);
    let tokens_before = vec![a.token];
    let facts = Amnesia { tokens_before, token_after: b.token, new_status, old_status };
    if let Locks::Naive(..) = locks {
        return narrator.end(&facts, facts.forgot());
    }
    lineage(narrator, stage).await?;
    narrator.end(&facts, facts.rose())
}

fn lease_until_now(narrator: &mut Narrator, worker: &str, grant: &Granted) {
    let ms = (grant.at_ms, narrator.now());
    narrator.span(worker, SpanKind::Lease, ms, &format!("token {}", grant.token));
}

/// Writes through the guard for `worker`; the status of the reply.
async fn write(
    narrator: &mut Narrator,
    worker: &str,
    objects: &Objects,
    lock: &LockName,
    grant: &Granted,
) -> Result<u16, Failure> {
    let body = json!({ "balance": 0, "log": [worker] }).to_string();
    let written = objects.put(lock.as_str(), Some(&grant.header), body).await;
    let answer = written.map_err(Failure::internal)?;
    let kind = if answer.is_success() { Kind::Applied } else { Kind::Refused };
    let text = format!("writes with token {}: {}", grant.token, described(&answer));
    let figures = EventFigures { token: Some(grant.token), status: answer.status };
    narrator.event_at(narrator.now(), worker, kind, &text, figures)?;
    Ok(answer.status.unwrap_or_default())
}

/// Adds the lock server's own account of the loss.
async fn lineage(narrator: &mut Narrator, stage: &Stage) -> Result<(), Failure> {
    let failed = |error: reqwest::Error| Failure::internal(error.to_string());
    let http = reqwest::Client::builder().no_proxy().build().map_err(failed)?;
    let url = format!("{}/readyz?verbose", stage.lock_server());
    let body = http.get(url).send().await.map_err(failed)?.text().await.map_err(failed)?;
    for line in body.lines().filter(|line| line.contains("lineage")) {
        narrator.remark(&format!("the lock server says: {}", line.trim()))?;
    }
    Ok(())
}

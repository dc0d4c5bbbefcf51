//! redis-amnesia: Redis is emptied while a lease is held. A counter that lives there alone starts
//! again; the lock server notices, and goes on above everything that it may have issued.

use fence_client::ids;
use fence_client::protocol::{FencingToken, LockName, Namespace, Token};
use redis::aio::MultiplexedConnection;
use serde_json::json;

use super::account::{
    Account, DEPOSIT_A, DEPOSIT_B, DIRECTOR, DOCUMENT, LOCK_SERVER, WORKER_A, WORKER_B,
};
use super::actor::{Actor, described};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage};
use super::teller::{Known, Teller};
use super::verdict::Amnesia;
use super::worker::Objects;
use crate::backing::{Backing, connect};
use fence_terminal::exit::{Failure, code};

pub(super) const TITLE: &str = "Redis forgets everything while a lease is held";
pub(super) const EXPLANATION: &str = "\
Worker A holds the lock and has written with its token when Redis is emptied (FLUSHALL) and worker B \
gets the lock; the guard keeps its marks on a disk of its own. Where the counter simply starts again, \
the guard takes the old holder for the new one; the lock server notices that its lineage is gone, and \
goes on above every token that it may have issued. Grants would wait for A's lease, unless \
--after-loss grant lets them go on at once, as it does here.";

const NAIVE: &str = "naive locks";
const LANES_NAIVE: [&str; 5] = [NAIVE, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];
const LANES: [&str; 5] = [LOCK_SERVER, WORKER_A, WORKER_B, DOCUMENT, DIRECTOR];
/// Long enough to be held through the whole story, in milliseconds.
const TTL_MS: u64 = 20_000;

/// Tells it with a naive counter and with the lock server, both on `backing`, which is emptied.
pub(super) async fn tell(teller: &mut Teller, backing: &Backing) -> Result<(), Failure> {
    let Backing::Redis { target, .. } = backing else {
        return Err(Failure::internal("redis-amnesia was started without a Redis"));
    };
    let stage = Stage::set(backing, &Guarding::UnsignedOnDisk).await?;
    teller.note(&format!("{}\n", stage.described()))?;
    let mut redis = connect(target).await?;
    teller.begin("unguarded", "a lock and a counter in Redis: SET NX PX and INCR", &LANES_NAIVE)?;
    naive(teller, &stage, &mut redis).await?;
    stage.strike().await;
    // A new lock server, whose namespace has issued nothing: it did not see the first flush, and its
    // tokens begin at 1.
    let stage = Stage::set(backing, &Guarding::UnsignedOnDisk).await?;
    teller.begin("guarded", "lock-server on the same Redis", &LANES)?;
    ours(teller, &stage, &mut redis).await?;
    stage.strike().await;
    Ok(())
}

async fn flush(teller: &mut Teller, redis: &mut MultiplexedConnection) -> Result<(), Failure> {
    let reply: String = redis::cmd("FLUSHALL").query_async(redis).await.map_err(broken)?;
    teller.event(DIRECTOR, Kind::Delay, &format!("empties Redis (FLUSHALL): {reply}"))
}

fn broken(error: redis::RedisError) -> Failure {
    Failure::new(code::UNAVAILABLE, format!("Redis: {error}"))
}

/// The lock service of many a tutorial: one key with a time to live, one counter.
struct Naive<'a> {
    redis: &'a mut MultiplexedConnection,
    namespace: Namespace,
    lock: LockName,
}

impl Naive<'_> {
    async fn acquire(&mut self) -> Result<FencingToken, Failure> {
        let lease = ids::lease_id();
        let mut set = redis::cmd("SET");
        set.arg("naive:lock").arg(lease.to_string()).arg("NX").arg("PX").arg(TTL_MS);
        let held: Option<String> = set.query_async(self.redis).await.map_err(broken)?;
        held.ok_or_else(|| Failure::internal("the demo broke off: the naive lock is held"))?;
        let mut incr = redis::cmd("INCR");
        let token: u64 = incr.arg("naive:token").query_async(self.redis).await.map_err(broken)?;
        Ok(FencingToken {
            token: Token::new(token)?,
            lock: self.lock.clone(),
            lease,
            namespace: self.namespace.clone(),
            signature: None,
        })
    }

    async fn release(&mut self) -> Result<(), Failure> {
        let _: i64 =
            redis::cmd("DEL").arg("naive:lock").query_async(self.redis).await.map_err(broken)?;
        Ok(())
    }
}

async fn naive(
    teller: &mut Teller,
    stage: &Stage,
    redis: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let key = "naive/account";
    let (lock, namespace) = (LockName::new(key)?, Namespace::new(stage.namespace())?);
    let objects = Objects::new(stage.objects())?;
    let mut locks = Naive { redis, namespace, lock };
    let mut tokens_before = Vec::new();
    // Two earlier holders, so that the counter has come somewhere.
    for _ in 0..2 {
        tokens_before.push(locks.acquire().await?.token.get());
        locks.release().await?;
    }
    let a = locks.acquire().await?;
    tokens_before.push(a.token.get());
    let granted = granted_naively(teller, WORKER_A, &a)?;
    wrote(teller, WORKER_A, &objects, key, &a, "A").await?;
    flush(teller, locks.redis).await?;
    teller.span(WORKER_A, SpanKind::Lease, (granted, teller.now()), &format!("token {}", a.token));
    let b = locks.acquire().await?;
    let granted = granted_naively(teller, WORKER_B, &b)?;
    let new_status = wrote(teller, WORKER_B, &objects, key, &b, "B").await?;
    let old_status = wrote(teller, WORKER_A, &objects, key, &a, "A, late").await?;
    teller.span(WORKER_B, SpanKind::Lease, (granted, teller.now()), &format!("token {}", b.token));
    let facts = Amnesia { tokens_before, token_after: b.token.get(), new_status, old_status };
    teller.end(&facts, facts.forgot())
}

/// Tells of a grant, and returns when it was.
fn granted_naively(teller: &mut Teller, who: &str, token: &FencingToken) -> Result<u64, Failure> {
    let known = Known { token: Some(token.token.get()), status: None };
    let text = format!("is granted the naive lock: INCR says {}", token.token);
    let at_ms = teller.now();
    teller.event_at(at_ms, who, Kind::Granted, &text, known)?;
    Ok(at_ms)
}

/// Writes through the guard in the place of `who`, and tells what it said.
async fn wrote(
    teller: &mut Teller,
    who: &str,
    objects: &Objects,
    key: &str,
    token: &FencingToken,
    value: &str,
) -> Result<u16, Failure> {
    let body = json!({ "balance": 0, "log": [value] }).to_string();
    let answer =
        objects.put(key, Some(&token.to_string()), body).await.map_err(Failure::internal)?;
    let kind = if answer.is_success() { Kind::Applied } else { Kind::Refused };
    let text = format!("writes with token {}: {}", token.token, described(&answer));
    let known = Known { token: Some(token.token.get()), status: answer.status };
    teller.event_at(teller.now(), who, kind, &text, known)?;
    Ok(answer.status.unwrap_or_default())
}

async fn ours(
    teller: &mut Teller,
    stage: &Stage,
    redis: &mut MultiplexedConnection,
) -> Result<(), Failure> {
    let key = "guarded/account";
    let actor = |name| {
        let process = stage.worker(name, &stage.objects())?;
        Ok::<_, Failure>(Actor::new(name, process, (key, key), true))
    };
    let (mut a, mut b) = (actor(WORKER_A)?, actor(WORKER_B)?);
    Account::new(true).open(stage, teller, &stage.objects()).await?;
    a.take(teller, TTL_MS, false).await?;
    a.read(teller).await?;
    a.add(teller, DEPOSIT_A, "A").await?;
    a.write(teller).await?;
    flush(teller, redis).await?;
    a.lease_until(teller, teller.now());
    b.take(teller, TTL_MS, false).await?;
    b.read(teller).await?;
    b.add(teller, DEPOSIT_B, "B").await?;
    let new = b.write(teller).await?;
    a.begin(&a.write_order()).await?;
    let (old, _) = a.has_written(teller, "writes").await?;
    b.lease_until(teller, teller.now());
    lineage(teller, stage).await?;
    let facts = Amnesia {
        tokens_before: vec![a.grant.token],
        token_after: b.grant.token,
        new_status: new.status.unwrap_or_default(),
        old_status: old.status.unwrap_or_default(),
    };
    teller.end(&facts, facts.rose())
}

/// What the lock server says about it.
async fn lineage(teller: &mut Teller, stage: &Stage) -> Result<(), Failure> {
    let failed = |error: reqwest::Error| Failure::internal(error.to_string());
    let http = reqwest::Client::builder().no_proxy().build().map_err(failed)?;
    let url = format!("{}/readyz?verbose", stage.lock_server());
    let body = http.get(url).send().await.map_err(failed)?.text().await.map_err(failed)?;
    for line in body.lines().filter(|line| line.contains("lineage")) {
        teller.note(&format!("the lock server says: {}", line.trim()))?;
    }
    Ok(())
}

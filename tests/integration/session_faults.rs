//! Sessions and takeovers while what they run on is hurt.
#![expect(clippy::print_stderr, reason = "a run tells what it measured and where it stood")]

mod ending;
mod large;
mod takeover;

use fence_protocol::SessionId;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::Locks;
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::session_client::Sessions;
use fence_tests::wait::until;
use serde_json::json;
use tokio::task::JoinSet;

/// Longer than any run: whatever ends was ended.
const TTL_MS: u64 = 60_000;

/// How many clients acquire at the same time.
const AT_ONCE: usize = 24;

/// Acquires `count` locks, `PREFIX/0` and on, for the session of `worker`.
async fn hold_all(
    locks: &Locks,
    session: SessionId,
    prefix: &str,
    count: usize,
) -> Vec<LeaseReply> {
    let mut clients = JoinSet::new();
    for client in 0..AT_ONCE {
        let (locks, prefix) = (locks.clone(), prefix.to_owned());
        clients.spawn(async move {
            let mut held = Vec::new();
            for number in (client..count).step_by(AT_ONCE) {
                let ask = json!({"session_id": session, "owner": "worker", "lease_id": lease_id()});
                let lock = format!("{prefix}/{number}");
                let lease = until("an acquire to be answered", async || {
                    let reply = locks.acquire(&lock, ask.clone()).await;
                    (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
                });
                held.push(lease.await);
            }
            held
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// What of the session is not cleared away yet, straight from Redis: `h`, lock.
async fn bonds(redis: &Redis, session: SessionId) -> Vec<String> {
    redis.run(&["SMEMBERS", &format!("{{fence:default}}:b:{session}")]).await
}

/// Waits until nothing that was ever made for a lock or a session is left.
async fn until_nothing_is_left(redis: &Redis) {
    // `in-use` ends by itself, when nothing that was granted can live any more.
    let stays = [
        "lineage",
        "token",
        "meta",
        "seq",
        "in-use",
        "held",
        "events",
        "events:once",
        "events:number",
    ]
    .map(|name| format!("{{fence:default}}:{name}"));
    let known = std::sync::atomic::AtomicUsize::new(0);
    until("Redis to hold nothing but counters", async || {
        let mut left: Vec<String> = redis.run(&["KEYS", "*"]).await;
        left.retain(|key| !stays.contains(key));
        if known.swap(left.len(), std::sync::atomic::Ordering::Relaxed) != left.len() {
            eprintln!("{} keys are left: {:?}", left.len(), &left[..left.len().min(4)]);
        }
        left.is_empty().then_some(())
    })
    .await;
}

fn sessions(locks: &Locks) -> Sessions {
    Sessions(locks.0.clone())
}

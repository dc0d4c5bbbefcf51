//! Sessions and takeovers while what they run on is hurt.
#![expect(clippy::print_stderr, reason = "a run prints what it measured and where it stood")]

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
use lease::{Reading, Session, StoredSession};
use serde_json::json;
use tokio::task::JoinSet;

/// Longer than any run: whatever ends was ended.
const TTL_MS: u64 = 60_000;

/// Bytes that the engine puts before a record.
const HEADER: usize = 24;

/// Clients that acquire at the same time.
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
        let locks = locks.clone();
        let prefix = prefix.to_owned();
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

/// The locks whose leases the session has, straight from Redis.
async fn bonds(redis: &Redis, session: SessionId) -> Vec<String> {
    let items = format!("{{fence:default}}:session:{session}#");
    let items: Vec<String> = redis.run(&["ZRANGE", &items, "0", "-1"]).await;
    // The lock, the lease, and nothing of a lease that is held.
    let lock = |item: &String| Some(item.strip_suffix('\0')?.split_once(' ')?.0.to_owned());
    items.iter().filter_map(lock).collect()
}

/// `true` if the session has ended, straight from Redis.
async fn has_ended(redis: &Redis, session: SessionId) -> bool {
    let record = ["GET", &format!("{{fence:default}}:session:{session}")];
    let record: Option<Vec<u8>> = redis.run(&record).await;
    let read = |record: Vec<u8>| lease::from_bytes::<StoredSession>(&record[HEADER..]).unwrap();
    let reading = Reading::Shared { base: 0, shift_ms: 0 };
    record.is_none_or(|record| !Session::from_stored(read(record), reading).is_live())
}

/// Waits until nothing that was ever made for a lock or a session is left.
async fn until_nothing_is_left(redis: &Redis) {
    // `lives-until` ends by itself, when nothing that was granted can live any more.
    let stays = ["lineage", "token", "meta", "lives-until", "servers", "events", "events:last"]
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

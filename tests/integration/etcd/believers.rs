//! Holders by their own knowledge: the replies that each received, and the guard's verdict on them.

use fence_protocol::Code;
use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::{Locks, Reply};
use fence_tests::checks::{overlaps, tokens_rise};
use fence_tests::history::{Granted, History};
use fence_tests::key_file::lease_id;
use fence_tests::servers::Setup;
use fence_tests::wait::until;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::LONG_MS;

/// Sends one request, and records a grant as its holder sees it.
pub(super) async fn acquire_recorded(
    locks: &Locks,
    history: &History,
    lock: &str,
    ask: Value,
) -> Reply {
    let invoked_ns = history.now_ns();
    let reply = locks.acquire(lock, ask).await;
    if reply.status == 200 {
        let lease = reply.clone().lease();
        history.granted(Granted {
            lock: lock.to_owned(),
            lease: lease.lease_id,
            token: lease.token.get(),
            ttl_ms: lease.ttl_ms,
            span: history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
    }
    reply
}

/// A grant, as soon as etcd can be used. A request of unknown outcome is retried.
pub(super) async fn granted(locks: &Locks, history: &History, lock: &str) -> LeaseReply {
    let ask = json!({"ttl_ms": LONG_MS, "lease_id": lease_id()});
    until("a grant", || async {
        let reply = acquire_recorded(locks, history, lock, ask.clone()).await;
        (!matches!(reply.status, 503 | 504)).then(|| reply.lease())
    })
    .await
}

/// A waiter for a lock, for longer than any test.
pub(super) fn waiting(locks: &Locks, lock: &str) -> JoinHandle<Reply> {
    let locks = locks.clone();
    let lock = lock.to_owned();
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    tokio::spawn(async move { locks.acquire(&lock, ask).await })
}

/// Both clients received a grant of the lock, and neither lease has expired by its holder's clock;
/// but the tokens of all grants rise.
pub(super) fn two_believe(history: &History) {
    let grants = history.grants();
    tokens_rise(&grants).unwrap();
    assert_eq!(overlaps(&grants).len(), 1, "{grants:?}");
}

/// An older holder and a newer one: the older one may write until the newer one has written through
/// the guard. From then on it is refused, and the newer one's value stays.
pub(super) async fn the_guard_fences(old: &LeaseReply, new: &LeaseReply) {
    assert_eq!(old.lock, new.lock);
    let server = Setup::fenced_store("memory:").start().await;
    let guard = server.guard();
    let key = old.lock.as_str();
    guard.put(key, &old.fencing_token, "old").await.expect(201);
    let read = guard.fenced_get(key, &new.fencing_token).await.expect(200);
    assert_eq!(read.body.as_ref(), b"old");
    guard.put(key, &old.fencing_token, "late").await.problem(Code::StaleToken);
    guard.put(key, &new.fencing_token, "new").await.expect(204);
    guard.put(key, &old.fencing_token, "late").await.problem(Code::StaleToken);
    let read = guard.fenced_get(key, &new.fencing_token).await.expect(200);
    assert_eq!(read.body.as_ref(), b"new");
}

//! A guard and its lock server change their stores, and no token is admitted twice.

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Server, Setup};
use serde_json::json;

/// Grants of every store are above the marks, whatever stood there before.
#[tokio::test]
async fn embedded_to_redis_and_back_keeps_marks_and_raises_tokens() {
    let (redis, one, two) = (Redis::start().await, DataDir::new(), DataDir::new());
    let (locks_one, locks_two) = (DataDir::new(), DataDir::new());
    let stores = [one.store(), redis.url(), two.store()];
    let lock_stores = [locks_one.store(), redis.url(), locks_two.store()];
    let mut last = None;
    for (number, store) in stores.iter().enumerate() {
        let mut setup = Setup::fenced_store(store);
        if let Some(earlier) = number.checked_sub(1) {
            setup = setup.args(&["--marks-from", &stores[earlier]]);
        }
        let guard = setup.start().await;
        let setup = Setup::lock_server(&lock_stores[number]).args(&["--guard", &guard.base]);
        let lease = setup.start().await.locks().acquire("a", json!({"ttl_ms": 60_000})).await;
        let lease = lease.lease();
        if let Some(earlier) = last.replace(lease.fencing_token.clone()) {
            assert!(late_write(&guard, &earlier).await, "the mark was carried over");
        }
        guard.guard().put("a", &lease.fencing_token, "mine").await;
        guard.guard().put("a", &unsigned(1, "a", lease_id()), "x").await.problem(Code::StaleToken);
    }
}

/// Seals with the new store's mark in place: the earlier holder's token equals the mark, so it is
/// admitted, and one below it is not.
async fn late_write(guard: &Server, token: &str) -> bool {
    guard.guard().fence("a").await.mark.is_some_and(|mark| token.starts_with(&format!("{mark};")))
}

#[tokio::test]
async fn an_earlier_store_without_marks_is_refused() {
    let (earlier, store) = (DataDir::new(), DataDir::new());
    let setup = Setup::fenced_store(&store.store()).args(&["--marks-from", &earlier.store()]);
    let output = setup.refused().await;
    assert!(output.stderr.contains("has no marks of namespace default"), "{output:?}");
}

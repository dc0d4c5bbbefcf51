//! A guard and its lock server change their stores, and no token is admitted twice.

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use serde_json::json;

use crate::locks::guards::informed_process;

/// A guard that takes the marks of `earlier`, where there is one.
fn guard_of(store: &str, earlier: Option<&str>) -> Setup {
    let setup = Setup::fenced_store(store);
    earlier.map_or(setup.clone(), |earlier| setup.args(&["--marks-from", earlier]))
}

#[tokio::test]
async fn from_store_to_store_keeps_marks_and_raises_tokens() {
    let redis = Redis::start().await;
    let postgres = Postgres::start().await;
    let folders: Vec<DataDir> = (0..4).map(|_| DataDir::new()).collect();
    let stores = [folders[0].store(), redis.url(), postgres.url(), folders[1].store()];
    let lock_stores = [folders[2].store(), redis.url(), postgres.url(), folders[3].store()];
    let mut mark = None;
    for (number, store) in stores.iter().enumerate() {
        let earlier = number.checked_sub(1).map(|number| stores[number].as_str());
        let guard = guard_of(store, earlier).start().await;
        assert_eq!(guard.guard().fence("a").await.mark, mark, "as at the earlier store");
        let setup = Setup::lock_server(&lock_stores[number]).args(&["--guard", &guard.base]);
        let server = informed_process(&setup).await;
        let locks = server.locks();
        locks.grant("first", 60_000).await;
        let lease = locks.grant("a", 60_000).await;
        assert!(Some(lease.token) > mark, "{lease:?} above {mark:?}");
        guard.guard().put("a", &lease.fencing_token, "mine").await.expect(201);
        mark = Some(lease.token);
        let late = unsigned(lease.token.get() - 1, "a", lease_id());
        guard.guard().put("a", &late, "late").await.problem(Code::StaleToken);
    }
}

#[tokio::test]
async fn an_earlier_store_without_marks_is_refused() {
    let earlier = DataDir::new();
    let store = DataDir::new();
    let output = guard_of(&store.store(), Some(&earlier.store())).refused().await;
    assert!(output.stderr.contains("has no marks of namespace default"), "{output:?}");
}

/// A floor stands for marks that were lost: without it, stale holders would be admitted. The
/// earlier store is of no account once it has been read.
#[tokio::test]
async fn a_floor_is_carried_over_or_the_guard_does_not_start() {
    let mut earlier = Redis::start().await;
    let redis = Redis::start().await;
    let guard = guard_of(&earlier.url(), None).start().await;
    guard.guard().put("a", &unsigned(100, "a", lease_id()), "x").await.expect(201);
    let floor = json!({"floor": 1000});
    guard.guard().0.post("/v1/floor", &floor).await.expect(200);
    drop(guard);
    let folder = DataDir::new();
    let output = guard_of(&folder.store(), Some(&earlier.url())).refused().await;
    assert!(output.stderr.contains("refuses every token below 1000"), "{output:?}");
    let guard = guard_of(&redis.url(), Some(&earlier.url())).start().await;
    earlier.kill();
    for lock in ["a", "b"] {
        let late = unsigned(500, lock, lease_id());
        guard.guard().put(lock, &late, "late").await.problem(Code::StaleToken);
        guard.guard().put(lock, &unsigned(1001, lock, lease_id()), "x").await;
    }
    let ready = guard.guard().0.get("/readyz?verbose").await.expect(200);
    assert!(!String::from_utf8_lossy(&ready.body).contains(&earlier.address()), "{ready:?}");
}

#[tokio::test]
async fn a_floor_is_carried_to_postgres_and_from_it() {
    let redis = Redis::start().await;
    let postgres = Postgres::start().await;
    let last = Redis::start().await;
    let guard = guard_of(&redis.url(), None).start().await;
    guard.guard().put("a", &unsigned(100, "a", lease_id()), "x").await.expect(201);
    guard.guard().0.post("/v1/floor", &json!({"floor": 1000})).await.expect(200);
    drop(guard);
    for (store, earlier) in [(postgres.url(), redis.url()), (last.url(), postgres.url())] {
        let guard = guard_of(&store, Some(&earlier)).start().await;
        assert_eq!(guard.guard().fence("a").await.mark.map(|mark| mark.get()), Some(100));
        for lock in ["a", "b"] {
            let late = unsigned(999, lock, lease_id());
            guard.guard().put(lock, &late, "late").await.problem(Code::StaleToken);
        }
    }
    let folder = DataDir::new();
    let output = guard_of(&folder.store(), Some(&postgres.url())).refused().await;
    assert!(output.stderr.contains("refuses every token below 1000"), "{output:?}");
}

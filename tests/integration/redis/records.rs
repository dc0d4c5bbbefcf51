//! What stands in Redis: many leases of one lock, another version's records, and nothing for long.

use fence_protocol::LeaseId;
use fence_tests::redis_server::Redis;
use fence_tests::wait::{soon, until_true};
use lock_server::store::{Acquire, Grant, LockStore, Mode, Revoke, StoreError, StoreOptions};
use service_kit::Kit;

use super::kinds::{BRIEF, name, request, server, server_with};

const LONG_MS: u64 = 60_000;

fn shared(ttl_ms: u64) -> Acquire {
    Acquire { mode: Mode::Shared, ..request("many", ttl_ms, 0) }
}

async fn live(store: &dyn LockStore) -> Vec<LeaseId> {
    let shown = store.show(&name("many")).await.unwrap();
    let leases = shown.holder.iter().chain(&shown.also_held);
    let leases: Vec<LeaseId> = leases.map(|holder| holder.lease_id).collect();
    assert_eq!(leases.len(), shown.lease_count);
    leases
}

/// Of many leases each operation touches its own alone, whatever else the record has to be read for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_do_not_disturb_each_other() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let mut kept: Vec<Grant> = Vec::new();
    for _ in 0..30 {
        kept.push(store.acquire(shared(LONG_MS)).await.unwrap());
    }
    let short = Acquire { lock_delay_ms: 1, ..shared(300) };
    let closing = Acquire { lock_delay_ms: LONG_MS, ..shared(300) };
    store.acquire(short).await.unwrap();
    store.acquire(closing).await.unwrap();
    for at in [29, 0, 14, 3, 3] {
        let lease = kept.remove(at.min(kept.len() - 1)).lease_id;
        store.release(&name("many"), lease).await.unwrap();
        let again = store.release(&name("many"), lease).await;
        assert!(matches!(again, Err(StoreError::Lost { .. })), "{again:?}");
    }
    for grant in kept.iter().step_by(3) {
        let renewed = store.renew(&name("many"), grant.lease_id, None).await.unwrap();
        assert_eq!(renewed.token, grant.token);
    }
    until_true("the short ones to end", || async { live(&*store).await.len() == kept.len() }).await;
    kept.push(store.acquire(shared(LONG_MS)).await.unwrap());
    let expected: Vec<LeaseId> = kept.iter().map(|grant| grant.lease_id).collect();
    assert_eq!(live(&*store).await, expected, "in the order of the grants");
    let shown = store.show(&name("many")).await.unwrap();
    assert!(shown.delayed_ms.is_some_and(|rest_ms| rest_ms > LONG_MS / 2), "{shown:?}");
    let one = Revoke { lease: Some(expected[7]), reason: None };
    assert_eq!(store.revoke(&name("many"), one).await.unwrap().len(), 1);
    let rest = store.revoke(&name("many"), Revoke::default()).await.unwrap();
    assert_eq!(rest.len(), expected.len() - 1);
    store.acquire(request("many", LONG_MS, 0)).await.unwrap();
}

/// A lock that nobody wants any more leaves nothing behind, whatever it was used for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_remains_of_idle_locks() {
    let redis = Redis::start().await;
    let store = server_with(&redis, BRIEF).await;
    let permit = |ttl_ms| Acquire { mode: Mode::Permit { size: 2 }, ..request("p", ttl_ms, 0) };
    let held = store.acquire(permit(LONG_MS)).await.unwrap();
    store.acquire(Acquire { lock_delay_ms: 50, ..permit(100) }).await.unwrap();
    let lease_id = fence_tests::key_file::lease_id();
    let part = |lock| Acquire { lease_id, ..request(lock, LONG_MS, 50) };
    let impatient = vec![part("free"), Acquire { mode: Mode::Permit { size: 2 }, ..part("p") }];
    let outcome = store.acquire_all(impatient).await;
    assert!(matches!(outcome, Err(StoreError::Part { .. })), "{outcome:?}");
    store.release(&name("p"), held.lease_id).await.unwrap();
    until_true("only what the namespace needs to be left", || async {
        let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
        keys.iter().all(|key| {
            let key = key.rsplit("}:").next().unwrap_or_default();
            ["lineage", "token", "meta", "seq", "in-use", "held"].contains(&key)
                || key.starts_with("s:")
        })
    })
    .await;
}

/// A record of another version is not guessed at: one clear error, and nothing changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_version_stored_is_refused() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    store.acquire(request("own", LONG_MS, 0)).await.unwrap();
    let theirs = "67e55044-10b1-426f-9247-bb680e5fe0c8\t7\t1000\t0\t0\t0\t\tme\t\t\t\n\n";
    let _: () = redis.run(&["SET", "{fence:default}:l:theirs", theirs]).await;
    let before: u64 = redis.run(&["GET", "{fence:default}:token"]).await;
    let outcome = store.acquire(request("theirs", LONG_MS, 0)).await;
    let Err(StoreError::Unavailable(sentence)) = outcome else { panic!("{outcome:?}") };
    assert!(sentence.contains("theirs") && sentence.contains("another version"), "{sentence}");
    let kept: String = redis.run(&["GET", "{fence:default}:l:theirs"]).await;
    let after: u64 = redis.run(&["GET", "{fence:default}:token"]).await;
    assert_eq!((kept.as_str(), after), (theirs, before));
    // And the locks of this version still expire in time, whatever is due before them.
    let _: () = redis.run(&["ZADD", "{fence:default}:held", "0", "theirs"]).await;
    store.acquire(request("short", 100, 0)).await.unwrap();
    soon("the lock", store.acquire(request("short", LONG_MS, LONG_MS))).await.unwrap();
}

/// A namespace that another version works in is refused at the start, by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_of_another_version_is_refused_at_the_start() {
    let redis = Redis::start().await;
    drop(server(&redis).await);
    let lineage: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
    let _: () = redis.run(&["HDEL", "{fence:default}:meta", "format"]).await;
    let (url, options) = (redis.url().parse().unwrap(), StoreOptions::default());
    let refused = lock_server::store::open(&url, &options, &Kit::new("late")).await;
    let sentence = refused.map(|_| ()).unwrap_err().to_string();
    assert!(sentence.contains("format 1") && sentence.contains("--namespace"), "{sentence}");
    let kept: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
    assert_eq!(kept, lineage);
}

/// A server of the version before grants in a pause, because it does not look at it: its locks are taken
/// over, and it is told by another lineage and another format.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_version_before_is_taken_over_and_shut_out() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let asked = request("a", LONG_MS, 0);
    let held = store.acquire(asked.clone()).await.unwrap();
    drop(store);
    let _: () = redis.run(&["HSET", "{fence:default}:meta", "format", "2"]).await;
    let before: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
    let store = server(&redis).await;
    let format: String = redis.run(&["HGET", "{fence:default}:meta", "format"]).await;
    let lineage: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
    assert!(format == "3" && lineage != before, "format {format}");
    assert_eq!(store.acquire(asked).await.unwrap().token, held.token);
}

//! Records in Redis: many leases of one lock, records that were damaged, and nothing for long.

use fence_protocol::{LeaseId, LockName};
use fence_tests::redis_server::Redis;
use fence_tests::wait::{soon, until_true};
use lock_server::store::{Acquire, Grant, ListQuery, LockStore, Mode, Revoke, StoreError};

use super::kinds::{BRIEF, name, queue_of, request, server, server_with};

const LONG_MS: u64 = 600_000;

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

/// Of many leases each operation touches its own alone, whatever else the record has to be read
/// for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_do_not_disturb_each_other() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let mut kept: Vec<Grant> = Vec::new();
    for _ in 0..30 {
        kept.push(store.acquire(shared(LONG_MS)).await.unwrap());
    }
    let short = Acquire { lock_delay_ms: 1, ..shared(3_000) };
    let closing = Acquire { lock_delay_ms: LONG_MS, ..shared(3_000) };
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

/// A lock that is not used any more leaves nothing behind, whatever it was used for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_remains_of_idle_locks() {
    let redis = Redis::start().await;
    let store = server_with(&redis, BRIEF).await;
    let permit = |ttl_ms| Acquire { mode: Mode::Permit { size: 2 }, ..request("p", ttl_ms, 0) };
    let held = store.acquire(permit(LONG_MS)).await.unwrap();
    store.acquire(Acquire { lock_delay_ms: 500, ..permit(8_000) }).await.unwrap();
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
            ["lineage", "token", "meta", "lives-until", "servers"].contains(&key)
        })
    })
    .await;
}

/// A record that cannot be read is not guessed at: one clear error, and nothing changes. It can be
/// deleted, and is a free lock then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_refused() {
    const KEY: &str = "{fence:default}:lock:theirs";
    let redis = Redis::with(&[("enable-debug-command", "local")]).await;
    let first = server(&redis).await.acquire(request("theirs", LONG_MS, 0)).await.unwrap();
    let _: u64 = redis.run(&["SETRANGE", KEY, "24", "something else"]).await;
    let store = server(&redis).await;
    store.acquire(request("own", LONG_MS, 0)).await.unwrap();
    let digest = async || redis.run::<Vec<String>>(&["DEBUG", "DIGEST-VALUE", KEY]).await;
    let before = digest().await;
    let refused = |outcome: Result<(), StoreError>| {
        let Err(StoreError::Unavailable(sentence)) = outcome else { panic!("{outcome:?}") };
        assert!(sentence.contains("theirs") && sentence.contains("cannot be read"), "{sentence}");
    };
    refused(store.acquire(request("theirs", LONG_MS, 0)).await.map(drop));
    refused(store.acquire(request("theirs", LONG_MS, LONG_MS)).await.map(drop));
    refused(store.renew(&name("theirs"), first.lease_id, None).await.map(drop));
    refused(store.release(&name("theirs"), first.lease_id).await.map(drop));
    refused(store.show(&name("theirs")).await.map(drop));
    assert_eq!(digest().await, before);
    // Other locks are not held up by it.
    store.acquire(request("short", 4_000, 0)).await.unwrap();
    soon("the lock", store.acquire(request("short", LONG_MS, LONG_MS))).await.unwrap();
    let _: u64 = redis.run(&["DEL", KEY]).await;
    let next = store.acquire(request("theirs", LONG_MS, 0)).await.unwrap();
    assert!(next.token > first.token);
}

/// A record that was deleted by hand is a free lock. Its holder learns it, and its waiters are
/// served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_deleted_by_hand_is_a_free_lock() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let two = server(&redis).await;
    let first = one.acquire(request("a", LONG_MS, 0)).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for (at, store) in [&two, &one].into_iter().enumerate() {
        let own = store.clone();
        let asked = request("a", LONG_MS, LONG_MS);
        waiting.spawn(async move { own.acquire(asked).await });
        queue_of(&one, "a", at + 1).await;
    }
    let _: u64 = redis.run(&["DEL", "{fence:default}:lock:a"]).await;
    let renewed = one.renew(&name("a"), first.lease_id, None).await;
    assert!(matches!(renewed, Err(StoreError::Lost { .. })), "{renewed:?}");
    let mut last = first.token;
    // Their places are gone with the record, so they are served in any order.
    while let Some(granted) = soon("a waiter", waiting.join_next()).await {
        let grant = granted.unwrap().unwrap();
        assert!(grant.token > last, "{grant:?} after {last}");
        last = grant.token;
        two.release(&name("a"), grant.lease_id).await.unwrap();
    }
}

/// Redis is searched for the names of the first page alone; the records are read as they are.
#[tokio::test]
async fn a_list_of_many_pages_searches_redis_once() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let mut leases = Vec::new();
    for at in 0..9 {
        let grant = store.acquire(request(&format!("page/{at}"), LONG_MS, 0)).await.unwrap();
        leases.push(grant.lease_id);
    }
    let page = async |after: Option<LockName>| {
        let query = ListQuery { prefix: "page/".to_owned(), after, limit: 3, owner: None };
        let page = store.list(query).await.unwrap();
        let names: Vec<String> = page.locks.iter().map(|line| line.lock.to_string()).collect();
        (names, page.next_after)
    };
    let (first, next) = page(None).await;
    assert_eq!(first, ["page/0", "page/1", "page/2"]);
    let _: String = redis.run(&["CONFIG", "RESETSTAT"]).await;
    let searched = async || {
        let counts: String = redis.run(&["INFO", "commandstats"]).await;
        counts.contains("cmdstat_scan:")
    };
    store.release(&name("page/4"), leases[4]).await.unwrap();
    let (second, next) = page(next).await;
    assert_eq!(second, ["page/3", "page/5", "page/6"], "one that is free is not listed");
    let (third, end) = page(next.clone()).await;
    assert_eq!((third, end), (vec!["page/7".to_owned(), "page/8".to_owned()], None));
    assert!(!searched().await, "a page behind the first was searched for");
    // A page that is asked for anew is the same.
    assert_eq!(page(next).await.0, ["page/7", "page/8"]);
    assert!(searched().await);
}

//! `RecordStore` on a Redis that loses its memory, or has something else in it.

mod clock;
mod damage;
mod formats;
mod lineage;
mod plain;
mod rights;
mod sentinel;

use std::sync::Arc;

use fence_tests::conformance::record_store::{
    Store, batch, group, keep, lock, must_put, names, put, put_for, read, remove, take, write,
};
use fence_tests::redis_server::Redis;
use fence_tests::wait::until;
use lock_server::engines::contract::{Batch, ServerId, Snapshot, Version};
use lock_server::engines::loss::{AfterLoss, LossOptions};
use lock_server::engines::open::StoreUrl;
use lock_server::engines::options::StoreOptions;
use lock_server::engines::redis::RedisRecords;
use lock_server::engines::redis::key_prefix::KeyPrefix;
use lock_server::guards::Guards;
use lock_server::store::StoreError;
use service_kit::Kit;

async fn open(url: &str, after_loss: AfterLoss) -> Result<RedisRecords, String> {
    open_in(url, "default", after_loss).await
}

async fn open_in(
    url: &str,
    namespace: &str,
    after_loss: AfterLoss,
) -> Result<RedisRecords, String> {
    open_with(url, namespace, after_loss, &Kit::new("records")).await
}

async fn open_with(
    url: &str,
    namespace: &str,
    after_loss: AfterLoss,
    kit: &Kit,
) -> Result<RedisRecords, String> {
    let StoreUrl::Redis(target) = url.parse().unwrap() else { panic!("{url}") };
    let options = StoreOptions {
        namespace: fence_protocol::Namespace::new(namespace).unwrap(),
        loss: LossOptions { after_loss, ..LossOptions::default() },
        ..fence_tests::store_options::patient()
    };
    let guards = Guards::new(&Default::default(), &options.namespace, &kit.health).unwrap();
    RedisRecords::start(&target, &options, guards, kit).await
}

async fn server_with(redis: &Redis, after_loss: AfterLoss) -> Store {
    Arc::new(open(&redis.url(), after_loss).await.unwrap())
}

async fn server(redis: &Redis) -> Store {
    server_with(redis, AfterLoss::Wait).await
}

/// A batch that puts one record, takes one token, and begins a lease of so many milliseconds.
fn grant(name: &str, lives_ms: u64) -> Batch {
    let key = lock(name);
    let groups = vec![group(&[(&key, Version::ABSENT)], vec![put(&key, "held")])];
    Batch { groups, tokens: 1, lives_ms, ..Batch::default() }
}

/// Returns the rest of the pause in milliseconds.
fn left(outcome: Result<lock_server::engines::contract::Committed, StoreError>) -> u64 {
    match outcome {
        Err(StoreError::Paused { left_ms }) => left_ms,
        other => panic!("not paused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_flushall_no_lease_begins_while_a_lost_one_may_live() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let two = server(&redis).await;
    let before = one.commit(grant("a", 10_000)).await.unwrap().base;
    let version = must_put(&one, Version::ABSENT, put(&lock("b"), "x")).await;
    two.beat(ServerId(2), 60_000).await.unwrap();
    let _: () = redis.run(&["FLUSHALL"]).await;
    // The second server knows of the lease by its beat alone.
    let left_ms = left(two.commit(grant("a", 10_000)).await);
    assert!(left_ms <= 10_000 + super::LATE_MS, "{left_ms}");
    left(one.commit(grant("c", 2_000)).await);
    assert_eq!(read(&one, &lock("a")).await, Snapshot::absent(lock("a")));
    // A write that takes no token continues, under its versions.
    assert!(write(&one, version, remove(&lock("b"))).await.is_err());
    must_put(&two, Version::ABSENT, put(&lock("b"), "y")).await;
    // A token that is no lease's.
    assert!(take(&one, 1).await.unwrap().base > before);
    let granted = until("the end of the pause", async || one.commit(grant("a", 100)).await.ok());
    let granted = granted.await;
    assert_eq!(granted.groups, [Ok(())]);
    assert!(granted.base > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_dead_server_granted_is_waited_for() {
    // Redis keeps its memory, and is another process afterwards, which may have lost some.
    let mut redis = Redis::start().await;
    server(&redis).await.commit(grant("a", 600_000)).await.unwrap();
    redis.restart().await;
    let next = server(&redis).await;
    let left_ms = left(next.commit(grant("b", 1_000)).await);
    assert!((500_000..=680_000).contains(&left_ms), "{left_ms}");
    // Another server does not end it, nor does a second restart.
    redis.restart().await;
    left(server(&redis).await.commit(grant("b", 1_000)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_grants_are_wished_after_a_loss_they_begin_at_once() {
    let redis = Redis::start().await;
    let one = server_with(&redis, AfterLoss::Grant).await;
    let before = one.commit(grant("a", 600_000)).await.unwrap().base;
    let _: () = redis.run(&["FLUSHALL"]).await;
    let after = one.commit(grant("a", 600_000)).await.unwrap();
    assert_eq!(after.groups, [Ok(())]);
    assert!(after.base > before, "{} after {before}", after.base);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_is_lost() {
    let mut redis = Redis::with(&[("appendonly", "no"), ("save", "")]).await;
    let one = server_with(&redis, AfterLoss::Grant).await;
    let mut last = take(&one, 1).await.unwrap().base;
    let key = lock("a");
    let mut version = must_put(&one, Version::ABSENT, put(&key, "x")).await;
    for lost in [
        &["DEL", "{fence:default}:token"][..],
        &["SET", "{fence:default}:token", "5"],
        &["SET", "{fence:default}:token", "many"],
        &["DEL", "{fence:default}:lineage"],
        &["SET", "{fence:default}:lineage", "another"],
        &["DEL", "{fence:default}:meta"],
        &["HSET", "{fence:default}:meta", "run_id", "another"],
        &["SCRIPT", "FLUSH"],
        &["FLUSHALL"],
    ] {
        let _: redis::Value = redis.run(lost).await;
        if lost.get(1) == Some(&"{fence:default}:meta") {
            // Noticed where a connection is verified.
            let _: redis::Value = redis.run(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        }
        let base = until("tokens", async || take(&one, 1).await.ok()).await.base;
        assert!(base > last, "{lost:?}: {base} after {last}");
        last = base;
        let found = read(&one, &key).await.version;
        assert!(found == version || lost[0] == "FLUSHALL" && found == Version::ABSENT, "{lost:?}");
        version = must_put(&one, found, put(&key, "y")).await;
    }
    redis.kill();
    redis.start_again().await;
    let base = until("tokens", async || take(&one, 1).await.ok()).await.base;
    assert!(base > last, "{base} after {last}");
    assert_eq!(read(&one, &key).await, Snapshot::absent(key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_below_what_was_seen_is_noticed_by_each_server() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let two = server(&redis).await;
    let seen = take(&one, 100).await.unwrap().base + 100;
    let _: () = redis.run(&["INCRBY", "{fence:default}:token", "-50"]).await;
    // This one has not seen it, but what it decides on was.
    let known = Batch { counter: seen, tokens: 1, ..Batch::default() };
    assert!(two.commit(known).await.unwrap().base > seen);
    assert!(take(&one, 1).await.unwrap().base > seen);
}

/// By every script of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lineage_that_is_gone_is_noticed_whatever_is_asked() {
    let redis = Redis::start().await;
    let one = server_with(&redis, AfterLoss::Grant).await;
    for at in 0..4 {
        let _: u64 = redis.run(&["DEL", "{fence:default}:lineage"]).await;
        match at {
            0 => drop(take(&one, 0).await.unwrap()),
            1 => drop(read(&one, &lock("a")).await),
            2 => drop(one.items(&lock("a"), None, 1).await.unwrap()),
            _ => drop(one.beat(ServerId(1), 1_000).await.unwrap()),
        }
        assert_eq!(redis.run::<u64>(&["EXISTS", "{fence:default}:lineage"]).await, 1, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_idle_locks() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let key = lock("a");
    let mut first = put_for(&key, "x", Some(200));
    first.items.push(("i".to_owned(), Some(vec![1])));
    let groups = vec![group(&[(&key, Version::ABSENT)], vec![first])];
    // Another one had its items before it was known for how long.
    let later = must_put(&one, Version::ABSENT, put(&lock("later"), "x")).await;
    write(&one, later, keep(&lock("later"), &[("i", Some("1"))])).await.unwrap();
    must_put(&one, later, put_for(&lock("later"), "x", Some(200))).await;
    let removed = must_put(&one, Version::ABSENT, put(&lock("removed"), "x")).await;
    write(&one, removed, keep(&lock("removed"), &[("i", Some("1"))])).await.unwrap();
    write(&one, removed, remove(&lock("removed"))).await.unwrap();
    one.commit(Batch { groups, tokens: 1, lives_ms: 100, ..Batch::default() }).await.unwrap();
    one.beat(ServerId(1), 100).await.unwrap();
    until("all of it to be gone", async || {
        let keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
        (keys.len() == 3).then_some(())
    })
    .await;
    let mut keys: Vec<String> = redis.run(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, ["lineage", "meta", "token"].map(|name| format!("{{fence:default}}:{name}")));
    assert_eq!(one.commit(batch(vec![])).await.unwrap().groups, []);
}

/// A lineage that another server began may not have the bound that the former one had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_sent_again_says_how_long_its_leases_live() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let leases = |name| {
        let key = lock(name);
        let groups = vec![group(&[(&key, Version::ABSENT)], vec![put(&key, "held")])];
        Batch { lives_ms: 60_000, ..batch(groups) }
    };
    store.commit(leases("a")).await.unwrap();
    let _: () = redis.run(&["SET", "{fence:default}:lineage", "another"]).await;
    let _: u64 = redis.run(&["DEL", "{fence:default}:lives-until"]).await;
    store.commit(leases("b")).await.unwrap();
    assert_eq!(redis.run::<u64>(&["EXISTS", "{fence:default}:lives-until"]).await, 1);
}

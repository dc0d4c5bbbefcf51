//! Other versions of lock-server on the same namespace.

use fence_tests::conformance::lock_store;
use fence_tests::wait::PATIENCE;
use lock_server::store::records::redis::init_fresh;

use super::*;

async fn open_0_1(redis: &Redis, kit: &Kit) -> Result<lock_store::Store, String> {
    let options = fence_tests::store_options::patient();
    let url = redis.url().parse().unwrap();
    let opened = lock_server::store::open(&url, &options, kit).await;
    opened.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_0_1_are_refused_and_left_as_they_are() {
    let redis = Redis::start().await;
    let old = open_0_1(&redis, &Kit::new("records")).await.unwrap();
    lock_store::the_same_id_gets_the_same_grant(&old).await;
    let meta: Vec<String> = redis.run(&["HGETALL", "{fence:default}:meta"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    for part in ["format 3", "format 4", "delete its keys {fence:default}:*", "--namespace"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(redis.run::<Vec<String>>(&["HGETALL", "{fence:default}:meta"]).await, meta);
    // It goes on.
    lock_store::waiters_are_served_in_order(&old).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_0_1_and_newer_ones_stay_apart() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    one.commit(grant("a", 1_000)).await.unwrap();
    let error = open_0_1(&redis, &Kit::new("records")).await.unwrap_err();
    assert!(error.contains("format 4"), "{error}");
    let _: u64 = redis.run(&["HSET", "{fence:default}:meta", "format", "5"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains("format 5"), "{error}");
}

/// The operator deletes what 0.1 had, as the refusal says, and tokens go on above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_go_on_above_those_of_0_1() {
    let redis = Redis::start().await;
    let kit = Kit::new("records");
    lock_store::the_same_id_gets_the_same_grant(&open_0_1(&redis, &kit).await.unwrap()).await;
    kit.tasks.begin_shutdown();
    assert!(kit.tasks.drained(PATIENCE).await);
    let last: u64 = redis.run(&["GET", "{fence:default}:token"]).await;
    let keys: Vec<String> = redis.run(&["KEYS", "{fence:default}:*"]).await;
    let mut delete = vec!["DEL"];
    delete.extend(keys.iter().map(String::as_str));
    let _: u64 = redis.run(&delete).await;
    let base = take(&server(&redis).await, 1).await.unwrap().base;
    assert!(base >= last, "{base} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_vouched_for_begins_at_1() {
    let redis = Redis::start().await;
    let StoreUrl::Redis(target) = redis.url().parse().unwrap() else { panic!() };
    let (namespace, kit) = (fence_protocol::Namespace::default(), Kit::new("records"));
    let guards = Guards::new(&[], &namespace, &kit.health).unwrap();
    let init = async || init_fresh(&target, &KeyPrefix::default(), &namespace, &guards).await;
    init().await.unwrap();
    assert_eq!(take(&server(&redis).await, 1).await.unwrap().base, 0);
    let error = init().await.unwrap_err();
    assert!(error.contains("in use") && error.contains("nothing was changed"), "{error}");
    let _: u64 = redis.run(&["DEL", "{fence:default}:lineage"]).await;
    let error = init().await.unwrap_err();
    assert!(error.contains("is not new"), "{error}");
}

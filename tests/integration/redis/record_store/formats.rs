//! Other versions of lock-server on the same namespace.

use lock_server::engines::redis::init_fresh;

use super::*;

const META: &str = "{fence:default}:meta";

/// A namespace as 0.1 left it.
async fn write_0_1(redis: &Redis) {
    let record = "67e55044-10b1-426f-9247-bb680e5fe0c8\t7\t1000\t0\t0\t0\t\tme\t\t\t\n\n";
    for words in [
        &["HSET", META, "run_id", "x", "replication_id", "y", "format", "3"][..],
        &["SET", "{fence:default}:lineage", "z"],
        &["SET", "{fence:default}:token", "7"],
        &["SET", "{fence:default}:l:a", record],
    ] {
        let _: redis::Value = redis.run(words).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_0_1_are_refused_and_left_as_they_are() {
    let redis = Redis::with(&[("enable-debug-command", "local")]).await;
    write_0_1(&redis).await;
    let digest = async || redis.run::<String>(&["DEBUG", "DIGEST"]).await;
    let before = digest().await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    for part in ["format 3", "format 4", "delete its keys {fence:default}:*", "--namespace"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(digest().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_a_newer_version_are_refused() {
    let redis = Redis::start().await;
    server(&redis).await.commit(grant("a", 1_000)).await.unwrap();
    let _: u64 = redis.run(&["HSET", META, "format", "5"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains("format 5"), "{error}");
}

/// The operator deletes what another version had, as the refusal says, and tokens go on above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_go_on_above_those_that_were_deleted() {
    let redis = Redis::start().await;
    let last = take(&server(&redis).await, 1).await.unwrap().base + 1;
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
    let namespace = fence_protocol::Namespace::default();
    let kit = Kit::new("records");
    let guards = Guards::new(&Default::default(), &namespace, &kit.health).unwrap();
    let init = async || init_fresh(&target, &KeyPrefix::default(), &namespace, &guards).await;
    init().await.unwrap();
    assert_eq!(take(&server(&redis).await, 1).await.unwrap().base, 0);
    let error = init().await.unwrap_err();
    assert!(error.contains("in use") && error.contains("nothing was changed"), "{error}");
    let _: u64 = redis.run(&["DEL", "{fence:default}:lineage"]).await;
    let error = init().await.unwrap_err();
    assert!(error.contains("lineage missing") && error.contains("nothing was changed"), "{error}");
}

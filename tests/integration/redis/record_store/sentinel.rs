//! A Redis that sentinels choose.

use fence_tests::redis_sentinel::SentinelGroup;

use super::*;

const LINEAGE: &str = "{fence:default}:lineage";
const META: &str = "{fence:default}:meta";

/// Leases that the new master may lack are waited for, and tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_a_loss() {
    let group = SentinelGroup::start().await;
    let one = open(&group.url_of_one(), AfterLoss::Wait).await.unwrap();
    let one: Store = Arc::new(one);
    let last = one.commit(grant("a", 600_000)).await.unwrap().base;
    group.fail_over(1).await;
    let after = until("the new master", async || take(&one, 1).await.ok()).await;
    assert!(after.base > last, "{} after {last}", after.base);
    assert!(left(one.commit(grant("b", 1_000)).await) > 500_000);
    // Another server, which has granted nothing.
    let two: Store = Arc::new(open(&group.url_of_one(), AfterLoss::Wait).await.unwrap());
    left(two.commit(grant("b", 1_000)).await);
    drop((one, two));
    a_choice_that_is_not_the_last_one_is_noticed(&group.url_of_one(), group.redis(1)).await;
}

/// By the numbers of their choices, which only rise.
async fn a_choice_that_is_not_the_last_one_is_noticed(url: &str, redis: &Redis) {
    let (lineage, epoch): (String, u64) =
        (redis.run(&["GET", LINEAGE]).await, redis.run(&["HGET", META, "epoch"]).await);
    // The same process, which another server has used in a later epoch.
    let later = (epoch + 1).to_string();
    let _: u64 = redis.run(&["HSET", META, "epoch", &later]).await;
    let error = open(url, AfterLoss::Grant).await.unwrap_err();
    assert!(error.contains("they are behind") && error.contains(META), "{error}");
    assert_eq!(redis.run::<String>(&["GET", LINEAGE]).await, lineage);
    let _: u64 = redis.run(&["HSET", META, "epoch", &epoch.to_string()]).await;
    open(url, AfterLoss::Grant).await.unwrap();
    assert_eq!(redis.run::<String>(&["GET", LINEAGE]).await, lineage);
    // The same process, chosen again after another one.
    let _: u64 = redis.run(&["HSET", META, "epoch", &(epoch - 1).to_string()]).await;
    open(url, AfterLoss::Grant).await.unwrap();
    assert_ne!(redis.run::<String>(&["GET", LINEAGE]).await, lineage);
}

//! Every sign that a Redis may have lost commits, one at a time, and what a start makes of it.

use std::time::Duration;

use fence_tests::fault_proxy::{Fault, FaultProxy};
use lease::tokens;
use service_kit::clock::{Clock as _, SystemClock};

use super::*;

const LINEAGE: &str = "{fence:default}:lineage";
const META: &str = "{fence:default}:meta";
const TOKEN: &str = "{fence:default}:token";
const NO_TEXT: &str = "return redis.call('SET', KEYS[1], '\\255')";
const PAUSED: &str = "{fence:default}:paused-for";

/// Damage to a Redis with the counter 7 and a lease of a minute, and the reason that is noted.
const SIGNS: [(&[&str], &str); 9] = [
    (&["DEL", LINEAGE], "the lineage or the counter is gone"),
    (&["DEL", TOKEN], "the lineage or the counter is gone"),
    (&["SET", TOKEN, "many"], "the lineage or the counter is gone"),
    (&["EVAL", NO_TEXT, "1", TOKEN], "the lineage or the counter is gone"),
    (&["HSET", META, "run_id", "x"], "the Redis process changed"),
    (&["HSET", META, "replication_id", "x"], "the replication history changed"),
    (&["HSET", META, "counter", "8"], "the counter fell to 7"),
    (&["DEL", META], "the Redis process changed"),
    (&["FLUSHALL"], "nothing is stored: new, or emptied"),
];

async fn lineage_of(redis: &Redis) -> String {
    redis.run::<Option<String>>(&["GET", LINEAGE]).await.unwrap_or_default()
}

/// Sets the counter low, which a start above the clock floor would hide, and leases for a minute.
async fn used(redis: &Redis) -> String {
    let _: () = redis.run(&["FLUSHALL"]).await;
    let one = server_with(redis, AfterLoss::Grant).await;
    let groups = vec![group(&[(&lock("a"), Version::ABSENT)], vec![put(&lock("a"), "held")])];
    one.commit(Batch { lives_ms: 60_000, ..batch(groups) }).await.unwrap();
    let _: () = redis.run(&["SET", TOKEN, "7"]).await;
    let _: u64 = redis.run(&["HSET", META, "counter", "7", "reason", "none"]).await;
    lineage_of(redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sign_of_a_loss_begins_a_lineage() {
    let redis = Redis::start().await;
    for (damage, reason) in SIGNS {
        let before = used(&redis).await;
        let _: redis::Value = redis.run(damage).await;
        let floor = tokens::restart_floor(SystemClock::new().wall_ms() - 60_000);
        drop(server(&redis).await);
        assert_ne!(lineage_of(&redis).await, before, "{damage:?}");
        assert_eq!(redis.run::<String>(&["HGET", META, "reason"]).await, reason, "{damage:?}");
        assert!(redis.run::<u64>(&["GET", TOKEN]).await > floor, "{damage:?}");
        // What is emptied no server of this test remembers.
        let left_ms: i64 = redis.run(&["PTTL", PAUSED]).await;
        assert_eq!(left_ms > 30_000, damage[0] != "FLUSHALL", "{damage:?}: {left_ms}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sign_the_lineage_stays() {
    let redis = Redis::start().await;
    let before = used(&redis).await;
    let one = server(&redis).await;
    assert_eq!(lineage_of(&redis).await, before);
    assert_eq!(redis.run::<u64>(&["GET", TOKEN]).await, 7);
    assert_eq!(redis.run::<u64>(&["EXISTS", PAUSED]).await, 0);
    // A guard has seen as much: nothing is lost. It has seen more: something is.
    one.lift(fence_protocol::Token::new(7).unwrap()).await.unwrap();
    assert_eq!(lineage_of(&redis).await, before);
    one.lift(fence_protocol::Token::new(8).unwrap()).await.unwrap();
    let reason: String = redis.run(&["HGET", META, "reason"]).await;
    assert_eq!(reason, "the counter 7 is below 8, which a guard has seen");
    assert_ne!(lineage_of(&redis).await, before);
    // Another server began a lineage, and may not know of the lease.
    let _: () = redis.run(&["SET", LINEAGE, "another"]).await;
    let _: u64 = redis.run(&["DEL", PAUSED]).await;
    let taken = one.commit(grant("b", 1_000)).await;
    assert!(left(taken) > 30_000);
    assert_eq!(lineage_of(&redis).await, "another");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_without_tokens_is_refused_and_left() {
    let redis = Redis::start().await;
    let before = used(&redis).await;
    let _: () = redis.run(&["SET", TOKEN, "999999999999999"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains("no token left"), "{error}");
    assert_eq!(lineage_of(&redis).await, before);
    let _: () = redis.run(&["SET", META, "x"]).await;
    let error = open(&redis.url(), AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains("is no hash: no lock server has written it"), "{error}");
}

/// All have read before one of them writes, because each step is slow; the others find its lineage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_together_begin_one_lineage() {
    let redis = Redis::start().await;
    used(&redis).await;
    let _: u64 = redis.run(&["HSET", META, "run_id", "x"]).await;
    let proxy = FaultProxy::before(&redis.address()).await;
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let url = format!("redis://{}", proxy.address());
    let kits = [(); 4].map(|()| Kit::new("records"));
    let starts = kits.each_ref().map(|kit| open_with(&url, "default", AfterLoss::Wait, kit));
    let started = futures_util::future::join_all(starts).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    let metric = "fencepost_lock_lineages_begun_total 1";
    let begun = kits.iter().filter(|kit| kit.metrics.encode().contains(metric)).count();
    assert_eq!(begun, 1);
}

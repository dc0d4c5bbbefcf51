//! The clock of Redis is stepped.

use fence_tests::redis_clock::SteppedRedis;

use super::*;

const HOUR: i64 = 3_600;
const LIVES_MS: u64 = 10_000;
/// The bound in Redis is ahead by an eighth of the lease.
const PAUSE_MAX_MS: u64 = LIVES_MS + LIVES_MS / 8;

async fn server(redis: &SteppedRedis) -> Store {
    Arc::new(open(&redis.url(), AfterLoss::Wait).await.unwrap())
}

/// Whichever server is asked; a write that takes no token continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_begins_beside_one_that_ended_by_a_jump() {
    let redis = SteppedRedis::start().await;
    let one = server(&redis).await;
    let two = server(&redis).await;
    one.commit(grant("a", LIVES_MS)).await.unwrap();
    two.beat(ServerId(2), 60_000).await.unwrap();
    let known_ms = two.now_ms();
    redis.step(HOUR);
    // What is only read is not believed.
    read(&two, &lock("a")).await;
    assert!(two.now_ms() < known_ms + 3_000_000);
    assert!(left(two.commit(grant("b", 3_000)).await) <= PAUSE_MAX_MS);
    left(one.commit(grant("b", 3_000)).await);
    must_put(&one, Version::ABSENT, put(&lock("c"), "x")).await;
    // A clock that goes back does not make the pause an hour longer.
    redis.step(0);
    assert!(left(one.commit(grant("b", 3_000)).await) <= PAUSE_MAX_MS);
    until("the end of the pause", async || one.commit(grant("b", 100)).await.ok()).await;
    // The time of the records went on as if the clock had not jumped.
    for server in [&one, &two] {
        assert!(take(server, 0).await.unwrap().now_ms.unwrap() < known_ms + 3_000_000);
        assert!(server.now_ms() < known_ms + 3_000_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_where_nothing_lives_stops_nothing() {
    let redis = SteppedRedis::start().await;
    let one = server(&redis).await;
    redis.step(HOUR);
    assert_eq!(one.commit(grant("a", 60_000)).await.unwrap().groups, [Ok(())]);
}

//! Sessions before many servers: begun at one, renewed at another, their leases acquired at a
//! third.

use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};
use fence_tests::session_load::SessionLoad;

use super::{Fleet, SERVERS};

const PROCESSES: usize = 5;

fn names() -> Vec<String> {
    (0..6).map(|number| format!("s/{number}")).collect()
}

/// One server at a time dies while processes keep their locks by heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_each_server() {
    let mut seed = Seed::of_run("many_servers::sessions::sessions_outlive_each_server");
    let redis = Redis::start().await;
    let mut fleet = Fleet::before(&redis).await;
    let locks = fleet.round_robin();
    let load = SessionLoad::start(&locks, &names(), PROCESSES, &mut seed);
    for round in 0..rounds(6, 200) {
        load.progress(3).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        let victim = round % SERVERS;
        fleet.kill(victim);
        load.progress(3).await;
        fleet.rise(victim).await;
    }
    load.progress(10).await;
    load.judge().await;
    let answers = locks.0.answers();
    assert!(answers.iter().all(|count| *count > 0), "a server took no part: {answers:?}");
}

/// Redis itself dies again and again, and comes back with its data. What was answered is still so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_outlive_redis() {
    let mut seed = Seed::of_run("many_servers::sessions::sessions_outlive_redis");
    let mut redis = Redis::start().await;
    let fleet = Fleet::before(&redis).await;
    let locks = fleet.round_robin();
    let load = SessionLoad::start(&locks, &names(), PROCESSES, &mut seed);
    for _ in 0..rounds(3, 80) {
        load.progress(4).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        redis.kill();
        redis.start_again().await;
    }
    load.progress(10).await;
    load.judge().await;
}

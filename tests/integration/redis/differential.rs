//! The scripts in Redis against the rules in memory: the same random steps at both, and whoever asks
//! must see the same. Times are left out: nothing expires during a round.

mod sides;
mod steps;

use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};

use self::sides::Side;
use self::steps::World;

const STEPS: usize = 40;

/// Two servers share the Redis; the memory store is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scripts_do_what_the_rules_say() {
    let mut seed = Seed::of_run("the_scripts_do_what_the_rules_say");
    let redis = Redis::with(&[("appendfsync", "everysec")]).await;
    let url = redis.url();
    let mut rules = Side::open("rules", &["memory:"]).await;
    let mut scripts = Side::open("scripts", &[&url, &url]).await;
    for round in 0..rounds(20, 300) {
        let mut seed = seed.fork();
        let mut world = World::new(round, &mut seed);
        let mut log = Vec::new();
        for _ in 0..STEPS {
            let step = world.step(&mut seed);
            log.push(format!("{step:?}"));
            let (ours, theirs) = (rules.apply(&step).await, scripts.apply(&step).await);
            assert_eq!(ours, theirs, "rules and scripts differ; steps:\n{}", log.join("\n"));
            sides::agree(&mut rules, &mut scripts, &world, &log).await;
        }
        for side in [&mut rules, &mut scripts] {
            side.clean_up(&world).await;
        }
    }
}

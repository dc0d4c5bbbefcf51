//! Two servers on one Redis against one with its own memory: the same random steps at both, and
//! every caller must see the same. Times are left out: nothing expires during a round.

mod sides;
mod steps;

use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};

use self::sides::Side;
use self::steps::World;

const STEPS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_do_what_one_does() {
    let mut seed = Seed::of_run("two_servers_do_what_one_does");
    let redis = Redis::with(&[("appendfsync", "everysec")]).await;
    let url = redis.url();
    let mut one = Side::open("one", &["memory:"]).await;
    let mut two = Side::open("two", &[&url, &url]).await;
    for round in 0..rounds(20, 300) {
        let mut seed = seed.fork();
        let mut world = World::new(round, &mut seed);
        let mut log = Vec::new();
        for _ in 0..STEPS {
            let step = world.step(&mut seed);
            log.push(format!("{step:?}"));
            let ours = one.apply(&step).await;
            let theirs = two.apply(&step).await;
            assert_eq!(ours, theirs, "one server and two differ; steps:\n{}", log.join("\n"));
            sides::agree(&mut one, &mut two, &world, &log).await;
        }
        for side in [&mut one, &mut two] {
            side.clean_up(&world).await;
        }
    }
}

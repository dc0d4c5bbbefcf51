//! The scripts of a node against the node in Rust: the same random steps at both, and every answer,
//! every number and everything that is left behind must be the same.
//!
//! The clock is the test's: where a script asks for the time it is given the test's, which jumps and
//! goes back as it likes. Redis itself would let keys go by its own clock, so they are far from
//! that, and the test takes away what Redis would have.

mod sides;
mod steps;

use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};

use self::sides::RealNode;
use self::steps::World;

const STEPS: usize = 80;

#[tokio::test]
async fn the_scripts_of_a_node_do_what_the_rules_say() {
    let mut seed = Seed::of_run("the_scripts_of_a_node_do_what_the_rules_say");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let mut real = RealNode::new(&redis).await;
    let mut words = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..rounds(60, 3_000) {
        let mut seed = seed.fork();
        real.begin().await;
        let mut world = World::new(&mut seed);
        let mut log = Vec::new();
        for _ in 0..STEPS {
            let step = world.step(&mut seed);
            log.push(format!("{} {step:?}", world.now_ms));
            let ours = step.at_rules(&mut world);
            let theirs = real.take(&step, &world).await;
            assert_eq!(ours, theirs, "rules and scripts differ; steps:\n{}", log.join("\n"));
            *words.entry(steps::word(&ours)).or_default() += 1;
            real.agrees(&world, &log).await;
        }
    }
    // A walk that never meets an answer says nothing about it.
    let missing: Vec<_> = steps::WORDS.iter().filter(|word| !words.contains_key(**word)).collect();
    assert!(missing.is_empty(), "never answered: {missing:?} of {words:?}");
}

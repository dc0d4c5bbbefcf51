//! The scripts of a node against the node in Rust: the same random steps at both, and every answer,
//! every number and everything that is left behind must be the same.
//!
//! The clock is the test's: where a script asks for the time it is given the test's, which jumps
//! and goes back as it likes. Redis itself would let keys go by its own clock, so they are far from
//! that, and the test takes away what Redis would have.

mod sides;
mod steps;

use fence_tests::redis_server::Redis;
use fence_tests::seed::{Seed, rounds};

use lock_server::engines::quorum::replies::read_reply;
use lock_server::engines::quorum::rules::view::Addressee;
use lock_server::engines::quorum::rules::{NodeId, NodeReply, Operation};
use lock_server::engines::quorum::scripts::Init;
use redis_link::LinkError;

use self::sides::RealNode;
use self::steps::{NodeStep, World};

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
            for word in steps::words(&ours) {
                *words.entry(word).or_default() += 1;
            }
            real.agrees(&world, &log).await;
        }
    }
    // A walk that never meets an answer says nothing about it.
    let missing: Vec<_> = steps::WORDS.iter().filter(|word| !words.contains_key(**word)).collect();
    assert!(missing.is_empty(), "never answered: {missing:?} of {words:?}");
}

/// A record that is none fails the operation about it, and no other one of the call.
#[tokio::test]
async fn an_operation_that_fails_does_not_touch_the_others() {
    let mut seed = Seed::of_run("an_operation_that_fails_does_not_touch_the_others");
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let mut real = RealNode::new(&redis).await;
    let world = World::new(&mut seed);
    let node: NodeId = "node-1".parse().unwrap();
    let view = steps::first_view();
    let run_id = "run-1".to_owned();
    real.take(&NodeStep::Doubt(run_id.clone(), None, node.clone()), &world).await;
    let init = Init { view: view.clone(), node: node.clone(), run_id, floor: 0 };
    real.take(&NodeStep::Init(init), &world).await;
    real.take(&NodeStep::Ready(view.clone(), node.clone()), &world).await;
    redis.run::<()>(&["LPUSH", &real.record(&world.locks[1]), "x"]).await;
    let operations: Vec<Operation> = world.votes();
    let to = Addressee { view: &view, node: &node };
    let replies = real.batch(to, &operations).await;
    let is_accepted = |reply: &Result<_, LinkError>| {
        let reply = reply.clone().map(|value| read_reply(value).unwrap());
        matches!(reply, Ok(NodeReply::Accepted { .. }))
    };
    assert!(is_accepted(&replies[0]) && is_accepted(&replies[2]), "{replies:?}");
    let failed = matches!(&replies[1], Err(LinkError::Server { code, .. }) if code == "WRONGTYPE");
    assert!(failed, "{replies:?}");
}

//! Single histories.

use super::*;

fn run(world: &mut World, steps: &[ModelStep]) {
    steps.iter().for_each(|step| world.step(*step));
}

fn arrive(token: u64, resource: usize, what: What) -> ModelStep {
    ModelStep::Arrive { token, resource, what, patience_ms: 100 }
}

/// Steps of a write that arrives, is applied and answered.
fn done(token: u64, resource: usize, what: What) -> [ModelStep; 4] {
    let arrive = arrive(token, resource, what);
    [arrive, ModelStep::Persist(2), ModelStep::Land(0), ModelStep::Answer(0)]
}

/// A delayed write comes when its content is there again.
fn late_write(world: &mut World) {
    run(world, &done(1, 0, What::Put(0)));
    run(world, &[arrive(1, 0, What::Put(1)), ModelStep::Break(0)]);
    // The same write again takes its turn first, so that nothing is in quarantine.
    run(world, &[ModelStep::Land(1), ModelStep::Answer(0)]);
    assert!(world.lane.quarantine().is_none());
    assert_eq!(world.flights.len(), 1, "the first one is still out: {:?}", world.flights);
    for content in [2, 0] {
        let write = arrive(2, 0, What::Put(content));
        run(world, &[write, ModelStep::Persist(2), ModelStep::Land(1), ModelStep::Answer(0)]);
    }
    assert_eq!(world.landed, 4);
    run(world, &[ModelStep::Pass(10 * LIFETIME_MS), ModelStep::Land(0)]);
}

#[test]
fn a_late_write_finds_its_content_again_and_not_its_version() {
    let mut world = World::new(false);
    late_write(&mut world);
    assert_eq!((world.landed, world.flights.len()), (4, 0), "it was refused");
}

/// The second sending is refused, and not because of the tag: the first one may still find it.
#[test]
fn a_refusal_for_another_reason_settles_nothing() {
    let mut world = World::new(false);
    run(&mut world, &done(1, 0, What::Put(0)));
    run(&mut world, &[arrive(1, 0, What::Put(1)), ModelStep::Break(0)]);
    run(&mut world, &[ModelStep::Deny(1), ModelStep::Answer(0)]);
    run(&mut world, &[arrive(2, 0, What::Read), ModelStep::Persist(2), ModelStep::Answer(0)]);
    assert!(world.lane.quarantine().is_some(), "{:?}", world.lane);
    run(&mut world, &[ModelStep::Land(0)]);
    assert_eq!(world.landed, 2, "within the lifetime, before anything higher was answered");
}

/// Control: what the probe keeps out.
#[test]
#[should_panic = "was applied after"]
fn without_the_probe_equal_content_would_be_an_equal_version() {
    let mut world = World::new(true);
    world.is_conditional = true;
    late_write(&mut world);
}

/// An upstream whose tags are hashes does not pass the probe.
#[test]
fn hashes_of_the_content_are_no_versions() {
    assert!(!World::new(true).is_conditional);
    assert!(World::new(false).is_conditional);
}

/// After a crash a newer token's PUT goes at once, and its DELETE waits.
#[test]
fn a_put_need_not_wait_for_a_quarantine_and_a_delete_must() {
    let mut world = World::new(false);
    run(&mut world, &done(1, 0, What::Put(0)));
    run(&mut world, &[arrive(1, 0, What::Put(1)), ModelStep::Crash(0, true)]);
    assert!(world.lane.quarantine().is_some());
    let put = arrive(2, 0, What::Put(1));
    run(&mut world, &[put, ModelStep::Persist(2), ModelStep::Land(1), ModelStep::Answer(0)]);
    assert_eq!((world.landed, world.lane.quarantine().is_some()), (2, true));
    run(&mut world, &[arrive(2, 0, What::Delete), arrive(2, 1, What::Post(0))]);
    assert_eq!(world.flights.len(), 1, "what could make a creation possible again waits");
    run(&mut world, &[ModelStep::Land(0)]);
    assert_eq!(world.landed, 2, "the one before the crash is dead");
}

/// One write without a condition among those that are out is enough.
#[test]
fn a_put_waits_for_a_quarantine_that_another_write_caused() {
    for order in [[0, 0], [1, 0]] {
        let mut world = World::new(false);
        run(&mut world, &done(1, 0, What::Put(0)));
        run(&mut world, &[arrive(1, 0, What::Post(1)), ModelStep::Persist(2)]);
        run(&mut world, &[arrive(1, 1, What::Put(1))]);
        assert_eq!(world.flights.len(), 2);
        run(&mut world, &order.map(ModelStep::Break));
        run(&mut world, &[arrive(2, 0, What::Put(2)), ModelStep::Persist(2)]);
        assert_eq!(world.flights.len(), 2, "{order:?}: a POST could be applied after it");
    }
}

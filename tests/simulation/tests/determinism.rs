//! One seed is one history.

use fence_simulation::run;

/// Servers, clients and faults of every kind are in the first seeds.
#[test]
fn a_seed_gives_the_same_bytes_again() {
    for seed in 0..12 {
        let first = run(seed, true);
        let again = run(seed, true);
        assert!(first.trace.lines().count() > 100, "seed {seed} does next to nothing");
        let differs = first.trace.lines().zip(again.trace.lines()).find(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace.len(), again.trace.len(), "seed {seed}");
        assert_eq!(first.violation, again.violation, "seed {seed}");
    }
}

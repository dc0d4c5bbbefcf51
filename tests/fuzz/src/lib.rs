//! Fuzzing of the parsers: their seeds, and the short run that is part of every test run.
//!
//! A target is a function that takes any bytes and panics where a promise of the code is broken.
//! The targets are beside the code that they test, in the module `fuzz` of its package. This
//! package is what runs them: [`short_run`] from an ordinary test, and `main.rs` under libFuzzer
//! for as long as wanted (`tests/fuzz/run`, see docs/internals/testing.md).

mod mutate;
mod seeds;

use mutate::{Mutator, Numbers};
pub use seeds::seeds;

/// Runs the target `name` over its seeds, and over `rounds` inputs that are made from them. The
/// same inputs each time, unless the variable `FENCE_SEED` has another number.
///
/// # Panics
/// If the target does, once the input has been printed; where there are no seeds; and where
/// `FENCE_SEED` is no number.
pub fn short_run(name: &str, target: fn(&[u8]), rounds: u32) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "tests/fuzz/seeds/{name}.txt has no seed");
    let number = number_of_run();
    for (at, seed) in seeds.iter().enumerate() {
        run(target, seed, || format!("seed {} of {name}", at + 1));
    }
    let mut mutator = Mutator::new(&seeds, Numbers::new(number));
    for round in 0..rounds {
        let input = mutator.next_input();
        run(target, &input, || format!("FENCE_SEED={number}, target {name}, round {round}"));
    }
}

#[expect(clippy::disallowed_methods, reason = "the one variable that replays a run")]
fn number_of_run() -> u64 {
    match std::env::var("FENCE_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("FENCE_SEED={text} is no number")),
        Err(_) => 1,
    }
}

/// Runs the target once, and prints the input if it panics.
fn run(target: fn(&[u8]), input: &[u8], origin: impl Fn() -> String) {
    struct Report<'a, F: Fn() -> String>(&'a [u8], F);
    impl<F: Fn() -> String> Drop for Report<'_, F> {
        #[expect(clippy::print_stderr, reason = "only in tests: the input that failed")]
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{}: the target failed with this input:", (self.1)());
                eprintln!("{}", seeds::escaped(self.0));
            }
        }
    }
    let _report = Report(input, origin);
    target(input);
}

//! Randomness that can be replayed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A small generator (SplitMix64, Steele et al. 2014); the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The seed of this run: `FENCE_SEED` where it is set, otherwise a new one. Prints how to
    /// replay it; the test runner shows that when the test fails.
    ///
    /// # Panics
    /// If `FENCE_SEED` is no number.
    pub fn of_run(test: &str) -> Self {
        let state = match std::env::var("FENCE_SEED") {
            Ok(text) => text.parse().expect("FENCE_SEED must be a whole number"),
            Err(_) => RandomState::new().hash_one(test),
        };
        eprintln!("replay with: FENCE_SEED={state} tests/run -p fence-tests -- {test}");
        Self { state }
    }

    /// A generator from a number.
    pub fn new(state: u64) -> Self {
        Self { state }
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// A time from `from_ms` up to, but not including, `to_ms`.
    pub fn time_ms(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(from_ms + self.below(to_ms - from_ms))
    }

    /// A generator of its own for one of several workers.
    pub fn fork(&mut self) -> Self {
        Self { state: self.next_u64() }
    }
}

/// `true` if the long rounds were asked for with `FENCE_LONG=1`.
pub fn long_run() -> bool {
    std::env::var("FENCE_LONG").is_ok_and(|value| value == "1")
}

/// `short` rounds, or `long` ones where `FENCE_LONG=1` asks for them.
pub fn rounds(short: usize, long: usize) -> usize {
    if long_run() { long } else { short }
}

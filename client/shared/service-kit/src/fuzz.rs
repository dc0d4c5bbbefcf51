//! Fuzz targets: functions that take any bytes and panic where a parser breaks a promise.
//!
//! They are part of the tests and of fuzz builds alone; `tests/fuzz` runs them.

use crate::config;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("settings", config::fuzz::settings)];

#[cfg(test)]
mod tests {
    use super::TARGETS;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            // A command line is slow to read.
            fence_fuzz::short_run(name, *target, 600);
        }
    }
}

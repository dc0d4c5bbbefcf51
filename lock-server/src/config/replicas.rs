//! Flags about replicas.

use std::time::Duration;

use fence_protocol::duration;

use crate::engines::open::StoreUrl;
use crate::engines::redis::ReplicaOptions;

/// Largest number of replicas to wait for.
const MOST: u32 = 64;
/// Longest time to wait for them.
const LONGEST: Duration = Duration::from_secs(60);

/// Replicas that must have a grant before it is acknowledged.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplicaFlags {
    /// Redis replicas that must have a grant before it is acknowledged. A grant that fewer have in
    /// time is rolled back, and replied to with 503.
    #[arg(long, value_name = "N", default_value = "0", value_parser = replicas,
          allow_hyphen_values = true)]
    pub wait_replicas: u32,
    /// Time for these replicas, at most 1m.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = at_most)]
    pub wait_timeout: Duration,
}

impl ReplicaFlags {
    /// Options of the store.
    pub(super) fn options(&self) -> ReplicaOptions {
        ReplicaOptions { count: self.wait_replicas, timeout: self.wait_timeout }
    }

    /// Checks that the store may have replicas.
    ///
    /// # Errors
    /// A sentence where it has none.
    pub(super) fn fit(&self, store: &StoreUrl) -> Result<(), String> {
        match (self.wait_replicas, store) {
            (0, _) | (_, StoreUrl::Redis(_)) => Ok(()),
            (count, _) => Err(format!(
                "--wait-replicas {count} waits for replicas of Redis, and this store has none; \
                 leave it out"
            )),
        }
    }
}

fn replicas(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 0..=MOST) => Ok(count),
        _ => Err(format!("{text:?} is out of range: 0 to {MOST}")),
    }
}

fn at_most(text: &str) -> Result<Duration, String> {
    match duration::parse_positive(text) {
        Ok(timeout) if timeout > LONGEST => Err(format!("{text:?} is too long: at most 1m")),
        Ok(timeout) => Ok(timeout),
        Err(error) => Err(error.to_string()),
    }
}

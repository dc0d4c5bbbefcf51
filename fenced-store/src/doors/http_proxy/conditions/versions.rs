//! Versions that the last replies showed: a hint that saves a read. A wrong one costs a 412.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::attempt::Version;

/// Last known version of a resource. Its lock is held during a write, so that writes of one
/// resource do not refuse each other.
pub(crate) type Slot = Arc<tokio::sync::Mutex<Option<Version>>>;

/// Maximum number of resources in a generation; there are two.
const GENERATION: usize = 16_384;
/// Longest name of a resource that is kept, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Last known versions of the resources that were written last.
#[derive(Debug, Default)]
pub(crate) struct Versions(Mutex<Generations>);

/// Those used since the last change of generations, and those used in the one before.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<String, Slot>,
    old: HashMap<String, Slot>,
}

impl Versions {
    /// Returns the slot of a resource. Slots that were not used for long are forgotten; a write
    /// that holds a forgotten one races with others, which its condition makes safe.
    pub(crate) fn slot(&self, resource: &str) -> Slot {
        if resource.len() > MAX_NAME_BYTES {
            return Slot::default();
        }
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        if let Some(slot) = young.get(resource) {
            return Arc::clone(slot);
        }
        let slot = old.remove(resource).unwrap_or_default();
        if young.len() >= GENERATION {
            *old = std::mem::take(young);
        }
        young.insert(resource.to_owned(), Arc::clone(&slot));
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resources_used_last_are_kept_and_their_number_is_bounded() {
        let versions = Versions::default();
        *versions.slot("hot").try_lock().unwrap() = Some(Version::Absent);
        *versions.slot("cold").try_lock().unwrap() = Some(Version::Absent);
        for number in 0..3 * GENERATION {
            versions.slot(&number.to_string());
            if number % 1000 == 0 {
                assert!(versions.slot("hot").try_lock().unwrap().is_some(), "{number}");
            }
        }
        assert!(versions.slot("cold").try_lock().unwrap().is_none());
        let generations = versions.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }
}

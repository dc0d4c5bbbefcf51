//! Marks that this guard has acknowledged: Redis may return without its last writes, and a database
//! may lose marks in a way that no connection shows, as when a dump is restored in place.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::LockName;

use crate::verdict::{Fence, Mark};

/// Marks that are remembered; locks beyond have none.
const MARKS_MAX: usize = 65_536;

/// The highest mark of each lock.
#[derive(Debug, Default)]
pub(crate) struct KnownMarks(Mutex<HashMap<LockName, Mark>>);

impl KnownMarks {
    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Mark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mark that decides: the remembered one, unless the database's is higher.
    pub(crate) fn deciding(&self, lock: &LockName, found: Option<Mark>) -> Option<Mark> {
        let known = self.lock().get(lock).copied();
        let is_higher = |known: &Mark| found.is_none_or(|found| found.token <= known.token);
        known.filter(is_higher).or(found)
    }

    /// Remembers an acknowledged mark.
    pub(crate) fn remember(&self, fence: &Fence) {
        let mut marks = self.lock();
        if let Some(mark) = marks.get_mut(&fence.lock) {
            if mark.token < fence.presented.token {
                *mark = fence.presented;
            }
        } else if marks.len() < MARKS_MAX {
            marks.insert(fence.lock.clone(), fence.presented);
        }
    }

    /// Returns all of them.
    pub(crate) fn to_vec(&self) -> Vec<(LockName, Mark)> {
        self.lock().iter().map(|(lock, mark)| (lock.clone(), *mark)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::mark;

    #[test]
    fn the_highest_acknowledged_mark_decides_unless_a_higher_one_is_found() {
        let marks = KnownMarks::default();
        let lock = LockName::new("a").unwrap();
        assert_eq!(marks.deciding(&lock, None), None);
        for token in [34, 33] {
            marks.remember(&Fence { lock: lock.clone(), presented: mark(token, 1) });
        }
        let known = Some(mark(34, 1));
        for found in [None, Some(mark(33, 2)), Some(mark(34, 2))] {
            assert_eq!(marks.deciding(&lock, found), known, "{found:?}");
        }
        assert_eq!(marks.deciding(&lock, Some(mark(35, 2))), Some(mark(35, 2)));
        assert_eq!(marks.to_vec(), [(lock, mark(34, 1))]);
    }
}

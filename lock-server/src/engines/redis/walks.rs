//! Names behind the pages that were listed lately.
//!
//! Redis has no order of keys, so a page costs a scan of all of them. The pages behind it come from
//! what that scan has found: a list walks over the names as of its first page, and reads the
//! records as they are.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time between two pages of a walk; the page after a longer one scans anew.
const KEPT: Duration = Duration::from_secs(10);
/// Most walks.
const WALKS: usize = 4;
/// Most names of all walks.
const NAMES: usize = 1_000_000;

/// Walks over names, the one that was used last at the end.
#[derive(Debug)]
pub(super) struct Walks<T> {
    tails: Mutex<Vec<Tail<T>>>,
}

/// Rest of a walk.
#[derive(Debug)]
struct Tail<T> {
    prefix: String,
    /// The last name of the page before.
    after: T,
    /// The names behind it, in order.
    names: Vec<T>,
    until: Instant,
}

impl<T> Default for Walks<T> {
    fn default() -> Self {
        Self { tails: Mutex::default() }
    }
}

impl<T: Clone + PartialEq> Walks<T> {
    /// Takes the names behind a page that ended with `after`.
    pub(super) fn take(&self, now: Instant, prefix: &str, after: &T) -> Option<Vec<T>> {
        self.forget_old(now);
        let mut tails = self.tails();
        let place = tails.iter().rposition(|tail| tail.prefix == prefix && tail.after == *after)?;
        Some(tails.remove(place).names)
    }

    /// Divides the names of a walk into its next page and the names behind that, which are kept.
    /// Returns the page, and whether there are more.
    pub(super) fn page(
        &self,
        now: Instant,
        prefix: &str,
        mut names: Vec<T>,
        limit: usize,
    ) -> (Vec<T>, bool) {
        if names.len() <= limit {
            return (names, false);
        }
        let behind = names.split_off(limit);
        if let Some(after) = names.last().cloned() {
            let until = now + KEPT;
            let mut tails = self.tails();
            tails.push(Tail { prefix: prefix.to_owned(), after, names: behind, until });
            while tails.len() > WALKS
                || tails.iter().map(|tail| tail.names.len()).sum::<usize>() > NAMES
            {
                tails.remove(0);
            }
        }
        (names, true)
    }

    /// Drops the walks whose next page did not come.
    pub(super) fn forget_old(&self, now: Instant) {
        self.tails().retain(|tail| tail.until > now);
    }

    fn tails(&self) -> MutexGuard<'_, Vec<Tail<T>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use service_kit::clock;

    use super::*;

    fn kept<T: Clone + PartialEq>(walks: &Walks<T>, after: &T) -> Option<Vec<T>> {
        walks.take(clock::now(), "", after)
    }

    fn page<T: Clone + PartialEq>(walks: &Walks<T>, names: Vec<T>, limit: usize) -> (Vec<T>, bool) {
        walks.page(clock::now(), "", names, limit)
    }

    #[test]
    fn a_walk_is_continued_where_it_ended_and_forgotten_in_time() {
        let walks = Walks::default();
        assert_eq!(page(&walks, (1..=5).collect(), 2), (vec![1, 2], true));
        assert_eq!((kept(&walks, &1), walks.take(clock::now(), "x", &2)), (None, None));
        let rest = kept(&walks, &2).unwrap();
        assert_eq!(page(&walks, rest, 3), (vec![3, 4, 5], false));
        assert_eq!(kept(&walks, &5), None);
        page(&walks, vec![1, 2], 1);
        assert_eq!(walks.take(clock::now() + KEPT, "", &1), None);
    }

    #[test]
    fn few_walks_and_names_are_kept() {
        let walks = Walks::default();
        for first in 0..=WALKS {
            page(&walks, vec![first, 100], 1);
        }
        let left = (0..=WALKS).filter(|first| kept(&walks, first).is_some());
        assert_eq!(left.collect::<Vec<_>>(), (1..=WALKS).collect::<Vec<_>>());
        assert_eq!(page(&walks, (0..=NAMES + 1).collect(), 1), (vec![0], true));
        assert_eq!(kept(&walks, &0), None, "too many to keep");
    }
}

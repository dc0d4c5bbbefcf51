//! Grants that every guard was sealed for.

use std::collections::{HashSet, VecDeque};

use fence_protocol::{LockName, Token};

/// Number of grants remembered.
const REMEMBERED: usize = 4_096;

/// Locks with the tokens that every guard was sealed with. Marks never fall (G4), so a retry of
/// such an acquire need not seal again: a guard that is unreachable by then must not end an
/// acknowledged lease. A token alone names no grant: a quorum has it once in each bucket of locks.
#[derive(Debug, Default)]
pub(super) struct Sealed {
    known: HashSet<(LockName, Token)>,
    by_age: VecDeque<(LockName, Token)>,
}

impl Sealed {
    /// Adds a grant that every guard was sealed for; the oldest is removed.
    pub(super) fn add(&mut self, lock: &LockName, token: Token) {
        let grant = (lock.clone(), token);
        if !self.known.insert(grant.clone()) {
            return;
        }
        self.by_age.push_back(grant);
        if self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// `true` if every guard was sealed for this grant.
    pub(super) fn has(&self, lock: &LockName, token: Token) -> bool {
        self.known.contains(&(lock.clone(), token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut sealed = Sealed::default();
        let lock = LockName::new("a").unwrap();
        let token = |number: usize| Token::new(number as u64).unwrap();
        for number in 1..=REMEMBERED + 1 {
            sealed.add(&lock, token(number));
            sealed.add(&lock, token(number));
        }
        let has = |number| sealed.has(&lock, token(number));
        assert!(!has(1) && has(2) && has(REMEMBERED + 1));
        assert!(!sealed.has(&LockName::new("b").unwrap(), token(2)));
        assert_eq!((sealed.known.len(), sealed.by_age.len()), (REMEMBERED, REMEMBERED));
    }
}

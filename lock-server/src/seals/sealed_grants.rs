//! Decisions on grants: every guard was sealed for them, or they are rolled back.

use std::collections::{HashMap, VecDeque};

use fence_protocol::{LockName, Token};

/// Number of grants remembered.
const REMEMBERED: usize = 4_096;

/// Decision on a grant, made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Every guard was sealed with its token: it may be acknowledged, and is not rolled back. Marks
    /// never fall (G4), so a retry need not seal again: a guard that is unreachable by then must
    /// not end an acknowledged lease.
    Sealed,
    /// A guard was not sealed: it is rolled back, and no request with its id is granted.
    RolledBack,
}

/// Decisions by lock and token. A token alone names no grant: a quorum has it once in each bucket
/// of locks.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    known: HashMap<(LockName, Token), Decision>,
    by_age: VecDeque<(LockName, Token)>,
}

impl Decisions {
    /// Decides unless that was done before; returns what is decided. Of two requests with one id
    /// that seal at the same time, the first decides for both. The oldest decision is removed.
    pub(super) fn decide(&mut self, lock: &LockName, token: Token, decision: Decision) -> Decision {
        let grant = (lock.clone(), token);
        if let Some(earlier) = self.known.get(&grant) {
            return *earlier;
        }
        self.known.insert(grant.clone(), decision);
        self.by_age.push_back(grant);
        if self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        decision
    }

    /// `true` if every guard was sealed for this grant.
    pub(super) fn is_sealed(&self, lock: &LockName, token: Token) -> bool {
        self.known.get(&(lock.clone(), token)) == Some(&Decision::Sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: usize) -> Token {
        Token::new(number as u64).unwrap()
    }

    #[test]
    fn the_newest_are_remembered() {
        let mut decisions = Decisions::default();
        let lock = LockName::new("a").unwrap();
        for number in 1..=REMEMBERED + 1 {
            decisions.decide(&lock, token(number), Decision::Sealed);
            decisions.decide(&lock, token(number), Decision::Sealed);
        }
        let is_sealed = |number| decisions.is_sealed(&lock, token(number));
        assert!(!is_sealed(1) && is_sealed(2) && is_sealed(REMEMBERED + 1));
        assert!(!decisions.is_sealed(&LockName::new("b").unwrap(), token(2)));
        assert_eq!((decisions.known.len(), decisions.by_age.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn the_first_decision_holds_for_every_request() {
        let lock = LockName::new("a").unwrap();
        for first in [Decision::Sealed, Decision::RolledBack] {
            let mut decisions = Decisions::default();
            for decision in [first, Decision::Sealed, Decision::RolledBack] {
                assert_eq!(decisions.decide(&lock, token(1), decision), first);
            }
            assert_eq!(decisions.is_sealed(&lock, token(1)), first == Decision::Sealed);
        }
    }
}

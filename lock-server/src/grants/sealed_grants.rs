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
    /// Decides on the grants of one request together, unless that was done before for one of them:
    /// then they get its decision. Of two requests with one id that seal at the same time, the
    /// first decides for both. The oldest decisions are removed. Returns the decision, and `true`
    /// if it was made now.
    pub(super) fn decide<'a>(
        &mut self,
        grants: impl Iterator<Item = (&'a LockName, Token)> + Clone,
        decision: Decision,
    ) -> (Decision, bool) {
        let earlier = self.earlier(grants.clone());
        let decision = earlier.unwrap_or(decision);
        for (lock, token) in grants {
            let grant = (lock.clone(), token);
            if self.known.insert(grant.clone(), decision).is_none() {
                self.by_age.push_back(grant);
            }
        }
        while self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
        (decision, earlier.is_none())
    }

    /// Returns the decision that was made for one of these grants.
    pub(super) fn earlier<'a>(
        &self,
        mut grants: impl Iterator<Item = (&'a LockName, Token)>,
    ) -> Option<Decision> {
        grants.find_map(|(lock, token)| self.known(lock, token))
    }

    fn known(&self, lock: &LockName, token: Token) -> Option<Decision> {
        self.known.get(&(lock.clone(), token)).copied()
    }

    /// `true` if every guard was sealed for this grant.
    pub(super) fn is_sealed(&self, lock: &LockName, token: Token) -> bool {
        self.known(lock, token) == Some(Decision::Sealed)
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
            let grants = std::iter::repeat_n((&lock, token(number)), 2);
            decisions.decide(grants.clone(), Decision::Sealed);
            decisions.decide(grants, Decision::Sealed);
        }
        let is_sealed = |number| decisions.is_sealed(&lock, token(number));
        assert!(!is_sealed(1) && is_sealed(2) && is_sealed(REMEMBERED + 1));
        assert!(!decisions.is_sealed(&LockName::new("b").unwrap(), token(2)));
        assert_eq!((decisions.known.len(), decisions.by_age.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn the_first_decision_holds_for_every_request() {
        let [one, other] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        for first in [Decision::Sealed, Decision::RolledBack] {
            let mut decisions = Decisions::default();
            assert_eq!(decisions.decide([(&one, token(1))].into_iter(), first), (first, true));
            for decision in [Decision::Sealed, Decision::RolledBack] {
                // Together with a lock that is not sealed at all.
                let grants = [(&other, token(2)), (&one, token(1))].into_iter();
                assert_eq!(decisions.decide(grants, decision), (first, false));
            }
            for (lock, token) in [(&one, token(1)), (&other, token(2))] {
                assert_eq!(decisions.is_sealed(lock, token), first == Decision::Sealed);
            }
        }
    }
}

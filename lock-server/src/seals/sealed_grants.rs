//! Tokens that every guard was sealed with.

use std::collections::{HashSet, VecDeque};

use fence_protocol::Token;

/// Number of tokens remembered.
const REMEMBERED: usize = 4_096;

/// Tokens that every guard was sealed with. Marks never fall (G4), so a retry of such an acquire
/// need not seal again: a guard that is unreachable by then must not end an acknowledged lease. A
/// token is unique in the namespace.
#[derive(Debug, Default)]
pub(super) struct Sealed {
    known: HashSet<Token>,
    by_age: VecDeque<Token>,
}

impl Sealed {
    /// Adds a token that every guard was sealed with; the oldest is removed.
    pub(super) fn add(&mut self, token: Token) {
        if !self.known.insert(token) {
            return;
        }
        self.by_age.push_back(token);
        if self.by_age.len() > REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// `true` if every guard was sealed with this token.
    pub(super) fn has(&self, token: Token) -> bool {
        self.known.contains(&token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
        let mut sealed = Sealed::default();
        let token = |number: usize| Token::new(number as u64).unwrap();
        for number in 1..=REMEMBERED + 1 {
            sealed.add(token(number));
            sealed.add(token(number));
        }
        assert!(!sealed.has(token(1)) && sealed.has(token(2)) && sealed.has(token(REMEMBERED + 1)));
        assert_eq!((sealed.known.len(), sealed.by_age.len()), (REMEMBERED, REMEMBERED));
    }
}

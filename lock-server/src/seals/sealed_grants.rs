//! Which grants every guard was sealed with.

use std::collections::{HashSet, VecDeque};

use fence_protocol::Token;

/// How many are remembered.
const REMEMBERED: usize = 4_096;

/// Tokens that every guard stood at once. Marks never fall (G4), so a repeat of such an acquire need
/// not seal again: where a guard is away by then, that must not end a lease that its holder was told
/// of. A token is unique in the namespace.
#[derive(Debug, Default)]
pub(super) struct Sealed {
    known: HashSet<Token>,
    by_age: VecDeque<Token>,
}

impl Sealed {
    /// Every guard stands at this token, or above it; the oldest makes room.
    pub(super) fn note(&mut self, token: Token) {
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

    /// Whether every guard stood at this token.
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
            sealed.note(token(number));
            sealed.note(token(number));
        }
        assert!(!sealed.has(token(1)) && sealed.has(token(2)) && sealed.has(token(REMEMBERED + 1)));
        assert_eq!((sealed.known.len(), sealed.by_age.len()), (REMEMBERED, REMEMBERED));
    }
}

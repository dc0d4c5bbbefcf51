//! A pattern as a finite automaton over the bytes of a key.

use super::{Pattern, Separators, Tail};

/// Number of [`Atom`]s of a pattern that a key's beginning has matched. One above their count: the
/// key is below the pattern's last separator.
pub(crate) type Position = usize;

#[derive(Clone, Copy)]
enum Atom {
    Byte(u8),
    /// Any bytes of a segment.
    Wild,
}

/// The automaton of one pattern.
pub(crate) struct Automaton<'p> {
    atoms: Vec<Atom>,
    separators: Separators,
    tail: &'p Tail,
}

impl Pattern {
    pub(crate) fn automaton(&self) -> Automaton<'_> {
        let mut atoms: Vec<Atom> = self.lead.iter().copied().map(Atom::Byte).collect();
        for wild in &self.wilds {
            atoms.push(Atom::Wild);
            atoms.extend(wild.suffix.iter().chain(&wild.then).copied().map(Atom::Byte));
        }
        Automaton { atoms, separators: self.separators, tail: &self.tail }
    }
}

impl Automaton<'_> {
    /// Returns the positions of the empty key.
    pub(crate) fn start(&self) -> impl Iterator<Item = Position> {
        self.from(0)
    }

    /// Returns the positions after one more byte.
    pub(crate) fn step(&self, at: Position, byte: u8) -> Vec<Position> {
        let end = self.atoms.len();
        match (self.atoms.get(at), self.tail) {
            (Some(Atom::Byte(literal)), _) if *literal == byte => self.from(at + 1).collect(),
            (Some(Atom::Wild), _) if !self.separators.contains(byte) => self.from(at).collect(),
            (Some(_), _) | (None, Tail::Nothing) => Vec::new(),
            (None, Tail::Under(separator)) if at > end || *separator == byte => vec![end + 1],
            (None, Tail::Under(_)) => Vec::new(),
            (None, Tail::Anything) => vec![end],
        }
    }

    /// Returns `true` if the pattern matches a key that ends here.
    pub(crate) fn is_end(&self, at: Position) -> bool {
        at >= self.atoms.len()
    }

    /// Returns the bytes that the pattern names.
    pub(crate) fn literals(&self) -> impl Iterator<Item = u8> {
        self.atoms.iter().filter_map(|atom| match atom {
            Atom::Byte(byte) => Some(*byte),
            Atom::Wild => None,
        })
    }

    /// Returns the position, and those behind it that need no byte: a segment may have one
    /// wildcard, so that there is one more at most.
    fn from(&self, at: Position) -> impl Iterator<Item = Position> {
        let may_be_empty = matches!(self.atoms.get(at), Some(Atom::Wild));
        std::iter::once(at).chain(may_be_empty.then_some(at + 1))
    }
}

//! Keys that a rule decides over, behind the rules before it.
//!
//! Patterns are regular, so the search is exact: it walks through the rule's pattern and through
//! all earlier ones at once, shortest keys first.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::methods::METHODS;
use super::pattern::{Automaton, Pattern, Position};
use super::{Rule, Rules};

/// Steps from one position to the next, for all rules of a list: a start must not take long. A rule
/// that needs more than its share counts as reached.
const STEPS_MAX: usize = 5_000_000;

/// Result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The rule decides over this key, for one of its methods.
    Key(Vec<u8>),
    /// The earlier rules leave nothing.
    Nothing,
    /// The search was ended at its limit.
    Unknown,
}

impl Rules {
    /// Returns the rules that can never decide, because the rules before them match all that they
    /// match.
    pub(crate) fn unreachable(&self) -> impl Iterator<Item = &Rule> {
        let steps = STEPS_MAX / self.rules.len().max(1);
        let reach = move |index| reach_within(steps, &self.rules[index], &self.rules[..index]);
        let indexes = 0..self.rules.len();
        indexes.filter(move |index| reach(*index) == Reach::Nothing).map(|index| &self.rules[index])
    }
}

/// Searches a key that `rule` decides over, behind `earlier` rules, in about so many steps.
fn reach_within(mut steps: usize, rule: &Rule, earlier: &[Rule]) -> Reach {
    let mut searched: Vec<Vec<bool>> = Vec::new();
    let mut result = Reach::Nothing;
    for method in METHODS.into_iter().filter(|method| rule.has_method(Some(method))) {
        let applies: Vec<bool> = earlier.iter().map(|rule| rule.has_method(Some(method))).collect();
        if searched.contains(&applies) {
            continue;
        }
        let rules = earlier.iter().zip(&applies).filter(|(_, applies)| **applies);
        let patterns: Vec<&Pattern> = rules.map(|(rule, _)| &rule.pattern).collect();
        match left(&mut steps, &rule.pattern, &patterns) {
            Reach::Nothing => {}
            Reach::Unknown => result = Reach::Unknown,
            found @ Reach::Key(_) => return found,
        }
        searched.push(applies);
    }
    result
}

/// Searches as at a start, for a list of this rule alone.
#[cfg(test)]
pub(super) fn reach(rule: &Rule, earlier: &[Rule]) -> Reach {
    reach_within(STEPS_MAX, rule, earlier)
}

/// Positions in the rule's own pattern, and in each of the earlier ones.
type Positions = (BTreeSet<Position>, BTreeSet<(usize, Position)>);

/// Searches a key that matches `own` and none of the `others`.
fn left(steps: &mut usize, own: &Pattern, others: &[&Pattern]) -> Reach {
    let own = own.automaton();
    let others: Vec<Automaton<'_>> = others.iter().map(|pattern| pattern.automaton()).collect();
    let bytes = alphabet(others.iter().chain([&own]));
    let start: Positions = (
        own.start().collect(),
        others
            .iter()
            .enumerate()
            .flat_map(|(index, other)| other.start().map(move |at| (index, at)))
            .collect(),
    );
    let mut seen = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([(Vec::new(), start)]);
    while let Some((key, (mine, theirs))) = queue.pop_front() {
        let is_taken = theirs.iter().any(|(index, at)| others[*index].is_end(*at));
        if !is_taken && mine.iter().any(|at| own.is_end(*at)) {
            return Reach::Key(key);
        }
        for byte in &bytes {
            let mine: BTreeSet<Position> =
                mine.iter().flat_map(|at| own.step(*at, *byte)).collect();
            if mine.is_empty() {
                continue;
            }
            let Some(left) = steps.checked_sub(1 + theirs.len()) else { return Reach::Unknown };
            *steps = left;
            let theirs = theirs
                .iter()
                .flat_map(|(index, at)| {
                    others[*index].step(*at, *byte).into_iter().map(|at| (*index, at))
                })
                .collect();
            let next = (mine, theirs);
            if !seen.insert(next.clone()) {
                continue;
            }
            let mut key = key.clone();
            key.push(*byte);
            queue.push_back((key, next));
        }
    }
    Reach::Nothing
}

/// Returns the bytes that a pattern knows, and one for all others.
fn alphabet<'p>(automata: impl Iterator<Item = &'p Automaton<'p>>) -> Vec<u8> {
    let mut known: BTreeSet<u8> = automata.flat_map(Automaton::literals).collect();
    known.extend(b"/:");
    let other = (b'a'..=b'z').chain(0..=u8::MAX).find(|byte| !known.contains(byte));
    known.into_iter().chain(other).collect()
}

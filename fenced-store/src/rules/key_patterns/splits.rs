//! The ways in which the name of a lock is split among the captures of a rule's target.

use std::cell::Cell;

use fence_protocol::LockName;

use super::super::target::Part;

/// The most ways for one lock and rule.
const SPLITS_MAX: usize = 64;
/// The most steps in search of ways for one connection; what is found later becomes no pattern.
pub(super) const STEPS_MAX: usize = 32 * 1024;

/// Every way to give the `captures` of a rule texts that make `name` of `parts`: for each capture its
/// text, where it is part of the target.
pub(super) fn splits<'l>(
    parts: &[Part],
    name: &'l str,
    captures: usize,
    steps_left: &Cell<usize>,
) -> Vec<Vec<Option<&'l str>>> {
    let mut search = Search { bound: vec![None; captures], found: Vec::new(), steps_left };
    search.of(parts, name);
    search.found
}

struct Search<'l, 's> {
    bound: Vec<Option<&'l str>>,
    found: Vec<Vec<Option<&'l str>>>,
    steps_left: &'s Cell<usize>,
}

impl<'l> Search<'l, '_> {
    fn of(&mut self, parts: &[Part], name: &'l str) {
        if self.steps_left.get() == 0 || self.found.len() >= SPLITS_MAX {
            return;
        }
        self.steps_left.set(self.steps_left.get() - 1);
        let Some((part, parts)) = parts.split_first() else {
            if name.is_empty() {
                self.found.push(self.bound.clone());
            }
            return;
        };
        match part {
            Part::Text(text) => {
                if let Some(rest) = name.strip_prefix(text.as_str()) {
                    self.of(parts, rest);
                }
            }
            Part::Capture(index) => match self.bound.get(*index).copied().flatten() {
                Some(text) => {
                    if let Some(rest) = name.strip_prefix(text) {
                        self.of(parts, rest);
                    }
                }
                None => self.bind(*index, parts, name),
            },
        }
    }

    fn bind(&mut self, index: usize, parts: &[Part], name: &'l str) {
        let shortest = if parts.is_empty() { name.len().max(1) } else { 1 };
        for end in (shortest..=name.len()).rev() {
            let Some((text, rest)) = name.split_at_checked(end) else { continue };
            if LockName::is_valid(text.as_bytes()) {
                self.bound[index] = Some(text);
                self.of(parts, rest);
                self.bound[index] = None;
            }
        }
    }
}

//! Ways to split the name of a lock among the captures of a rule's target.

use std::cell::Cell;

use fence_protocol::LockName;

use super::super::target::Part;

/// Maximum number of ways for one lock and rule.
const SPLITS_MAX: usize = 64;
/// Maximum number of search steps for one connection; ways found later become no pattern.
pub(super) const STEPS_MAX: usize = 32 * 1024;

/// Finds every way to give the `captures` of a rule texts that make `name` of `parts`: each
/// capture's text, if it is part of the target.
pub(super) fn splits<'l>(
    parts: &[Part],
    name: &'l str,
    captures: usize,
    steps_left: &Cell<usize>,
) -> Vec<Vec<Option<&'l str>>> {
    let mut search = Search { bound: vec![None; captures], found: Vec::new(), steps_left };
    search.search(parts, name);
    search.found
}

struct Search<'l, 's> {
    bound: Vec<Option<&'l str>>,
    found: Vec<Vec<Option<&'l str>>>,
    steps_left: &'s Cell<usize>,
}

impl<'l> Search<'l, '_> {
    fn search(&mut self, parts: &[Part], name: &'l str) {
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
                    self.search(parts, rest);
                }
            }
            Part::Capture(index) => match self.bound.get(*index).copied().flatten() {
                Some(text) => {
                    if let Some(rest) = name.strip_prefix(text) {
                        self.search(parts, rest);
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
                self.search(parts, rest);
                self.bound[index] = None;
            }
        }
    }
}

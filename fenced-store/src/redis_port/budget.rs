//! What the port may hold for its clients in all.

use std::cell::Cell;
use std::rc::Rc;

/// What every connection may hold without asking.
pub(super) const FREE: usize = 64 * 1024;

/// The bytes that one thread of the port holds for its clients beyond [`FREE`] each.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: Cell<usize>,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Rc<Self> {
        Rc::new(Self { limit, used: Cell::new(0) })
    }
}

/// One buffer's part of the budget; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Rc<Budget>,
    held: usize,
}

impl Charge {
    pub(super) fn new(budget: Rc<Budget>) -> Self {
        Self { budget, held: 0 }
    }

    /// The buffer is of this size now; `false` where the budget is spent.
    #[must_use]
    pub(super) fn set(&mut self, size: usize) -> bool {
        let wanted = size.saturating_sub(FREE);
        if wanted == self.held {
            return true;
        }
        let used = self.budget.used.get() - self.held + wanted;
        let fits = wanted <= self.held || used <= self.budget.limit;
        self.budget.used.set(used);
        self.held = wanted;
        fits
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_used_again() {
        let budget = Budget::new(1000);
        let (mut one, mut two) = (Charge::new(Rc::clone(&budget)), Charge::new(Rc::clone(&budget)));
        assert!(one.set(FREE) && one.set(FREE + 900) && two.set(FREE + 100));
        assert!(!two.set(FREE + 101));
        assert!(two.set(FREE + 50), "less is always taken");
        drop(one);
        assert!(two.set(FREE + 1000));
        drop(two);
        assert_eq!(budget.used.get(), 0);
    }
}

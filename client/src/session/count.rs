//! Whether the server counts the leases that this side expects: pure rules.

/// What this side expects at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedCount {
    pub(super) count: usize,
    epoch: u64,
}

/// What the last comparison said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountDifference {
    epoch: u64,
    /// How many more the server counts.
    surplus: isize,
}

/// The comparisons of a session.
///
/// The server may count more than is known here: a grant whose request was dropped and that is not
/// given back yet. That is no reason to look at every lease again and again, but it must not hide
/// the loss of one either. So a surplus is taken for explained only when every lease was seen to
/// live, and only until something changes on this side. To count less than is expected is never
/// explained: some lease is lost, or a request is still on its way.
#[derive(Debug, Default)]
pub(super) struct LeaseCount {
    epoch: u64,
    last: CountDifference,
    explained: CountDifference,
}

impl LeaseCount {
    /// This side holds or awaits something else than before.
    pub(super) fn change(&mut self) {
        self.epoch += 1;
    }

    pub(super) fn expect(&self, count: usize) -> ExpectedCount {
        ExpectedCount { count, epoch: self.epoch }
    }

    /// Whether the leases should be looked at, as the server counts `counted` where `expected` was
    /// expected before it was asked.
    pub(super) fn is_mismatch(&mut self, counted: usize, expected: ExpectedCount) -> bool {
        let whole = |count: usize| isize::try_from(count).unwrap_or(isize::MAX);
        let surplus = whole(counted).saturating_sub(whole(expected.count));
        self.last = CountDifference { epoch: expected.epoch, surplus };
        let is_same_epoch = self.explained.epoch == expected.epoch;
        surplus != if is_same_epoch { self.explained.surplus } else { 0 }
    }

    /// What the last comparison said.
    pub(super) fn last(&self) -> CountDifference {
        self.last
    }

    /// Every lease was seen to live, in a look that began when `seen` was the last comparison: a
    /// later one may count a loss that came behind the look.
    pub(super) fn explain(&mut self, seen: CountDifference) {
        if seen.epoch == self.epoch && seen.surplus > 0 {
            self.explained = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_is_no_reason_to_look() {
        let mut count = LeaseCount::default();
        let expected = count.expect(3);
        assert!(!count.is_mismatch(3, expected));
        assert!(count.is_mismatch(2, expected));
    }

    #[test]
    fn a_surplus_is_looked_into_once_and_hides_no_loss() {
        let mut count = LeaseCount::default();
        let expected = count.expect(2);
        assert!(count.is_mismatch(3, expected));
        // Somebody may not have answered: until all are seen to live, it stays a reason.
        assert!(count.is_mismatch(3, expected));
        count.explain(count.last());
        assert!(!count.is_mismatch(3, expected));
        // One of ours is lost, and the unknown one is still there.
        assert!(count.is_mismatch(2, expected));
        // After any change on this side it is looked into anew.
        count.change();
        let expected = count.expect(3);
        assert!(!count.is_mismatch(3, expected));
        assert!(count.is_mismatch(4, expected));
    }

    #[test]
    fn too_few_are_never_explained() {
        let mut count = LeaseCount::default();
        // Of two, one is a request that the server has not seen yet.
        let expected = count.expect(2);
        assert!(count.is_mismatch(1, expected));
        count.explain(count.last());
        // It arrived, and the other one is lost.
        assert!(count.is_mismatch(1, expected));
    }

    #[test]
    fn a_look_that_was_overtaken_explains_nothing() {
        let mut count = LeaseCount::default();
        let expected = count.expect(1);
        assert!(count.is_mismatch(2, expected));
        let seen = count.last();
        count.change();
        count.explain(seen);
        let expected = count.expect(1);
        assert!(count.is_mismatch(2, expected));
    }

    /// Two strangers, and while each lease is looked at one of ours is lost behind the look.
    #[test]
    fn a_look_explains_what_it_began_with() {
        let mut count = LeaseCount::default();
        let expected = count.expect(2);
        assert!(count.is_mismatch(4, expected));
        let seen = count.last();
        assert!(count.is_mismatch(3, expected));
        count.explain(seen);
        assert!(count.is_mismatch(3, expected));
    }
}

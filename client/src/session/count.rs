//! Comparison of the server's count of a session's leases with the client's. Pure.

/// Number of leases that the client expects at the server, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedCount {
    pub(super) count: usize,
    epoch: u64,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountDifference {
    epoch: u64,
    /// Leases that the server counts beyond the expected ones; negative if it counts fewer.
    surplus: isize,
}

/// Comparisons of a session.
///
/// The server may count leases that the client does not know: grants whose request was dropped and
/// that are not released yet. That must not cause a probe of every lease at each heartbeat, but it
/// must not hide the loss of a lease either. So a surplus counts as explained only after a probe
/// has found every lease live, and only until the client's own leases change. A deficit is never
/// explained: a lease is lost, or a request has not arrived yet.
#[derive(Debug, Default)]
pub(super) struct LeaseCount {
    epoch: u64,
    last: CountDifference,
    explained: CountDifference,
}

impl LeaseCount {
    /// Records that the client's leases or requests have changed.
    pub(super) fn change(&mut self) {
        self.epoch += 1;
    }

    pub(super) fn expect(&self, count: usize) -> ExpectedCount {
        ExpectedCount { count, epoch: self.epoch }
    }

    /// Returns `true` if the leases should be probed: the server counts `counted` leases, and
    /// `expected` were expected before the request.
    pub(super) fn is_mismatch(&mut self, counted: usize, expected: ExpectedCount) -> bool {
        let whole = |count: usize| isize::try_from(count).unwrap_or(isize::MAX);
        let surplus = whole(counted).saturating_sub(whole(expected.count));
        self.last = CountDifference { epoch: expected.epoch, surplus };
        let is_same_epoch = self.explained.epoch == expected.epoch;
        surplus != if is_same_epoch { self.explained.surplus } else { 0 }
    }

    /// Result of the last comparison.
    pub(super) fn last(&self) -> CountDifference {
        self.last
    }

    /// Records that a probe found every lease live; `seen` was the last comparison when it began. A
    /// later comparison may count a loss that the probe missed.
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
    fn the_expected_count_causes_no_probe() {
        let mut count = LeaseCount::default();
        let expected = count.expect(3);
        assert!(!count.is_mismatch(3, expected));
        assert!(count.is_mismatch(2, expected));
    }

    #[test]
    fn a_surplus_is_probed_once_and_hides_no_loss() {
        let mut count = LeaseCount::default();
        let expected = count.expect(2);
        assert!(count.is_mismatch(3, expected));
        // A probe may have failed: until all are found live, the surplus stays a reason.
        assert!(count.is_mismatch(3, expected));
        count.explain(count.last());
        assert!(!count.is_mismatch(3, expected));
        // One own lease is lost, and the unknown one is still there.
        assert!(count.is_mismatch(2, expected));
        // After a change of the own leases the surplus is probed again.
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
        // The request arrived, and the other lease is lost.
        assert!(count.is_mismatch(1, expected));
    }

    #[test]
    fn a_probe_that_was_overtaken_explains_nothing() {
        let mut count = LeaseCount::default();
        let expected = count.expect(1);
        assert!(count.is_mismatch(2, expected));
        let seen = count.last();
        count.change();
        count.explain(seen);
        let expected = count.expect(1);
        assert!(count.is_mismatch(2, expected));
    }

    /// Two unknown leases, and an own lease is lost after the probe has passed it.
    #[test]
    fn a_probe_explains_the_comparison_at_its_begin() {
        let mut count = LeaseCount::default();
        let expected = count.expect(2);
        assert!(count.is_mismatch(4, expected));
        let seen = count.last();
        assert!(count.is_mismatch(3, expected));
        count.explain(seen);
        assert!(count.is_mismatch(3, expected));
    }
}

//! For how long a lease may still live that this server knows of.

/// How far the end is set ahead, at least, ms.
const AHEAD_MS: u64 = 1_000;

/// A bound on what is left of the time of any lease that was noted. It falls by itself: what has ended
/// holds nobody up.
///
/// No lease has more time left than `longest_ms`, and none lives after `until_ms`. The end is set an
/// eighth ahead, so that it need not be told to others at every grant. Where a lease outlives
/// everything noted before, all others have less time left than it has, and its time is the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InUse {
    longest_ms: u64,
    until_ms: u64,
}

impl InUse {
    /// A lease lives for at most `ttl_ms` from now. Gives whether the bound has moved.
    pub(super) fn note(&mut self, now_ms: u64, ttl_ms: u64) -> bool {
        let ends_ms = now_ms.saturating_add(ttl_ms);
        if ends_ms > self.until_ms {
            self.longest_ms = ttl_ms;
            self.until_ms = ends_ms.saturating_add((ttl_ms / 8).max(AHEAD_MS));
        } else if ttl_ms > self.longest_ms {
            self.longest_ms = ttl_ms;
        } else {
            return false;
        }
        true
    }

    /// For how long one may still live, ms.
    pub(super) fn left_ms(self, now_ms: u64) -> u64 {
        self.longest_ms.min(self.until_ms.saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_less_than_what_lives_and_never_more_than_the_longest() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut bound, mut ends, mut longest, mut now) = (InUse::default(), Vec::new(), 0, 0);
        for _ in 0..5_000 {
            now += next(2_000);
            let ttl = [100, 1_000, 15_000, 3_600_000][usize::try_from(next(4)).unwrap()];
            // An hour is rare, as it is in life.
            let ttl = if ttl == 3_600_000 && next(50) > 0 { 15_000 } else { ttl };
            bound.note(now, ttl);
            ends.push(now + ttl);
            longest = longest.max(ttl);
            ends.retain(|end| *end > now);
            let left = bound.left_ms(now);
            let truth = ends.iter().map(|end| end - now).max().unwrap_or(0);
            assert!(left >= truth, "{left} left, and one lives for another {truth}");
            assert!(left <= longest);
        }
    }

    #[test]
    fn what_has_ended_holds_nobody_up() {
        let mut bound = InUse::default();
        bound.note(0, 3_600_000);
        for now in (0..8_000_000).step_by(5_000) {
            bound.note(now, 15_000);
        }
        bound.note(8_000_000, 15_000);
        assert_eq!(bound.left_ms(8_000_000), 15_000);
        assert_eq!(bound.left_ms(9_000_000), 0);
        assert_eq!(InUse::default().left_ms(0), 0);
    }

    #[test]
    fn equal_leases_seldom_move_it() {
        let mut bound = InUse::default();
        let moved = (0..80).filter(|at| bound.note(at * 1_000, 80_000)).count();
        assert!(moved <= 8, "{moved} times");
    }
}

//! Offset of the clock of the store from our monotonic one, and its jumps.

/// A clock may drift by one part in so many without having jumped.
const DRIFT: u64 = 2_000;

/// Result of one probe of the clock of the store: the difference lies between the bounds, because
/// the store read its clock after the request was sent and before the reply came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    low_ms: i64,
    high_ms: i64,
    /// When it was measured, by our clock.
    at_ms: u64,
}

/// Change of the clock of the store between two probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockJump {
    /// Nothing.
    Steady,
    /// It went ahead of time by at most so much, ms.
    Forward(u64),
    /// It went back by at most so much, ms.
    Backward(u64),
}

impl Offset {
    /// The store showed `shown_ms` at some moment from `sent_ms` to `received_ms` of our clock.
    pub(crate) fn measured(shown_ms: u64, sent_ms: u64, received_ms: u64) -> Self {
        let shown_ms = signed(shown_ms);
        Self {
            low_ms: shown_ms - signed(received_ms),
            high_ms: shown_ms - signed(sent_ms),
            at_ms: received_ms,
        }
    }

    /// Returns the change since `before`; a difference of `limit_ms` is no jump.
    pub(crate) fn since(self, before: Self, limit_ms: u64) -> ClockJump {
        let allowed = signed(limit_ms + self.at_ms.saturating_sub(before.at_ms) / DRIFT);
        if self.low_ms - before.high_ms > allowed {
            ClockJump::Forward(self.high_ms.abs_diff(before.low_ms))
        } else if before.low_ms - self.high_ms > allowed {
            ClockJump::Backward(before.high_ms.abs_diff(self.low_ms))
        } else {
            ClockJump::Steady
        }
    }

    /// The latest time that the store can show now, but for what comes on the way to it.
    pub(crate) fn latest_ms(self, now_ms: u64, limit_ms: u64) -> u64 {
        let drift_ms = now_ms.saturating_sub(self.at_ms) / DRIFT;
        let latest = self.high_ms + signed(now_ms) + signed(limit_ms) + signed(drift_ms);
        u64::try_from(latest).unwrap_or(0)
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: u64 = 1_795_000_000_000;

    #[test]
    fn a_jump_is_distinguished_from_a_slow_answer() {
        let before = Offset::measured(REDIS, 1_000, 1_002);
        for (shown_ms, sent, received, step) in [
            (REDIS + 5_000, 6_000, 6_002, ClockJump::Steady),
            // The answer, or the question, took four seconds.
            (REDIS + 5_000, 6_000, 10_000, ClockJump::Steady),
            (REDIS + 9_000, 6_000, 10_000, ClockJump::Steady),
            (REDIS + 5_900, 6_000, 6_002, ClockJump::Steady),
            (REDIS + 8_600_000, 6_000, 6_002, ClockJump::Forward(8_595_002)),
            (REDIS - 3_595_000, 6_000, 6_002, ClockJump::Backward(3_600_004)),
            (REDIS + 6_100, 6_000, 6_002, ClockJump::Forward(1_102)),
        ] {
            let now = Offset::measured(shown_ms, sent, received);
            let found = now.since(before, 1_000);
            match (found, step) {
                (ClockJump::Forward(found), ClockJump::Forward(wanted))
                | (ClockJump::Backward(found), ClockJump::Backward(wanted)) => {
                    assert!(found.abs_diff(wanted) <= 4, "{found} {wanted}");
                }
                (found, step) => assert_eq!(found, step, "{shown_ms} {sent} {received}"),
            }
        }
    }

    #[test]
    fn clocks_that_drift_apart_in_a_day_have_not_jumped() {
        let before = Offset::measured(REDIS, 0, 1);
        let day = 86_400_000;
        let now = Offset::measured(REDIS + day + 4_000, day, day + 1);
        assert_eq!(now.since(before, 1_000), ClockJump::Steady);
    }

    #[test]
    fn what_redis_may_show_goes_with_our_clock() {
        let offset = Offset::measured(REDIS, 1_000, 1_010);
        assert_eq!(offset.latest_ms(1_010, 500), REDIS + 10 + 500);
        assert_eq!(offset.latest_ms(2_000, 500), REDIS + 1_000 + 500);
    }
}

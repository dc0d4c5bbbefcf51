//! When a lease is trusted, renewed and given up: pure rules, no clock and no I/O.

use std::time::Duration;

use fence_protocol::Ttl;

use crate::clock::Moment;

/// The time that one reply of the lock server gave to a lease.
///
/// It is counted from before the request was sent. The server counts from when it handled the
/// request, which is later, so what this says ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    sent_at: Moment,
    ttl_ms: u64,
}

impl Window {
    /// The window of a reply with `ttl_ms` left, to a request that was sent at `sent_at`.
    ///
    /// A time to live beyond what the protocol knows is cut to its longest.
    pub fn new(sent_at: Moment, ttl_ms: u64) -> Self {
        Self { sent_at, ttl_ms: ttl_ms.min(Ttl::MAX_MS) }
    }

    /// Until when the lease is trusted: 0.8 of its time to live. The rest allows for clocks that
    /// run at different rates (a clock that is being corrected may be a twelfth too slow).
    pub fn deadline(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms / 5 * 4 + self.ttl_ms % 5 * 4 / 5)
    }

    /// When to renew: a third of its time to live, so that one lost renewal costs nothing.
    pub fn renew_at(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms / 3)
    }

    /// When half of the trusted time is gone: a renewal that succeeds comes before.
    pub fn worn_at(&self) -> Moment {
        let trusted_ms = self.deadline().ms() - self.sent_at.ms();
        self.sent_at.plus_ms(trusted_ms / 2)
    }

    /// Before this moment the server has not let the lease expire, if both clocks run alike.
    pub fn expires_at(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms)
    }

    /// The last moment at which work that has to be ended by force is ended: 0.95 of the time to
    /// live, before the lease can pass on.
    pub fn kill_by(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms - self.ttl_ms.div_ceil(20))
    }

    /// What is left of the trusted time at `now`; zero once it has passed.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.deadline().since(now)
    }

    /// Whether the lease is trusted at `now`.
    pub fn is_live(&self, now: Moment) -> bool {
        now < self.deadline()
    }

    /// Whether more than half of the trusted time is gone at `now`. A grant that comes so late
    /// (the acquire waited in the queue) is renewed before anybody relies on it.
    pub fn is_worn(&self, now: Moment) -> bool {
        self.remaining(now) < self.deadline().since(self.sent_at) / 2
    }

    /// How long one attempt to renew goes without a reply at `now` before another one starts: half of
    /// what is left, so that a lost packet leaves time for another attempt, and at least 50 ms.
    pub fn renewal_timeout(&self, now: Moment) -> Duration {
        (self.remaining(now) / 2).max(Duration::from_millis(50))
    }

    /// How long a reply to an attempt to renew that is sent at `now` is of use: until the deadline, and
    /// at least 50 ms.
    pub fn reply_timeout(&self, now: Moment) -> Duration {
        self.remaining(now).max(Duration::from_millis(50))
    }
}

/// The shortest and the longest pause between two attempts.
const PAUSE_MS_MIN: u64 = 50;
const PAUSE_MS_MAX: u64 = 1000;

/// How long to wait before attempt `attempt` (1 is the first repeat): doubling from 50 ms to 1 s,
/// of which `random` picks between a half and the whole, so that clients that failed together do
/// not come back together.
pub fn pause(attempt: u32, random: u64) -> Duration {
    let doubled = PAUSE_MS_MIN.saturating_mul(1 << attempt.saturating_sub(1).min(10));
    let whole = doubled.min(PAUSE_MS_MAX);
    let half = whole / 2;
    Duration::from_millis(half + random % (whole - half + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fifteen_seconds() {
        let window = Window::new(Moment::from_ms(1000), 15_000);
        assert_eq!(window.renew_at().ms(), 6_000);
        assert_eq!(window.deadline().ms(), 13_000);
        assert_eq!(window.kill_by().ms(), 15_250);
        assert_eq!(window.expires_at().ms(), 16_000);
        assert!(window.is_live(Moment::from_ms(12_999)));
        assert!(!window.is_live(Moment::from_ms(13_000)));
        assert!(!window.is_worn(Moment::from_ms(7_000)));
        assert!(window.is_worn(Moment::from_ms(7_001)));
    }

    proptest! {
        /// Renew, then stop trusting, then kill, then the server's expiry: always in this order.
        #[test]
        fn the_moments_come_in_order(sent in 0..u64::MAX / 2, ttl_ms in 1..=Ttl::MAX_MS) {
            let window = Window::new(Moment::from_ms(sent), ttl_ms);
            prop_assert!(window.renew_at() <= window.deadline());
            prop_assert!(window.deadline() <= window.kill_by());
            prop_assert!(window.kill_by() < window.expires_at());
            if ttl_ms >= 10 {
                prop_assert!(window.renew_at() < window.deadline());
            }
        }

        /// Never more than 0.8 of the time to live, and less than a millisecond below it.
        #[test]
        fn trusts_four_fifths(sent in 0..u64::MAX / 2, ttl_ms in 1..=Ttl::MAX_MS) {
            let trusted = Window::new(Moment::from_ms(sent), ttl_ms).deadline().ms() - sent;
            prop_assert!(trusted * 5 <= ttl_ms * 4);
            prop_assert!((trusted + 1) * 5 > ttl_ms * 4);
        }

        /// A server that answers nonsense cannot make a lease live for ever.
        #[test]
        fn hostile_ttl_is_cut(sent in 0..u64::MAX / 2, ttl_ms in any::<u64>()) {
            let window = Window::new(Moment::from_ms(sent), ttl_ms);
            prop_assert!(window.expires_at().ms() - sent <= Ttl::MAX_MS);
        }

        /// A reply to an earlier request never trusts a lease for longer than a later one does.
        #[test]
        fn later_requests_never_shorten(sent in 0..u64::MAX / 4, later in 0..u64::MAX / 4, ttl_ms in 1..=Ttl::MAX_MS) {
            let first = Window::new(Moment::from_ms(sent), ttl_ms);
            let second = Window::new(Moment::from_ms(sent + later), ttl_ms);
            prop_assert!(first.deadline() <= second.deadline());
        }

        #[test]
        fn pauses_are_bounded_and_grow(attempt in 0..u32::MAX, random in any::<u64>()) {
            let pause_ms = pause(attempt, random).as_millis();
            prop_assert!((25..=1000).contains(&pause_ms));
            prop_assert!(attempt < 6 || pause_ms >= 500);
        }

        /// An attempt to renew ends in time for another one, unless the lease is nearly over.
        #[test]
        fn a_renewal_leaves_time_for_another(ttl_ms in 1000..=Ttl::MAX_MS, part in 0..100u64) {
            let window = Window::new(Moment::from_ms(0), ttl_ms);
            let now = Moment::from_ms(window.renew_at().ms() + ttl_ms / 1000 * part);
            let timeout = window.renewal_timeout(now);
            prop_assert!(timeout * 2 <= window.remaining(now) || timeout.as_millis() == 50);
        }
    }
}

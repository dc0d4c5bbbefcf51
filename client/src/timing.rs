//! Moments at which a lease is renewed and no longer trusted: pure rules, no clock and no I/O.

use std::time::Duration;

use fence_protocol::Ttl;

use crate::clock::Moment;

/// Time that one reply of the lock server granted to a lease.
///
/// It counts from before the request was sent. The server counts from when it handled the request,
/// which is later, so the window ends before the server's lease does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    sent_at: Moment,
    ttl_ms: u64,
}

impl Window {
    /// Creates the window of a reply with `ttl_ms` milliseconds left, to a request sent at
    /// `sent_at`. A time to live above the protocol's maximum is cut to it.
    pub fn new(sent_at: Moment, ttl_ms: u64) -> Self {
        Self { sent_at, ttl_ms: ttl_ms.min(Ttl::MAX_MS) }
    }

    /// Creates the window of a reply with `left_ms` milliseconds left. No reply may extend a lease
    /// beyond the requested time to live.
    pub(crate) fn of_reply(sent_at: Moment, left_ms: u64, requested: Ttl) -> Self {
        Self::new(sent_at, left_ms.min(requested.ms()))
    }

    /// Moment until which the lease is trusted: 0.8 of its time to live. The rest allows for clocks
    /// that run at different rates (a clock that is being corrected may be a twelfth too slow).
    pub fn deadline(&self) -> Moment {
        self.sent_at.plus_ms(Ttl::trusted_ms(self.ttl_ms))
    }

    /// Moment of the renewal: a third of the time to live, so that one lost renewal does no harm.
    pub fn renew_at(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms / 3)
    }

    /// Moment at which half of the trusted time has passed; a renewal normally succeeds before it.
    pub fn worn_at(&self) -> Moment {
        let trusted_ms = self.deadline().ms() - self.sent_at.ms();
        self.sent_at.plus_ms(trusted_ms / 2)
    }

    /// Moment before which the server does not let the lease expire, if both clocks run at one
    /// rate.
    pub fn expires_at(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms)
    }

    /// Latest moment to kill work by force: 0.95 of the time to live, before another lease can be
    /// granted.
    pub fn kill_by(&self) -> Moment {
        self.sent_at.plus_ms(self.ttl_ms - self.ttl_ms.div_ceil(20))
    }

    /// Trusted time left at `now`; zero once it has passed.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.deadline().since(now)
    }

    /// Returns `true` if the lease is trusted at `now`.
    pub fn is_live(&self, now: Moment) -> bool {
        now < self.deadline()
    }

    /// Returns `true` if more than half of the trusted time has passed at `now`. A grant that
    /// arrives so late (the acquire waited in the queue) is renewed before it is used.
    pub fn is_worn(&self, now: Moment) -> bool {
        self.remaining(now) < self.deadline().since(self.sent_at) / 2
    }

    /// Time from `now` after which a renewal without a reply is retried: half of the trusted time
    /// left, so that a lost packet leaves time for another attempt, and at least 50 ms.
    pub fn renewal_timeout(&self, now: Moment) -> Duration {
        (self.remaining(now) / 2).max(Duration::from_millis(50))
    }

    /// Time-out of a renewal sent at `now`: until the deadline, after which its reply is of no use,
    /// and at least 50 ms.
    pub fn reply_timeout(&self, now: Moment) -> Duration {
        self.remaining(now).max(Duration::from_millis(50))
    }
}

/// Shortest and longest pause between two attempts, before jitter.
const PAUSE_MS_MIN: u64 = 50;
const PAUSE_MS_MAX: u64 = 1000;

/// Pause before retry `attempt` (1 is the first): doubles from 50 ms to 1 s, of which `random`
/// picks between a half and the whole, so that clients that failed together do not retry together.
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
        /// Renewal, deadline, kill and the server's expiry always come in this order.
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

        /// A server that replies with an absurd time to live cannot make a lease live for ever.
        #[test]
        fn hostile_ttl_is_cut(sent in 0..u64::MAX / 2, ttl_ms in any::<u64>()) {
            let window = Window::new(Moment::from_ms(sent), ttl_ms);
            prop_assert!(window.expires_at().ms() - sent <= Ttl::MAX_MS);
        }

        /// A later request never ends the trust in a lease earlier than an earlier one.
        #[test]
        fn later_requests_never_shorten(
            sent in 0..u64::MAX / 4,
            later in 0..u64::MAX / 4,
            ttl_ms in 1..=Ttl::MAX_MS,
        ) {
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

        /// A renewal times out early enough for a retry, unless the lease is about to end.
        #[test]
        fn a_renewal_leaves_time_for_another(ttl_ms in 1000..=Ttl::MAX_MS, part in 0..100u64) {
            let window = Window::new(Moment::from_ms(0), ttl_ms);
            let now = Moment::from_ms(window.renew_at().ms() + ttl_ms / 1000 * part);
            let timeout = window.renewal_timeout(now);
            prop_assert!(timeout * 2 <= window.remaining(now) || timeout.as_millis() == 50);
        }
    }
}

//! Time that a command has left once its lease is lost: a pure rule.

use std::time::Duration;

use fence_client::LostReason;
use fence_client::clock::Moment;
use fence_client::timing::Window;

/// When the process group is killed, at the latest, after its lease was lost at `now`.
///
/// Only a lease that was lost by a rule of this side leaves time: the server grants the lock to no
/// other client before it has expired there, and renewal has stopped. When the server said that the
/// lease ended, another may hold the lock already.
pub(super) fn kill_at(now: Moment, window: Window, reason: LostReason, grace: Duration) -> Moment {
    match reason {
        LostReason::Deadline | LostReason::NoProgress { .. } | LostReason::HeldTooLong { .. } => {
            now.plus(grace).min(window.kill_by()).max(now)
        }
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fence_protocol::wire::lock::EndReason;

    fn at(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    #[test]
    fn grace_never_reaches_the_servers_expiry() {
        let window = Window::new(at(0), 15_000);
        let grace = |now, seconds| {
            kill_at(at(now), window, LostReason::Deadline, Duration::from_secs(seconds)).ms()
        };
        assert_eq!(grace(12_000, 1), 13_000);
        assert_eq!(grace(12_000, 60), 14_250);
        assert!(grace(12_000, u64::MAX) < window.expires_at().ms());
        // Stopped past the lease: no time is left.
        assert_eq!(grace(60_000, 5), 60_000);
    }

    /// A lease that was renewed just now leaves the whole grace, one that was renewed long ago
    /// less.
    #[test]
    fn a_limit_of_our_own_leaves_the_grace_within_the_lease() {
        let window = Window::new(at(0), 15_000);
        let limit = Duration::from_secs(30);
        for reason in
            [LostReason::NoProgress { within: limit }, LostReason::HeldTooLong { max: limit }]
        {
            let grace = |now| kill_at(at(now), window, reason, Duration::from_secs(5)).ms();
            assert_eq!(grace(1_000), 6_000);
            assert_eq!(grace(11_000), 14_250);
            assert_eq!(grace(15_000), 15_000);
        }
    }

    #[test]
    fn a_lease_that_ended_at_the_server_leaves_no_time() {
        let window = Window::new(at(0), 15_000);
        for reason in [EndReason::Revoked, EndReason::Expired, EndReason::Superseded] {
            let lost = LostReason::Ended(reason);
            assert_eq!(kill_at(at(100), window, lost, Duration::from_secs(5)), at(100));
        }
    }
}

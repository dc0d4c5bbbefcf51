//! Retry rules of an acquire. Pure.

use std::time::Duration;

use fence_protocol::Code;

use crate::clock::{Moment, whole_ms};
use crate::retries::{Retries, WaitTimes};
use crate::transport::Failure;
use crate::{ErrorKind, timing};

/// Time that a request may take beyond its wait.
const WAIT_MARGIN: Duration = Duration::from_secs(5);
/// Number of restarts with a fresh lease id without a pause: a restart follows a grant that could
/// not be delivered and was rolled back.
const RESTARTS_AT_ONCE: u32 = 5;

/// Reaction to an attempt without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireStep {
    /// Send the same request, with the same lease id, after a pause.
    Retry(Duration),
    /// Send a request with a fresh lease id after a pause, which may be zero: the old id has ended.
    Restart(Duration),
    /// Return the error.
    Fail,
}

/// Evidence of a failed attempt about the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantEvidence {
    /// The attempt caused no grant.
    NoGrant,
    /// The attempt may have caused a grant.
    Unknown,
}

/// Time and attempts of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Wait in the queue that was asked for.
    pub(super) wait: Duration,
    wait_until: Moment,
    retries: Retries,
    attempts: u32,
    restarts: u32,
}

impl Plan {
    /// Plans a call that begins at `now`.
    pub(super) fn new(now: Moment, times: WaitTimes) -> Self {
        let wait_until = now.plus(times.wait);
        let retries = Retries::new(now, times);
        Self { wait: times.wait, wait_until, retries, attempts: 0, restarts: 0 }
    }

    /// Time left of the wait in the queue, in milliseconds.
    pub(super) fn wait_ms(&self, now: Moment) -> u64 {
        whole_ms(self.wait_until.since(now))
    }

    /// Time left for which an unreachable server is retried.
    pub(super) fn unavailable_left(&self, now: Moment) -> Duration {
        self.retries.unavailable_until.since(now)
    }

    /// Time-out of a request that is sent at `now` and waits for `wait_ms`.
    pub(super) fn timeout(&self, now: Moment, wait_ms: u64) -> Duration {
        self.retries.timeout(now, Duration::from_millis(wait_ms) + WAIT_MARGIN)
    }

    /// Decides the next step after a failure at `now`; `random` is the jitter of the pause.
    pub(super) fn after(&mut self, failure: &Failure, now: Moment, random: u64) -> AcquireStep {
        // A reply that arrives too late has taken its time already: the pause does not grow.
        let is_late =
            matches!(failure, Failure::Unusable(error) if *error.kind() == ErrorKind::Unavailable);
        self.attempts = if is_late { 1 } else { self.attempts + 1 };
        let Retries { unavailable_until, unknown_until, .. } = self.retries;
        let (again, limit, pause_min) = match failure {
            Failure::Refused(problem, retry_after) => match problem.code {
                Code::LeaseLost => return self.restart(now, random),
                // The server's own limit may be shorter than the wait: the client waits for the
                // rest.
                Code::LockHeld => (true, self.wait_until, Duration::ZERO),
                code => (
                    code.retryable() || matches!(problem.status, 502..=504),
                    if problem.status == 504 { unknown_until } else { unavailable_until },
                    retry_after.unwrap_or_default(),
                ),
            },
            Failure::NotSent(_) => (true, unavailable_until, Duration::ZERO),
            Failure::NoReply(_) => (true, unknown_until, Duration::ZERO),
            Failure::Unusable(_) => (is_late, unknown_until, Duration::ZERO),
        };
        let pause = timing::pause(self.attempts, random).max(pause_min);
        if again && now.plus(pause) < limit { AcquireStep::Retry(pause) } else { AcquireStep::Fail }
    }

    fn restart(&mut self, now: Moment, random: u64) -> AcquireStep {
        self.restarts += 1;
        let pause = match self.restarts.checked_sub(RESTARTS_AT_ONCE) {
            None | Some(0) => Duration::ZERO,
            Some(later) => timing::pause(later, random),
        };
        if now.plus(pause) < self.retries.unknown_until {
            AcquireStep::Restart(pause)
        } else {
            AcquireStep::Fail
        }
    }
}

/// Evidence of this failure about the grant.
pub(super) fn evidence(failure: &Failure) -> GrantEvidence {
    match failure {
        Failure::NotSent(_) => GrantEvidence::NoGrant,
        Failure::NoReply(_) | Failure::Unusable(_) => GrantEvidence::Unknown,
        Failure::Refused(problem, _) => match problem.code {
            Code::OutcomeUnknown | Code::Internal | Code::Unknown => GrantEvidence::Unknown,
            _ => GrantEvidence::NoGrant,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use fence_protocol::Problem;
    use proptest::prelude::*;

    fn refused(code: Code) -> Failure {
        Failure::Refused(Box::new(Problem::new(code, "x")), None)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    fn times(wait_ms: u64, is_bounded: bool) -> WaitTimes {
        let wait = Duration::from_millis(wait_ms);
        WaitTimes { wait, patience: Duration::from_secs(5), is_bounded }
    }

    fn plan(wait_ms: u64) -> Plan {
        Plan::new(at(0), times(wait_ms, false))
    }

    /// The wait bounds the call: what is known not to have happened is not retried beyond it, and
    /// no request is awaited for longer than the patience beyond it.
    #[test]
    fn a_bounded_call_ends_with_its_wait() {
        let bounded = || Plan::new(at(0), times(2_000, true));
        for failure in [Failure::NotSent("x".to_owned()), refused(Code::StoreUnavailable)] {
            let step = bounded().after(&failure, at(1_000), 0);
            assert!(matches!(step, AcquireStep::Retry(_)), "{failure:?}");
            assert_eq!(bounded().after(&failure, at(2_000), 0), AcquireStep::Fail, "{failure:?}");
        }
        for failure in [Failure::NoReply("x".to_owned()), refused(Code::OutcomeUnknown)] {
            let step = bounded().after(&failure, at(2_000), 0);
            assert!(matches!(step, AcquireStep::Retry(_)), "{failure:?}");
            assert_eq!(bounded().after(&failure, at(7_000), 0), AcquireStep::Fail, "{failure:?}");
        }
        assert_eq!(bounded().timeout(at(0), 2_000), Duration::from_secs(7));
        assert_eq!(bounded().timeout(at(6_000), 0), Duration::from_secs(1));
        assert_eq!(plan(2_000).timeout(at(6_000), 0), WAIT_MARGIN);
    }

    #[test]
    fn a_missing_reply_is_retried_with_the_same_id_until_patience_ends() {
        for failure in [
            Failure::NotSent("x".to_owned()),
            Failure::NoReply("x".to_owned()),
            refused(Code::StoreUnavailable),
            refused(Code::OutcomeUnknown),
        ] {
            assert!(
                matches!(plan(0).after(&failure, at(0), 0), AcquireStep::Retry(_)),
                "{failure:?}"
            );
            assert_eq!(plan(0).after(&failure, at(5000), 0), AcquireStep::Fail, "{failure:?}");
        }
    }

    #[test]
    fn a_held_lock_is_final_once_the_wait_is_over() {
        assert_eq!(plan(0).after(&refused(Code::LockHeld), at(0), 0), AcquireStep::Fail);
        assert_eq!(plan(900).after(&refused(Code::LockHeld), at(900), 0), AcquireStep::Fail);
        // The server's limit is shorter than the requested wait.
        let again = plan(400_000).after(&refused(Code::LockHeld), at(300_000), 0);
        assert!(matches!(again, AcquireStep::Retry(_)));
        assert_eq!(plan(400_000).wait_ms(at(300_000)), 100_000);
    }

    #[test]
    fn an_id_that_ended_is_replaced_until_patience_ends_and_not_in_a_tight_loop() {
        let mut plan = plan(0);
        for _ in 0..RESTARTS_AT_ONCE {
            let step = plan.after(&refused(Code::LeaseLost), at(0), 0);
            assert_eq!(step, AcquireStep::Restart(Duration::ZERO));
        }
        for _ in 0..100 {
            let step = plan.after(&refused(Code::LeaseLost), at(1000), 0);
            assert!(matches!(step, AcquireStep::Restart(pause) if !pause.is_zero()), "{step:?}");
        }
        assert_eq!(plan.after(&refused(Code::LeaseLost), at(5000), 0), AcquireStep::Fail);
    }

    /// A grant whose window had passed before it could be used does not predict the next attempt.
    #[test]
    fn a_reply_that_came_too_late_is_retried_while_the_wait_lasts() {
        let late = || Failure::Unusable(Error::new(ErrorKind::Unavailable, "late"));
        let mut plan = plan(60_000);
        assert!(
            (0..100).all(|n| matches!(plan.after(&late(), at(n * 600), n), AcquireStep::Retry(_)))
        );
        assert_eq!(plan.after(&late(), at(65_000), 0), AcquireStep::Fail);
        assert_eq!(
            evidence(&late()),
            GrantEvidence::Unknown,
            "it may be live, and must be released"
        );
        let wrong = Failure::Unusable(Error::new(ErrorKind::Internal, "of another lock"));
        assert_eq!(plan.after(&wrong, at(0), 0), AcquireStep::Fail);
    }

    #[test]
    fn mistakes_are_not_retried() {
        for code in
            [Code::InvalidRequest, Code::Unauthorized, Code::LeaseIdConflict, Code::Internal]
        {
            assert_eq!(plan(60_000).after(&refused(code), at(0), 0), AcquireStep::Fail, "{code}");
        }
    }

    #[test]
    fn retry_after_is_respected() {
        let failure = Failure::Refused(
            Box::new(Problem::new(Code::StoreUnavailable, "x")),
            Some(Duration::from_secs(2)),
        );
        assert_eq!(plan(0).after(&failure, at(0), 0), AcquireStep::Retry(Duration::from_secs(2)));
        assert_eq!(plan(0).after(&failure, at(3000), 0), AcquireStep::Fail);
    }

    proptest! {
        /// No pause ends after the time of the call.
        #[test]
        fn a_call_ends(wait_ms in 0..600_000u64, now in 0..700_000u64, random in any::<u64>()) {
            let mut plan = plan(wait_ms);
            for code in [Code::LockHeld, Code::StoreUnavailable, Code::OutcomeUnknown] {
                if let AcquireStep::Retry(pause) = plan.after(&refused(code), at(now), random) {
                    prop_assert!(now + whole_ms(pause) < wait_ms + 5000);
                }
            }
        }
    }
}

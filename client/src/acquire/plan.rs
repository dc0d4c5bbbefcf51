//! Retry rules of an acquire. Pure.

use std::time::Duration;

use fence_protocol::Code;
use fence_protocol::wire::lock::MAX_WAIT_MS;

use crate::clock::Moment;
use crate::transport::Failure;
use crate::{ErrorKind, timing};

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
    wait_until: Moment,
    patience_until: Moment,
    attempts: u32,
    restarts: u32,
}

impl Plan {
    /// Plans a call that begins at `now`, waits for `wait` in the queue and retries an unreachable
    /// server for `patience` beyond that.
    pub(super) fn new(now: Moment, wait: Duration, patience: Duration) -> Self {
        let wait_until = now.plus_ms(whole_ms(wait));
        let patience_until = wait_until.plus_ms(whole_ms(patience));
        Self { wait_until, patience_until, attempts: 0, restarts: 0 }
    }

    /// Longest wait of the next attempt in the queue, in milliseconds.
    pub(super) fn wait_ms(&self, now: Moment) -> u64 {
        whole_ms(self.wait_until.since(now)).min(MAX_WAIT_MS)
    }

    /// Decides the next step after a failure at `now`; `random` is the jitter of the pause.
    pub(super) fn after(&mut self, failure: &Failure, now: Moment, random: u64) -> AcquireStep {
        // A reply that arrives too late has taken its time already: the pause does not grow.
        let is_late =
            matches!(failure, Failure::Unusable(error) if *error.kind() == ErrorKind::Unavailable);
        self.attempts = if is_late { 1 } else { self.attempts + 1 };
        let (again, limit, pause_min) = match failure {
            Failure::Refused(problem, retry_after) => match problem.code {
                Code::LeaseLost => return self.restart(now, random),
                // The server's own limit may be shorter than the wait: the client waits for the
                // rest.
                Code::LockHeld => (true, self.wait_until, Duration::ZERO),
                code => (
                    code.retryable() || matches!(problem.status, 502..=504),
                    self.patience_until,
                    retry_after.unwrap_or_default(),
                ),
            },
            Failure::NotSent(_) | Failure::NoReply(_) => {
                (true, self.patience_until, Duration::ZERO)
            }
            Failure::Unusable(_) => (is_late, self.patience_until, Duration::ZERO),
        };
        let pause = timing::pause(self.attempts, random).max(pause_min);
        if again && now.plus_ms(whole_ms(pause)) < limit {
            AcquireStep::Retry(pause)
        } else {
            AcquireStep::Fail
        }
    }

    fn restart(&mut self, now: Moment, random: u64) -> AcquireStep {
        self.restarts += 1;
        let pause = match self.restarts.checked_sub(RESTARTS_AT_ONCE) {
            None | Some(0) => Duration::ZERO,
            Some(later) => timing::pause(later, random),
        };
        if now.plus_ms(whole_ms(pause)) < self.patience_until {
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

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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

    fn plan(wait_ms: u64) -> Plan {
        Plan::new(at(0), Duration::from_millis(wait_ms), Duration::from_secs(5))
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
        let again = plan(400_000).after(&refused(Code::LockHeld), at(MAX_WAIT_MS), 0);
        assert!(matches!(again, AcquireStep::Retry(_)));
        assert_eq!(plan(400_000).wait_ms(at(MAX_WAIT_MS)), 100_000);
        assert_eq!(plan(400_000).wait_ms(at(0)), MAX_WAIT_MS);
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

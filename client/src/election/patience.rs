//! Retry rule of a candidate after a round without an election. Pure.

use std::time::Duration;

use crate::ErrorKind;
use crate::clock::Moment;
use crate::timing;

/// Reaction to a round without an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CampaignStep {
    /// Queue again after this pause.
    Pause(Duration),
    /// Return the error.
    Fail,
}

/// The candidate's patience with servers that do not reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Option<Duration>,
    failing_since: Option<Moment>,
    failures: u32,
}

impl Patience {
    /// Retries failures for `limit` in a row; for ever without one.
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, failing_since: None, failures: 0 }
    }

    /// Decides the next step after a round that ended at `now`; `random` is the jitter of the
    /// pause.
    pub(super) fn after(&mut self, kind: &ErrorKind, now: Moment, random: u64) -> CampaignStep {
        match kind {
            // The server is well, and the office is taken. The pause avoids a tight loop if the
            // server replies at once, against the contract.
            ErrorKind::Contended { .. } => {
                self.failing_since = None;
                self.failures = 0;
                CampaignStep::Pause(timing::pause(1, random))
            }
            ErrorKind::Unavailable | ErrorKind::OutcomeUnknown | ErrorKind::LeaseLost { .. } => {
                let since = *self.failing_since.get_or_insert(now);
                if self.limit.is_some_and(|limit| now.since(since) >= limit) {
                    return CampaignStep::Fail;
                }
                self.failures = self.failures.saturating_add(1);
                CampaignStep::Pause(timing::pause(self.failures, random))
            }
            _ => CampaignStep::Fail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    const HELD: ErrorKind = ErrorKind::Contended { holder: None, retry_after: None };

    fn continues(step: CampaignStep) -> bool {
        let CampaignStep::Pause(pause) = step else { return false };
        !pause.is_zero() && pause <= Duration::from_secs(1)
    }

    #[test]
    fn an_office_that_is_taken_is_waited_for_without_end() {
        let mut patience = Patience::new(Some(Duration::from_secs(1)));
        for round in 0..1000 {
            assert!(continues(patience.after(&HELD, at(round * 300_000), round)));
        }
    }

    #[test]
    fn failures_are_retried_until_the_patience_ends() {
        for kind in [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown] {
            let mut patience = Patience::new(Some(Duration::from_secs(10)));
            assert!(continues(patience.after(&kind, at(0), 1)));
            assert!(continues(patience.after(&kind, at(9_999), 2)));
            // A reply in between proves that the server is live.
            assert!(continues(patience.after(&HELD, at(10_000), 3)));
            assert!(continues(patience.after(&kind, at(10_001), 4)));
            assert_eq!(patience.after(&kind, at(20_001), 5), CampaignStep::Fail);
            let mut endless = Patience::new(None);
            assert!((0..1000).all(|n| continues(endless.after(&kind, at(n * 100_000), n))));
        }
    }

    #[test]
    fn a_permanent_error_is_returned_at_once() {
        for kind in [ErrorKind::Invalid, ErrorKind::Internal] {
            assert_eq!(Patience::new(None).after(&kind, at(0), 0), CampaignStep::Fail);
        }
    }
}

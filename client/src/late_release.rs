//! Releases without a timely reply, though the work had ended in time.

use std::fmt;

use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::wire::lock::EndReason;
use fence_protocol::wire::session::SessionEndReason;

use crate::clock::{self, Moment};
use crate::trust::Trust;
use crate::{Error, ErrorKind, LostReason};

/// End of the work under a lease or a session, as the client observed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkEnd {
    /// Moment until which the lease was trusted when its work ended; `None` if it was lost by then.
    deadline: Option<Moment>,
}

impl WorkEnd {
    /// Records that the work ends now.
    pub(crate) fn now(trust: &Trust) -> Self {
        let is_live = trust.lost(clock::reading()).is_none();
        Self { deadline: is_live.then(|| trust.window().deadline()) }
    }

    /// Records that the lease was lost before the work ended.
    pub(crate) fn too_late() -> Self {
        Self { deadline: None }
    }

    /// Replaces the error of a release whose reply came too late by the success `released`: the
    /// work had ended while the lease was live. `what` names the lease in the log.
    pub(crate) fn excuse_late_release<T>(
        self,
        result: Result<T, Error>,
        what: &impl fmt::Display,
        released: impl FnOnce() -> T,
    ) -> Result<T, Error> {
        match result {
            Err(error) if self.is_before(&error, clock::now()) => {
                tracing::warn!(%what, %error, "the lease ended before its release had a reply, but its work had ended in time");
                Ok(released())
            }
            result => result,
        }
    }

    /// Returns `true` if the lease ended by its time or by this release, and only after its work
    /// had ended. A first refusal that arrives before the deadline has another cause (a takeover, a
    /// stepped clock, a server that lost its memory), and the work may have overlapped with another
    /// holder's.
    fn is_before(self, refusal: &Error, now: Moment) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        let ErrorKind::LeaseLost { reason } = *refusal.kind() else {
            return false;
        };
        let may_be_done = refusal.outcome() == Some(WriteOutcome::Unknown);
        let is_by_time_or_release = match reason {
            // The release was stopped when the lease had expired.
            LostReason::Deadline => true,
            LostReason::Ended(EndReason::Expired) => true,
            // The server has forgotten a release, because others have held the lock since.
            LostReason::Ended(EndReason::Superseded) => may_be_done,
            LostReason::Ended(EndReason::SessionEnded) => session_expired(refusal, may_be_done),
            _ => false,
        };
        is_by_time_or_release && (may_be_done || deadline <= now)
    }
}

/// Returns `true` if the session may have expired. The refusal of a lease does not say how its
/// session ended; the refusal of the session does, unless the server has forgotten it: then an
/// attempt that `may_be_done` explains that.
fn session_expired(refusal: &Error, may_be_done: bool) -> bool {
    let Some(problem) = refusal.problem() else {
        return false;
    };
    match problem.code {
        Code::LeaseLost => true,
        Code::SessionUnknown => may_be_done,
        Code::SessionEnded => matches!(
            problem.extension("reason"),
            Some(SessionEndReason::Expired | SessionEndReason::Blocked)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::Problem;

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_ms(ms)
    }

    fn refused(code: Code, reason: &str) -> Error {
        Error::from_problem(Problem::new(code, "x").with("reason", reason), None)
    }

    const BY_TIME: [(Code, &str); 4] = [
        (Code::LeaseLost, "expired"),
        (Code::LeaseLost, "session-ended"),
        (Code::SessionEnded, "expired"),
        (Code::SessionEnded, "blocked"),
    ];

    #[test]
    fn only_an_expiry_after_the_deadline_is_later_than_the_work() {
        let end = WorkEnd { deadline: Some(at(2_400)) };
        for (code, reason) in BY_TIME {
            let refusal = refused(code, reason);
            assert!(end.is_before(&refusal, at(2_400)), "{reason}");
            assert!(!end.is_before(&refusal, at(2_399)), "{reason}: no clock explains that");
            assert!(!WorkEnd::too_late().is_before(&refusal, at(2_400)), "{reason}");
        }
    }

    /// An attempt whose reply was lost has released it, and the server has forgotten that.
    #[test]
    fn a_retry_finds_what_its_first_attempt_left() {
        let retried = |code, reason| refused(code, reason).with_outcome(WriteOutcome::Unknown);
        let end = WorkEnd { deadline: Some(at(2_400)) };
        let forgotten = [(Code::LeaseLost, "superseded"), (Code::SessionUnknown, "")];
        for (code, reason) in BY_TIME.into_iter().chain(forgotten) {
            assert!(end.is_before(&retried(code, reason), at(0)), "{code} {reason}");
            assert!(!WorkEnd::too_late().is_before(&retried(code, reason), at(0)), "{reason}");
        }
        assert!(!end.is_before(&retried(Code::LeaseLost, "revoked"), at(9_000)));
    }

    #[test]
    fn a_lease_that_others_ended_may_have_ended_before_the_work() {
        let end = WorkEnd { deadline: Some(at(0)) };
        for (code, reason) in [
            (Code::LeaseLost, "revoked"),
            (Code::LeaseLost, "superseded"),
            (Code::LeaseLost, "released"),
            (Code::SessionEnded, "ended"),
            (Code::SessionUnknown, "expired"),
            (Code::StoreUnavailable, "expired"),
        ] {
            assert!(!end.is_before(&refused(code, reason), at(9_000)), "{code} {reason}");
        }
    }
}

//! Background renewal: at a third of the time to live, retried until it succeeds or the lease is
//! lost.

use std::sync::Arc;

use fence_protocol::wire::lock::{EndReason, RenewRequest};
use fence_protocol::{Code, LeaseId, LockName, Token, Ttl};

use crate::clock;
use crate::error::end_reason;
use crate::timing::Window;
use crate::transport::Failure;
use crate::trust::Trust;
use crate::{Locks, LostReason, attempts};

pub(super) struct Renewal {
    pub(super) locks: Locks,
    pub(super) trust: Arc<Trust>,
    pub(super) lock: LockName,
    pub(super) lease_id: LeaseId,
    pub(super) token: Token,
    pub(super) ttl: Ttl,
}

impl Renewal {
    /// Renews the lease until it is lost. The caller stops it by dropping the future.
    pub(super) async fn keep(self) {
        let lost = self.trust.when_lost();
        tokio::select! {
            biased;
            _ = lost => {}
            () = self.renew_for_ever() => {}
        }
    }

    async fn renew_for_ever(&self) {
        loop {
            clock::sleep_until(self.trust.window().renew_at()).await;
            let renewed = attempts::until_success(
                || self.renew(),
                || self.trust.window().renewal_timeout(clock::now()),
                |why| matches!(why, NotRenewed::Lost(_)),
                |attempt, why| self.report(attempt, why),
            );
            if let Err(NotRenewed::Lost(reason)) = renewed.await {
                return self.trust.lose(reason);
            }
        }
    }

    /// Logs a failure: the first at warn level, its retries at debug level.
    fn report(&self, attempt: u32, why: Option<&NotRenewed>) {
        let remaining_ms = self.trust.window().remaining(clock::now()).as_millis();
        let reason = match why {
            Some(NotRenewed::Failed(failure)) => failure.reason(),
            _ => attempts::NO_REPLY_YET.to_owned(),
        };
        let lock = &self.lock;
        if attempt == 1 {
            tracing::warn!(%lock, remaining_ms, "a renewal failed, retrying: {reason}");
        } else {
            tracing::debug!(%lock, attempt, remaining_ms, "a renewal failed again: {reason}");
        }
    }

    async fn renew(&self) -> Result<(), NotRenewed> {
        let sent_at = clock::now();
        let timeout = self.trust.window().reply_timeout(sent_at);
        let request = RenewRequest { lease_id: self.lease_id, ttl_ms: None };
        let reply = self.locks.renew_once(&self.lock, &request, timeout).await;
        let reply = reply.map_err(NotRenewed::from_failure)?;
        if reply.token != self.token {
            // A store that lost its memory granted a late retry of the acquire as a new lease.
            // Another client may have held the lock in between, and the guard refuses this lease's
            // token.
            return Err(NotRenewed::Lost(LostReason::Ended(EndReason::Superseded)));
        }
        let window = Window::of_reply(sent_at, reply.ttl_ms, self.ttl);
        // If this comes too late, the lease is lost, and the tasks that wait for that are notified.
        self.trust.extend(window, clock::reading());
        Ok(())
    }
}

/// Reason why a renewal failed.
enum NotRenewed {
    /// The lease has ended.
    Lost(LostReason),
    /// The lease may be live; a retry can succeed.
    Failed(Failure),
}

impl NotRenewed {
    fn from_failure(failure: Failure) -> Self {
        match failure {
            Failure::Refused(problem, _) if problem.code == Code::LeaseLost => {
                Self::Lost(LostReason::Ended(end_reason(&problem)))
            }
            failure => Self::Failed(failure),
        }
    }
}

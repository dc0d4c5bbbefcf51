//! Takeover: a lease replaces another of the same owner.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName};

use super::Machine;
use super::group::GrantRoute;
use crate::record::Record;
use crate::{Acquire, Grant, StoreError, tokens};

impl Machine {
    /// Ends the live lease and grants the request in one transition; the waiters keep waiting.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`], after which nothing has changed.
    pub(super) fn supersede(
        &mut self,
        now_ms: u64,
        lock: &LockName,
        record: &mut Record,
        superseded: LeaseId,
        request: Acquire,
    ) -> Result<Grant, StoreError> {
        tokens::next(self.counter, request.min_token).ok_or(StoreError::Exhausted)?;
        self.close(now_ms, lock, record, superseded, EndReason::Superseded, None);
        let lease_id = request.lease_id;
        let waiter = record.queue.remove(lease_id);
        let waited_ms = waiter.as_ref().map_or(0, |waiter| now_ms.saturating_sub(waiter.since_ms));
        let result = self.grant(now_ms, lock, record, request, GrantRoute::InReply { waited_ms });
        self.report_end_last();
        if let Some(waiter) = waiter {
            // An earlier call with this id still waits: it gets the grant too.
            self.forget_waiter(lock, &waiter);
            self.deliver(lock, &waiter, result.clone());
        }
        result
    }
}

//! An acquire, and the callers that await its reply.

use fence_protocol::{LeaseId, LockName};
use tokio::sync::oneshot;

use crate::store::{Acquire, Grant, StoreError};

/// Reply to an acquire.
#[derive(Debug)]
pub(super) struct Answered {
    /// Time at which the remaining time was measured, by this server's clock.
    pub(super) at_ms: u64,
    pub(super) result: Result<Vec<Grant>, StoreError>,
    /// Another request got the same reply, or may have.
    pub(super) is_shared: bool,
}

/// An acquire with its callers.
#[derive(Debug)]
pub(super) struct Waiting {
    /// At least one; several have one lease id.
    pub(super) parts: Vec<Acquire>,
    /// Requested as an acquire of several locks.
    pub(super) is_several: bool,
    /// It was in a queue.
    pub(super) waited: bool,
    /// Time of the request, by the store's clock.
    pub(super) since_ms: u64,
    /// Time-out, by the store's clock.
    pub(super) until_ms: u64,
    pub(super) answers: Vec<oneshot::Sender<Answered>>,
    /// Its number among all that wait.
    pub(super) number: u64,
}

/// A request without callers: its queue entries are to be removed, and its grants rolled back.
#[derive(Debug)]
pub(super) struct Unreceived {
    pub(super) locks: Vec<LockName>,
    pub(super) lease_id: LeaseId,
}

impl Waiting {
    pub(super) fn new(
        parts: Vec<Acquire>,
        is_several: bool,
        now_ms: u64,
    ) -> (Self, oneshot::Receiver<Answered>) {
        let (answer, reply) = oneshot::channel();
        let until_ms = now_ms.saturating_add(parts.first().map_or(0, |part| part.wait_ms));
        let answers = vec![answer];
        let waiting = Self {
            parts,
            is_several,
            waited: false,
            since_ms: now_ms,
            until_ms,
            answers,
            number: 0,
        };
        (waiting, reply)
    }

    pub(super) fn key(&self) -> Option<(LockName, LeaseId)> {
        self.parts.first().map(|part| (part.lock.clone(), part.lease_id))
    }

    pub(super) fn locks(&self) -> Vec<LockName> {
        self.parts.iter().map(|part| part.lock.clone()).collect()
    }

    /// Sets the waiting time of a grant that was found in the record.
    pub(super) fn add_waited(&self, grants: &mut [Grant], now_ms: u64) {
        if self.waited {
            let waited_ms = now_ms.saturating_sub(self.since_ms);
            grants.iter_mut().for_each(|grant| grant.waited_ms = grant.waited_ms.max(waited_ms));
        }
    }

    /// Replies to every caller. Returns the grant that no caller received.
    pub(super) fn answer(self, answered: Answered) -> Option<Unreceived> {
        let Answered { at_ms, result, is_shared } = answered;
        let is_shared = is_shared || self.answers.len() > 1;
        let locks = self.locks();
        let lease_id = self.parts.first()?.lease_id;
        let mut is_received = false;
        for answer in self.answers {
            let answered = Answered { at_ms, result: result.clone(), is_shared };
            is_received |= answer.send(answered).is_ok();
        }
        let is_lost = self.waited && result.is_ok() && !is_received;
        is_lost.then_some(Unreceived { locks, lease_id })
    }

    /// Replies that the request was not carried out, or that the outcome is unknown.
    pub(super) fn refuse(self, error: StoreError) {
        drop(self.answer(Answered { at_ms: 0, result: Err(error), is_shared: true }));
    }

    /// Returns whether every caller has left.
    pub(super) fn is_abandoned(&self) -> bool {
        self.answers.iter().all(oneshot::Sender::is_closed)
    }
}

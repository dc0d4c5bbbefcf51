//! A caller's position in a queue.

use fence_protocol::LeaseId;
use tokio::sync::oneshot;

use super::settlement::FinalReply;
use super::{Key, QueueReply};
use crate::engines::quorum::QuorumStore;
use crate::store::{Acquire, Grant, StoreError};

/// A caller's position. Dropped, it takes the caller out; a grant that is on its way to it then
/// goes with it, see [`Delivery`](super::Delivery).
#[derive(Debug)]
pub(crate) struct QueuePosition {
    store: QuorumStore,
    key: Key,
    number: u64,
    reply: oneshot::Receiver<QueueReply>,
}

impl QueuePosition {
    pub(super) fn new(
        store: QuorumStore,
        request: &Acquire,
        number: u64,
        reply: oneshot::Receiver<QueueReply>,
    ) -> Self {
        let key = (request.lock.clone(), request.lease_id);
        Self { store, key, number, reply }
    }

    /// Waits for the answer. Cancel-safe.
    pub(crate) async fn reply(&mut self) -> Result<Grant, StoreError> {
        match (&mut self.reply).await {
            Ok(reply) => reply.map(super::Granted::read),
            // Only the end of the process stops a driver.
            Err(_) => Err(StoreError::Unknown(
                "the lock server is shutting down; repeat with the same lease_id".to_owned(),
            )),
        }
    }

    /// The caller's patience is over: its refusal, or the answer that is on its way. Cancel-safe.
    pub(crate) async fn final_reply(&mut self) -> Result<Grant, StoreError> {
        let now_ms = self.store.now_ms();
        let word = self.queues().state().final_reply(&self.key.0, self.number, now_ms);
        match word {
            FinalReply::Now(refusal) => Err(refusal),
            FinalReply::Soon => self.reply().await,
        }
    }

    /// Leaves the queue, because the caller has its reply from elsewhere. A grant that has come
    /// meanwhile is better than a refusal; one that comes later is rolled back after one.
    pub(crate) fn answered_with(mut self, answer: QueueReply) -> Result<Grant, StoreError> {
        self.leave(answer.is_err());
        match (answer, self.reply.try_recv()) {
            (Ok(granted), _) | (Err(_), Ok(Ok(granted))) => Ok(granted.read()),
            (Err(refusal), _) => Err(refusal),
        }
    }

    fn queues(&self) -> &super::Queues {
        self.store.queues()
    }

    /// Takes the caller out of the queue; after that it gets no reply.
    fn leave(&self, was_refused: bool) {
        let mut state = self.queues().state();
        let state = &mut *state;
        let Some(queue) = state.locks.get_mut(&self.key.0) else { return };
        let number: u64 = self.number;
        let lease: LeaseId = self.key.1;
        let at = queue.entries.iter().position(|entry| entry.request.lease_id == lease);
        let Some(at) = at else { return };
        let entry = &mut queue.entries[at];
        let is_it = |listener: &super::Listener| listener.number == number;
        let Some(place) = entry.listeners.iter().position(is_it) else { return };
        let listener = entry.listeners.remove(place);
        state.waiting -= usize::from(listener.patient);
        entry.rolls_back |= was_refused;
        // The driver sees to one that is with the nodes.
        if entry.listeners.is_empty() && !(at == 0 && queue.proposing) {
            queue.entries.remove(at);
            queue.wake.notify_one();
        }
    }
}

impl Drop for QueuePosition {
    fn drop(&mut self) {
        self.leave(false);
    }
}

//! A caller's place in a queue.

use fence_protocol::LeaseId;
use tokio::sync::oneshot;

use super::telling::LastWord;
use super::{Key, Told};
use crate::store::quorum::QuorumStore;
use crate::store::{Acquire, Grant, StoreError};

/// A caller's place. Dropped, it takes the caller out; a grant that the caller has not read is taken
/// back, unless another one has.
#[derive(Debug)]
pub(in super::super) struct Seat {
    store: QuorumStore,
    key: Key,
    number: u64,
    told: oneshot::Receiver<Told>,
    /// Whether the caller has its answer.
    answered: bool,
}

impl Seat {
    pub(super) fn new(
        store: QuorumStore,
        request: &Acquire,
        number: u64,
        told: oneshot::Receiver<Told>,
    ) -> Self {
        let key = (request.lock.clone(), request.lease_id);
        Self { store, key, number, told, answered: false }
    }

    /// Waits for the answer. Cancel-safe.
    pub(in super::super) async fn told(&mut self) -> Told {
        let told = (&mut self.told).await;
        self.answered = true;
        match told {
            Ok(Ok(grant)) => {
                self.forget_unread(true);
                Ok(grant)
            }
            Ok(refusal) => refusal,
            // Only the end of the process stops a driver.
            Err(_) => Err(StoreError::Unknown(
                "the lock server is shutting down; repeat with the same lease_id".to_owned(),
            )),
        }
    }

    /// The caller's patience is over: its refusal, or the answer that is on its way. Cancel-safe.
    pub(in super::super) async fn last_word(&mut self) -> Told {
        let now_ms = self.store.now_ms();
        let word = self.queues().state().last_word(&self.key.0, self.number, now_ms);
        match word {
            LastWord::Now(refusal) => {
                self.answered = true;
                Err(refusal)
            }
            LastWord::Soon => self.told().await,
        }
    }

    /// The caller has its answer from elsewhere: the place is given up, and nothing is taken back.
    pub(in super::super) fn answered_with(mut self, grant: Told) -> Told {
        self.answered = true;
        if grant.is_ok() {
            self.queues().confirm(&self.key);
        }
        grant
    }

    fn queues(&self) -> &super::Queues {
        self.store.queues()
    }

    /// Whether nobody knows of the grant that this caller was told of and has not read.
    fn forget_unread(&self, known: bool) -> bool {
        let mut state = self.queues().state();
        let Some(unread) = state.unread.get_mut(&self.key) else { return false };
        unread.known |= known;
        unread.callers -= 1;
        let nobody_knows = unread.callers == 0 && !unread.known;
        if unread.callers == 0 {
            state.unread.remove(&self.key);
        }
        nobody_knows
    }

    /// Takes the caller out of the queue; whether the nodes may still hold votes for it.
    fn leave(&self) -> bool {
        let mut state = self.queues().state();
        let state = &mut *state;
        let Some(queue) = state.locks.get_mut(&self.key.0) else { return false };
        let (number, lease): (u64, LeaseId) = (self.number, self.key.1);
        let at = queue.entries.iter().position(|entry| entry.request.lease_id == lease);
        let Some(at) = at else { return false };
        let entry = &mut queue.entries[at];
        let is_it = |listener: &super::Listener| listener.number == number;
        if let Some(place) = entry.listeners.iter().position(is_it) {
            let listener = entry.listeners.remove(place);
            state.waiting -= usize::from(listener.patient);
        }
        // The driver sees to one that is with the nodes.
        if !entry.listeners.is_empty() || (at == 0 && queue.proposing) {
            return false;
        }
        let unsure = entry.unsure;
        queue.entries.remove(at);
        queue.wake.notify_one();
        unsure
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Ok(Ok(Grant { .. })) = self.told.try_recv() {
            if self.forget_unread(self.answered) {
                self.store.withdraw_later(self.key.clone());
            }
            return;
        }
        if self.leave() && !self.answered {
            self.store.withdraw_later(self.key.clone());
        }
    }
}

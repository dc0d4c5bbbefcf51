//! What becomes of those who wait when the first of them has asked.

use fence_protocol::{LeaseId, LockName};

use super::{Entry, Holder, Listener, Queue, Queues, State, Unread};
use crate::store::{Grant, StoreError};

/// How often the first asks again where nothing is heard: messages may be lost.
const POLL_MS: u64 = 1_000;
/// How long it waits where the nodes could not be asked.
const TROUBLE_MS: u64 = 200;
const DUEL: &str = "several lock servers ask for this lock at the same moment, and none has a \
                    majority of the nodes; try again";

/// What came of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Outcome {
    /// A majority has voted for it.
    Granted(Grant),
    /// Another lease is live.
    Held(Holder),
    /// Nobody has a majority; `backoff_ms` until the next try.
    Split {
        /// Whom most nodes voted for, where they said so.
        holder: Option<Holder>,
        /// How long to wait before the next try.
        backoff_ms: u64,
    },
    /// It will never be granted.
    Refused(StoreError),
    /// The nodes could not be asked: [`StoreError::Unavailable`] or [`StoreError::Unknown`].
    Failed(StoreError),
}

/// What the driver of the queue does next.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Next {
    /// Ask for whoever is first now.
    Ask,
    /// Wait so long, or until it is woken.
    Wait(u64),
    /// End a grant whose callers have gone, then ask.
    TakeBack(LeaseId),
}

impl Queues {
    /// Tells those whom the outcome concerns.
    pub(in super::super) fn tell(
        &self,
        lock: &LockName,
        lease: LeaseId,
        outcome: Outcome,
        now_ms: u64,
    ) -> Next {
        let mut state = self.state();
        let state = &mut *state;
        let Some(queue) = state.locks.get_mut(lock) else { return Next::Ask };
        queue.proposing = false;
        if queue.entries.front().is_none_or(|head| head.request.lease_id != lease) {
            // Nobody is there whom it concerns.
            return match outcome {
                Outcome::Granted(_) => Next::TakeBack(lease),
                _ => Next::Ask,
            };
        }
        let (next, told) = match outcome {
            Outcome::Granted(grant) => {
                let holder = Holder::of(&grant, now_ms);
                let next = queue.granted(grant, now_ms, &mut state.unread, &mut state.waiting);
                queue.holder = Some(holder);
                (next, queue.refuse_impatient(now_ms, None))
            }
            Outcome::Held(holder) => {
                let wait_ms = holder.until_ms.saturating_sub(now_ms).saturating_add(1).min(POLL_MS);
                queue.holder = Some(holder);
                if let Some(head) = queue.entries.front_mut() {
                    (head.waited, head.unsure) = (true, false);
                }
                (Next::Wait(wait_ms), queue.refuse_impatient(now_ms, None))
            }
            Outcome::Split { holder, backoff_ms } => {
                queue.holder = holder;
                let duel = StoreError::Unavailable(DUEL.to_owned());
                (Next::Wait(backoff_ms), queue.refuse_impatient(now_ms, Some(duel)))
            }
            Outcome::Refused(refusal) => {
                let head = queue.entries.pop_front();
                let told = head.map_or(0, |head| answer(head.listeners, &Err(refusal)));
                (Next::Ask, told)
            }
            Outcome::Failed(error) => queue.failed(error, now_ms),
        };
        state.waiting -= told;
        queue.entries.retain(|entry| !entry.listeners.is_empty());
        match next {
            Next::Wait(_) if queue.entries.is_empty() => Next::Ask,
            next => next,
        }
    }
}

/// Tells all; gives how many of them were patient.
fn answer(listeners: Vec<Listener>, told: &super::Told) -> usize {
    let patient = listeners.iter().filter(|listener| listener.patient).count();
    for listener in listeners {
        // Whoever is gone by now takes its seat away, and sees to what it was told.
        let _ = listener.answer.send(told.clone());
    }
    patient
}

impl Queue {
    fn granted(
        &mut self,
        grant: Grant,
        now_ms: u64,
        unread: &mut std::collections::HashMap<super::Key, Unread>,
        waiting: &mut usize,
    ) -> Next {
        let Some(head) = self.entries.pop_front() else { return Next::Ask };
        let lease = grant.lease_id;
        let remaining_ms = grant.remaining_ms;
        let nobody_knows = head.listeners.is_empty() && head.was_patient;
        let callers = head.listeners.len();
        let waited_ms = if head.waited { now_ms.saturating_sub(head.since_ms) } else { 0 };
        let lock = head.request.lock.clone();
        if head.was_patient && callers > 0 {
            unread.entry((lock, lease)).or_default().callers += callers;
        }
        *waiting -= answer(head.listeners, &Ok(Grant { waited_ms, ..grant }));
        if nobody_knows {
            return Next::TakeBack(lease);
        }
        Next::Wait(remaining_ms.saturating_add(1).min(POLL_MS))
    }

    fn failed(&mut self, error: StoreError, now_ms: u64) -> (Next, usize) {
        let mut told = 0;
        self.trouble = Some(error.to_string());
        if let Some(head) = self.entries.front_mut() {
            head.unsure |= matches!(error, StoreError::Unknown(_));
            let stays = |listener: &Listener| head.waited && listener.patient;
            let (stay, leave) = std::mem::take(&mut head.listeners).into_iter().partition(stays);
            head.listeners = stay;
            told += answer(leave, &Err(error.clone()));
        }
        let trouble = StoreError::Unavailable(error.to_string());
        told += self.refuse_impatient(now_ms, Some(trouble));
        (Next::Wait(TROUBLE_MS), told)
    }

    /// Tells those who do not wait (any longer) who has the lock, or `otherwise` where that is not
    /// known. None of them was counted as patient.
    fn refuse_impatient(&mut self, now_ms: u64, otherwise: Option<StoreError>) -> usize {
        for at in 0..self.entries.len() {
            let lease = self.entries[at].request.lease_id;
            let Some(refusal) = self.refusal(lease, now_ms).or_else(|| otherwise.clone()) else {
                continue;
            };
            let entry = &mut self.entries[at];
            let (stay, leave) =
                std::mem::take(&mut entry.listeners).into_iter().partition(|l| l.patient);
            entry.listeners = stay;
            answer(leave, &Err(refusal));
        }
        0
    }

    /// That the lock is held, where that is known.
    fn refusal(&self, lease: LeaseId, now_ms: u64) -> Option<StoreError> {
        let holder = self.holder.as_ref()?;
        // A repeat of the holder itself is no refusal.
        if holder.lease_id == lease || !holder.is_live(now_ms) {
            return None;
        }
        let queue_length = self.length_without(Some(lease));
        Some(StoreError::Held { holder: holder.info(now_ms), queue_length })
    }
}

/// What a caller whose patience is over is told.
pub(super) enum LastWord {
    /// This.
    Now(StoreError),
    /// Whatever the nodes say next.
    Soon,
}

impl State {
    /// The patience of a caller is over: takes it out, or lets it have the next answer.
    pub(super) fn last_word(&mut self, lock: &LockName, number: u64, now_ms: u64) -> LastWord {
        let Some(queue) = self.locks.get_mut(lock) else { return LastWord::Soon };
        let has = |entry: &Entry| entry.listeners.iter().any(|listener| listener.number == number);
        // Where it is not found, it was told already.
        let Some(at) = queue.entries.iter().position(has) else { return LastWord::Soon };
        let lease = queue.entries[at].request.lease_id;
        let refusal = queue.refusal(lease, now_ms);
        let is_with_the_nodes = at == 0 && queue.proposing;
        let unsure = queue.entries[at].unsure;
        let trouble = queue.trouble.clone();
        let listeners = &mut queue.entries[at].listeners;
        let now = if is_with_the_nodes {
            None
        } else if unsure {
            Some(StoreError::Unknown(trouble.unwrap_or_default()))
        } else {
            refusal
        };
        match now {
            Some(error) => {
                listeners.retain(|listener| listener.number != number);
                // Only this one: the first stays while it is with the nodes, whoever has left it.
                if listeners.is_empty() {
                    queue.entries.remove(at);
                }
                queue.wake.notify_one();
                self.waiting -= 1;
                LastWord::Now(error)
            }
            None => {
                for listener in listeners.iter_mut().filter(|l| l.number == number) {
                    listener.patient = false;
                }
                queue.wake.notify_one();
                self.waiting -= 1;
                LastWord::Soon
            }
        }
    }
}

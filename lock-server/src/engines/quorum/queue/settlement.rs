//! Replies to a queue when its first request has an outcome.

use std::sync::Arc;

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName};

use super::{Delivery, Entry, Granted, Holder, Listener, Queue, Queues, QueuesState};
use crate::store::{Grant, StoreError};

/// Pause after the nodes could not be asked.
const RETRY_MS: u64 = 200;
const DUEL: &str = "several lock servers ask for this lock at the same moment, and none has a \
                    majority of the nodes; try again";

/// Outcome of a proposal.
#[derive(Debug)]
pub(crate) enum ProposalOutcome {
    /// A majority has voted for it.
    Granted(Granted),
    /// Another lease is live.
    Held(Holder),
    /// No proposer has a majority.
    Split {
        /// True if it may have had one before its votes were rolled back.
        possibly_granted: bool,
        /// Time until the next try.
        backoff_ms: u64,
    },
    /// It will never be granted.
    Refused(StoreError),
    /// A majority has voted for it, and its time was over before that was known; why.
    Late(String),
    /// The nodes could not be asked: [`StoreError::Unavailable`] or [`StoreError::Unknown`].
    Failed(StoreError),
}

/// Next action of the queue's driver.
#[derive(Debug)]
pub(crate) enum NextProposal {
    /// Ask for the request that is first now.
    Propose,
    /// Wait so many milliseconds, or until it is woken.
    Wait(u64),
    /// Roll back a grant whose callers have gone, then ask.
    RollBack(Arc<Delivery>),
}

impl Queues {
    /// Replies to the callers that the outcome concerns.
    pub(crate) fn settle(
        &self,
        lock: &LockName,
        lease: LeaseId,
        outcome: ProposalOutcome,
        now_ms: u64,
        poll_ms: u64,
    ) -> NextProposal {
        let mut state = self.state();
        let state = &mut *state;
        let Some(queue) = state.locks.get_mut(lock) else { return NextProposal::Propose };
        queue.proposing = false;
        if queue.entries.front().is_none_or(|head| head.request.lease_id != lease) {
            // No caller is left.
            return match outcome {
                ProposalOutcome::Granted(granted) => NextProposal::RollBack(granted.delivery),
                _ => NextProposal::Propose,
            };
        }
        let (next, notified) = match outcome {
            ProposalOutcome::Granted(granted) => queue.granted(granted, now_ms),
            ProposalOutcome::Held(holder) => (queue.held(holder, now_ms), 0),
            ProposalOutcome::Split { possibly_granted, backoff_ms } => {
                (queue.split(possibly_granted, backoff_ms, now_ms), 0)
            }
            ProposalOutcome::Refused(refusal) => {
                let head = queue.entries.pop_front();
                let notified = head.map_or(0, |head| reply_to_all(head.listeners, &Err(refusal)));
                (NextProposal::Propose, notified)
            }
            ProposalOutcome::Late(why) => queue.late(why, now_ms),
            ProposalOutcome::Failed(error) => queue.failed(error.to_string(), error, now_ms),
        };
        state.waiting -= notified;
        queue.entries.retain(|entry| !entry.listeners.is_empty());
        match next {
            NextProposal::Wait(_) if queue.entries.is_empty() => NextProposal::Propose,
            NextProposal::Wait(ms) => NextProposal::Wait(ms.min(poll_ms)),
            next => next,
        }
    }
}

/// Replies to all; returns how many of them were patient.
fn reply_to_all(listeners: Vec<Listener>, reply: &super::QueueReply) -> usize {
    let patient = listeners.iter().filter(|listener| listener.patient).count();
    for listener in listeners {
        // A caller that is gone by now leaves the queue itself, and handles the reply that it got.
        let _ = listener.answer.send(reply.clone());
    }
    patient
}

impl Queue {
    fn granted(&mut self, granted: Granted, now_ms: u64) -> (NextProposal, usize) {
        let Granted { grant, delivery } = granted;
        let Some(head) = self.entries.pop_front() else {
            return (NextProposal::RollBack(delivery), 0);
        };
        let remaining_ms = grant.remaining_ms;
        self.holder = Some(Holder::from_grant(&grant, now_ms));
        self.refuse_impatient(now_ms, None);
        if !head.rolls_back {
            // Its caller did not wait, and repeats the request where the answer was lost.
            delivery.arrived();
        } else if head.listeners.is_empty() {
            return (NextProposal::RollBack(delivery), 0);
        }
        let waited_ms = if head.waited { now_ms.saturating_sub(head.since_ms) } else { 0 };
        let grant = Grant { waited_ms, ..grant };
        let notified = reply_to_all(head.listeners, &Ok(Granted { grant, delivery }));
        (NextProposal::Wait(remaining_ms.saturating_add(1)), notified)
    }

    fn held(&mut self, holder: Holder, now_ms: u64) -> NextProposal {
        let mut wait_ms = holder.until_ms.saturating_sub(now_ms).saturating_add(1);
        if self.ended.contains(&holder.lease_id) {
            // No other notification follows.
            wait_ms = 1;
        }
        self.holder = Some(holder);
        if let Some(head) = self.entries.front_mut() {
            (head.waited, head.possibly_granted) = (true, false);
        }
        self.refuse_impatient(now_ms, None);
        NextProposal::Wait(wait_ms)
    }

    /// No lease holds it, as far as is known: neither does the one with most votes.
    fn split(&mut self, possibly_granted: bool, backoff_ms: u64, now_ms: u64) -> NextProposal {
        self.holder = None;
        if let Some(head) = self.entries.front_mut()
            && possibly_granted
        {
            head.possibly_granted = true;
            reply_to_all(head.take_impatient(), &Err(StoreError::Unknown(DUEL.to_owned())));
        }
        self.refuse_impatient(now_ms, Some(&StoreError::Unavailable(DUEL.to_owned())));
        NextProposal::Wait(backoff_ms)
    }

    /// The lease has ended. A request that still waits is proposed again: its caller knows of no
    /// grant.
    fn late(&mut self, why: String, now_ms: u64) -> (NextProposal, usize) {
        self.holder = None;
        if let Some(head) = self.entries.front_mut() {
            head.waited = true;
        }
        let expired = StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true };
        self.failed(why, expired, now_ms)
    }

    /// The first entry's callers that do not wait get `error`; the others wait on, or get what
    /// `why` says.
    fn failed(&mut self, why: String, error: StoreError, now_ms: u64) -> (NextProposal, usize) {
        let mut notified = 0;
        self.last_error = Some(why.clone());
        if let Some(head) = self.entries.front_mut() {
            head.possibly_granted |= matches!(error, StoreError::Unknown(_));
            let stays = |listener: &Listener| head.waited && listener.patient;
            let (stay, leave) = std::mem::take(&mut head.listeners).into_iter().partition(stays);
            head.listeners = stay;
            notified += reply_to_all(leave, &Err(error.clone()));
        }
        let last_error = StoreError::Unavailable(why);
        self.refuse_impatient(now_ms, Some(&last_error));
        (NextProposal::Wait(RETRY_MS), notified)
    }

    /// Replies to callers that do not wait (any longer) with the holder, or with `otherwise` where
    /// that is not known. None of them was counted as patient.
    fn refuse_impatient(&mut self, now_ms: u64, otherwise: Option<&StoreError>) {
        if !self.entries.iter().any(Entry::has_impatient) {
            return;
        }
        // Counted once: a queue is long when every caller gets a reply.
        let waiting = self.length_without(None);
        let holder = self.holder.as_ref();
        for entry in self.entries.iter_mut().filter(|entry| entry.has_impatient()) {
            let others = waiting - usize::from(entry.is_patient());
            let held = holder.and_then(|it| refusal(it, entry.request.lease_id, others, now_ms));
            if let Some(refusal) = held.or_else(|| otherwise.cloned()) {
                reply_to_all(entry.take_impatient(), &Err(refusal));
            }
        }
    }

    /// That the lock is held, where that is known.
    fn refusal(&self, lease: LeaseId, now_ms: u64) -> Option<StoreError> {
        refusal(self.holder.as_ref()?, lease, self.length_without(Some(lease)), now_ms)
    }
}

/// Refusal of this lease because another one holds the lock.
fn refusal(
    holder: &Holder,
    lease: LeaseId,
    queue_length: usize,
    now_ms: u64,
) -> Option<StoreError> {
    // A repeat of the holder itself is no refusal.
    let is_other = holder.lease_id != lease && holder.is_live(now_ms);
    is_other.then(|| StoreError::Held { holder: holder.info(now_ms), queue_length })
}

/// Reply to a caller whose patience is over.
pub(super) enum FinalReply {
    /// This.
    Now(StoreError),
    /// Whatever the nodes say next.
    Soon,
}

impl QueuesState {
    /// The patience of a caller is over: takes it out, or lets it have the next answer.
    pub(super) fn final_reply(&mut self, lock: &LockName, number: u64, now_ms: u64) -> FinalReply {
        let Some(queue) = self.locks.get_mut(lock) else { return FinalReply::Soon };
        let has = |entry: &Entry| entry.listeners.iter().any(|listener| listener.number == number);
        // A request that is not found has its reply already.
        let Some(at) = queue.entries.iter().position(has) else { return FinalReply::Soon };
        let lease = queue.entries[at].request.lease_id;
        let refusal = queue.refusal(lease, now_ms);
        let is_with_the_nodes = at == 0 && queue.proposing;
        let possibly_granted = queue.entries[at].possibly_granted;
        let last_error = queue.last_error.clone();
        let listeners = &mut queue.entries[at].listeners;
        let now = if is_with_the_nodes {
            None
        } else if possibly_granted {
            Some(StoreError::Unknown(last_error.unwrap_or_default()))
        } else {
            refusal
        };
        match now {
            Some(error) => {
                listeners.retain(|listener| listener.number != number);
                // Only this one: the first stays while it is with the nodes, also if all its
                // callers have left.
                if listeners.is_empty() {
                    queue.entries.remove(at);
                }
                queue.wake.notify_one();
                self.waiting -= 1;
                FinalReply::Now(error)
            }
            None => {
                for listener in listeners.iter_mut().filter(|l| l.number == number) {
                    listener.patient = false;
                }
                queue.wake.notify_one();
                self.waiting -= 1;
                FinalReply::Soon
            }
        }
    }
}

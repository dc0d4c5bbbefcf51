//! Queues of this server's requests: a queue a lock, whose first asks the nodes.
//!
//! No other request of this server asks for a lock that has a queue here, so that callers neither
//! overtake each other nor split the votes among themselves. A task a queue drives it
//! (`acquire.rs`); callers hold a [`QueuePosition`], which takes them out when it is dropped.

mod delivery;
mod holder;
mod position;
mod settlement;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fence_protocol::wire::lock::WaiterReply;
use fence_protocol::{LeaseId, LockName};
use tokio::sync::{Notify, oneshot, watch};

pub(super) use self::delivery::{Delivery, Granted};
pub(super) use self::holder::Holder;
pub(super) use self::position::QueuePosition;
pub(super) use self::settlement::{NextProposal, ProposalOutcome};
use super::QuorumStore;
use crate::store::{Acquire, Limits, StoreError};

/// Most waiters in a reply.
const WAITERS_SHOWN: usize = 100;
/// Interval at which the first waiter asks the nodes while not every node notifies this server, in
/// milliseconds.
const POLL_MS: u64 = 1_000;
/// The same interval while every node does, because a message can be lost.
const POLL_SUBSCRIBED_MS: u64 = 5_000;
/// Most ends that are remembered during a proposal; nearly every node reports each.
const ENDED_MAX: usize = 64;

/// A lock and the id of a grant of it.
pub(super) type Key = (LockName, LeaseId);
/// Reply to a caller.
pub(super) type QueueReply = Result<Granted, StoreError>;

/// The queues of this server.
#[derive(Debug, Default)]
pub(super) struct Queues {
    state: Mutex<QueuesState>,
    /// Number of nodes that notify this server of ends.
    subscriptions: AtomicUsize,
    /// Number of queues that wait for an end.
    waiting: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct QueuesState {
    locks: HashMap<LockName, Queue>,
    /// Number of patient listeners.
    waiting: usize,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// True while the first entry is with the nodes.
    proposing: bool,
    wake: Arc<Notify>,
    /// The last known holder of the lock.
    holder: Option<Holder>,
    /// The last leases whose end was received while the first entry was with the nodes: one of them
    /// may be the lease that the nodes' replies are about to name as the holder.
    ended: VecDeque<LeaseId>,
    /// Why the nodes could not be asked the last time.
    last_error: Option<String>,
}

#[derive(Debug)]
struct Entry {
    request: Acquire,
    since_ms: u64,
    listeners: Vec<Listener>,
    /// True if an unread grant is rolled back: some caller wanted to wait, or got the reply that
    /// there is none.
    rolls_back: bool,
    /// True if it was refused once, or came behind others.
    waited: bool,
    /// True if a majority of the nodes may hold votes of it that were never counted.
    possibly_granted: bool,
}

#[derive(Debug)]
struct Listener {
    number: u64,
    patient: bool,
    answer: oneshot::Sender<QueueReply>,
}

/// Position at which a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is the first of a new queue, which the caller must drive.
    First,
    /// Others are before it.
    Behind,
    /// A request with the same id waits already, and it shares its position.
    Beside,
}

/// A queue that waits for an end.
#[derive(Debug)]
pub(super) struct AwaitsEnd<'a>(&'a Queues);

impl Drop for AwaitsEnd<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Entry {
    fn is_patient(&self) -> bool {
        self.listeners.iter().any(|listener| listener.patient)
    }

    fn has_impatient(&self) -> bool {
        self.listeners.iter().any(|listener| !listener.patient)
    }

    fn take_impatient(&mut self) -> Vec<Listener> {
        let all = std::mem::take(&mut self.listeners).into_iter();
        let (stay, leave) = all.partition(|listener| listener.patient);
        self.listeners = stay;
        leave
    }
}

impl Queue {
    /// True if a lease that ended is one that was waited for; votes that a waiter of this queue
    /// rolled back itself free nothing.
    fn is_blocking(&self, ended: LeaseId) -> bool {
        let own = self.entries.iter().any(|entry| entry.request.lease_id == ended);
        !own && self.holder.as_ref().is_none_or(|holder| holder.lease_id == ended)
    }

    fn record_end(&mut self, ended: LeaseId) {
        if self.proposing {
            self.ended.push_back(ended);
            self.ended.truncate(ENDED_MAX);
        }
    }

    /// Number of waiters, beside the request with this id.
    fn length_without(&self, lease: Option<LeaseId>) -> usize {
        let other = |entry: &&Entry| entry.is_patient() && Some(entry.request.lease_id) != lease;
        self.entries.iter().filter(other).count()
    }
}

impl Queues {
    fn state(&self) -> MutexGuard<'_, QueuesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a position. A retry of a waiting id gets the position that it has already.
    ///
    /// # Errors
    /// [`StoreError::IdConflict`], [`StoreError::Limit`].
    pub(super) fn enter(
        &self,
        store: &QuorumStore,
        request: &Acquire,
        limits: &Limits,
    ) -> Result<(QueuePosition, Entered), StoreError> {
        let patient = request.wait_ms > 0;
        let (answer, reply) = oneshot::channel();
        let mut state = self.state();
        let known = state.locks.get(&request.lock);
        if patient {
            let length = known.map_or(0, |queue| queue.length_without(Some(request.lease_id)));
            full("waiters of this lock", length, limits.waiters_per_lock)?;
            full("waiters of this server", state.waiting, limits.waiters)?;
            full(Limits::WAITING, state.waiting, limits.waiting)?;
        }
        let is_first = known.is_none();
        let number = state.next_number;
        let listener = Listener { number, patient, answer };
        let queue = state.locks.entry(request.lock.clone()).or_default();
        let entered = queue.admit(request, listener, store.now_ms(), is_first)?;
        if entered == Entered::Beside && !patient {
            // Its reply is the nodes' next one, so they are asked now.
            queue.wake.notify_one();
        }
        state.next_number += 1;
        state.waiting += usize::from(patient);
        Ok((QueuePosition::new(store.clone(), request, number, reply), entered))
    }

    /// The request that is first, which counts as with the nodes from now on, and what wakes its
    /// driver; none where the queue is over.
    pub(super) fn head(&self, lock: &LockName) -> Option<(Acquire, Arc<Notify>)> {
        let mut state = self.state();
        let queue = state.locks.get_mut(lock)?;
        while queue.entries.front().is_some_and(|entry| entry.listeners.is_empty()) {
            queue.entries.pop_front();
        }
        match queue.entries.front() {
            Some(entry) => {
                queue.proposing = true;
                queue.ended.clear();
                Some((entry.request.clone(), queue.wake.clone()))
            }
            None => {
                state.locks.remove(lock);
                None
            }
        }
    }

    /// The lock may be free: wakes the first of its queue.
    pub(super) fn wake(&self, lock: &LockName) {
        if let Some(queue) = self.state().locks.get(lock) {
            queue.wake.notify_one();
        }
    }

    /// As [`wake`](Self::wake), unless the lease that ended is not the one that blocks the queue.
    pub(super) fn wake_after(&self, lock: &LockName, ended: LeaseId) {
        if let Some(queue) = self.state().locks.get(lock)
            && queue.is_blocking(ended)
        {
            queue.wake.notify_one();
        }
    }

    /// A queue waits for an end, until this is dropped.
    pub(super) fn await_ends(&self) -> AwaitsEnd<'_> {
        self.waiting.send_modify(|count| *count += 1);
        AwaitsEnd(self)
    }

    /// Number of queues that wait for an end.
    pub(super) fn awaiting_ends(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }

    /// One node more notifies this server of ends from now on, until
    /// [`subscription_ended`](Self::subscription_ended).
    pub(super) fn subscription_began(&self) {
        self.subscriptions.fetch_add(1, Ordering::SeqCst);
    }

    /// At one node fewer.
    pub(super) fn subscription_ended(&self) {
        self.subscriptions.fetch_sub(1, Ordering::SeqCst);
    }

    /// Time after which the first of a queue retries if no notification arrives; there are `n`
    /// nodes.
    pub(super) fn poll_ms(&self, n: usize) -> u64 {
        if self.subscriptions.load(Ordering::SeqCst) < n { POLL_MS } else { POLL_SUBSCRIBED_MS }
    }

    /// True if a request here waits for this end of a lease at a node.
    pub(super) fn concerns(&self, lock: &LockName, ended: LeaseId) -> bool {
        let mut state = self.state();
        let Some(queue) = state.locks.get_mut(lock) else { return false };
        queue.record_end(ended);
        queue.is_blocking(ended)
    }

    /// Wake-ups of the drivers, queue by queue.
    pub(super) fn wakes(&self) -> Vec<Arc<Notify>> {
        self.state().locks.values().map(|queue| queue.wake.clone()).collect()
    }

    /// Takes a request with this id out of the queue, where it is and not with the nodes now, and
    /// replies to its callers with the error.
    pub(super) fn expel(&self, lock: &LockName, lease: LeaseId, why: &StoreError) {
        let mut state = self.state();
        let Some(queue) = state.locks.get_mut(lock) else { return };
        let at = queue.entries.iter().position(|entry| entry.request.lease_id == lease);
        let Some(at) = at.filter(|at| *at > 0 || !queue.proposing) else { return };
        let Some(entry) = queue.entries.remove(at) else { return };
        queue.wake.notify_one();
        state.waiting -= entry.listeners.iter().filter(|listener| listener.patient).count();
        for listener in entry.listeners {
            let _ = listener.answer.send(Err(why.clone()));
        }
    }

    /// The principal of the request that waits with this id.
    pub(super) fn principal(&self, lock: &LockName, lease: LeaseId) -> Option<String> {
        let state = self.state();
        let mut entries = state.locks.get(lock)?.entries.iter();
        entries.find(|entry| entry.request.lease_id == lease)?.request.principal.clone()
    }

    /// Number of a lock's waiters, and the first of them.
    pub(super) fn shown(&self, lock: &LockName, now_ms: u64) -> (usize, Vec<WaiterReply>) {
        let state = self.state();
        let Some(queue) = state.locks.get(lock) else { return (0, Vec::new()) };
        let patient = queue.entries.iter().filter(|entry| entry.is_patient());
        let shown = patient.take(WAITERS_SHOWN).map(|entry| WaiterReply {
            lease_id: entry.request.lease_id,
            owner: entry.request.owner.clone(),
            waiting_ms: now_ms.saturating_sub(entry.since_ms),
            mode: entry.request.mode.wire(),
        });
        (queue.length_without(None), shown.collect())
    }
}

impl Queue {
    fn admit(
        &mut self,
        request: &Acquire,
        listener: Listener,
        now_ms: u64,
        is_first: bool,
    ) -> Result<Entered, StoreError> {
        let same = |entry: &&mut Entry| entry.request.lease_id == request.lease_id;
        if let Some(entry) = self.entries.iter_mut().find(same) {
            if !request.is_retry_of(&entry.request) {
                return Err(StoreError::IdConflict { owner: entry.request.owner.clone() });
            }
            entry.rolls_back |= listener.patient;
            entry.listeners.push(listener);
            return Ok(Entered::Beside);
        }
        self.entries.push_back(Entry {
            request: request.clone(),
            since_ms: now_ms,
            rolls_back: listener.patient,
            listeners: vec![listener],
            waited: !is_first,
            possibly_granted: false,
        });
        Ok(if is_first { Entered::First } else { Entered::Behind })
    }
}

fn full(what: &'static str, count: usize, limit: usize) -> Result<(), StoreError> {
    if count < limit {
        return Ok(());
    }
    Err(StoreError::Limit { what, limit: limit as u64 })
}

//! Who of this server waits for which lock, and how they are woken.
//!
//! Of the callers that wait here for one lock only the first is woken when something happens there:
//! whoever stands behind it cannot be granted before it. So a lock that changes hands costs a reading
//! a server, however many wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName, SessionId};
use tokio::sync::Notify;

use crate::store::StoreError;

/// The callers of this server that wait.
#[derive(Debug, Default)]
pub(super) struct Places {
    state: Mutex<State>,
    /// Tells who waits for the withdrawal of an earlier request with the same id.
    left: Notify,
    /// The etcd lease that this server's places in the queues hang on.
    lease: Mutex<Option<u64>>,
    pub(super) making_lease: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<LockName, Vec<Listener>>,
    /// How many withdrawals are under way.
    leaving: HashMap<(LockName, LeaseId), usize>,
    count: usize,
    next_number: u64,
}

impl State {
    fn has_others(&self, lock: &LockName, lease_id: LeaseId, number: u64) -> bool {
        let mut listeners = self.listeners.get(lock).into_iter().flatten();
        listeners.any(|other| other.lease_id == lease_id && other.number != number)
    }
}

#[derive(Debug)]
struct Listener {
    number: u64,
    lease_id: LeaseId,
    session: Option<SessionId>,
    /// The revision that created its place in the queue.
    place: Option<u64>,
    wake: Arc<Notify>,
}

impl Places {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease_slot(&self) -> MutexGuard<'_, Option<u64>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The etcd lease of this server's places.
    pub(super) fn lease(&self) -> Option<u64> {
        *self.lease_slot()
    }

    /// There is a new one.
    pub(super) fn set_lease(&self, id: u64) {
        *self.lease_slot() = Some(id);
    }

    /// It is gone, and every place with it.
    pub(super) fn lease_is_gone(&self, id: u64) {
        self.lease_slot().take_if(|known| *known == id);
        self.wake_all();
    }

    /// Adds a caller; none while an earlier request with the same id is being withdrawn.
    ///
    /// # Errors
    /// [`StoreError::Limit`].
    pub(super) fn enter(
        &self,
        lock: &LockName,
        lease_id: LeaseId,
        session: Option<SessionId>,
        limit: usize,
    ) -> Result<Option<Ticket>, StoreError> {
        let mut state = self.state();
        if state.leaving.contains_key(&(lock.clone(), lease_id)) {
            return Ok(None);
        }
        if state.count >= limit {
            return Err(StoreError::Limit { what: "waiters of this server", limit: limit as u64 });
        }
        state.count += 1;
        state.next_number += 1;
        let (number, wake) = (state.next_number, Arc::new(Notify::new()));
        let listener = Listener { number, lease_id, session, place: None, wake: wake.clone() };
        state.listeners.entry(lock.clone()).or_default().push(listener);
        Ok(Some(Ticket { lock: lock.clone(), number, wake }))
    }

    /// Removes a caller. Whoever is first now is woken.
    pub(super) fn leave(&self, ticket: &Ticket) {
        let mut state = self.state();
        let Some(listeners) = state.listeners.get_mut(&ticket.lock) else { return };
        let before = listeners.len();
        listeners.retain(|listener| listener.number != ticket.number);
        let removed = before - listeners.len();
        if listeners.is_empty() {
            state.listeners.remove(&ticket.lock);
        }
        state.count -= removed;
        drop(state);
        self.wake(&ticket.lock);
    }

    /// Notes a caller's place in the queue.
    pub(super) fn place(&self, ticket: &Ticket, create_revision: u64) {
        let mut state = self.state();
        let listeners = state.listeners.get_mut(&ticket.lock).into_iter().flatten();
        for listener in listeners.filter(|listener| listener.number == ticket.number) {
            listener.place = Some(create_revision);
        }
    }

    /// Whether no caller of this server has an earlier place.
    pub(super) fn is_first(&self, ticket: &Ticket) -> bool {
        let state = self.state();
        let listeners = || state.listeners.get(&ticket.lock).into_iter().flatten();
        let own = listeners().find(|listener| listener.number == ticket.number);
        let first = listeners().filter_map(|listener| listener.place).min();
        own.is_none_or(|own| own.place.is_none() || own.place <= first)
    }

    /// Wakes who is first at a lock, and who has no place yet.
    pub(super) fn wake(&self, lock: &LockName) {
        let state = self.state();
        let listeners = || state.listeners.get(lock).into_iter().flatten();
        let first = listeners().filter_map(|listener| listener.place).min();
        for listener in listeners().filter(|own| own.place.is_none() || own.place == first) {
            listener.wake.notify_one();
        }
    }

    fn wake_where(&self, which: impl Fn(&LockName, &Listener) -> bool) {
        let state = self.state();
        for (lock, listeners) in &state.listeners {
            for listener in listeners.iter().filter(|listener| which(lock, listener)) {
                listener.wake.notify_one();
            }
        }
    }

    /// Wakes who waits under an id.
    pub(super) fn wake_id(&self, lock: &LockName, lease_id: LeaseId) {
        let state = self.state();
        let listeners = state.listeners.get(lock).into_iter().flatten();
        for listener in listeners.filter(|listener| listener.lease_id == lease_id) {
            listener.wake.notify_one();
        }
    }

    /// Wakes who waits for a session.
    pub(super) fn wake_session(&self, session: SessionId) {
        self.wake_where(|_, listener| listener.session == Some(session));
    }

    /// Wakes everybody: something may have been missed.
    pub(super) fn wake_all(&self) {
        self.wake_where(|_, _| true);
    }

    /// Whether another caller waits here under the same id.
    pub(super) fn has_others(&self, lock: &LockName, lease_id: LeaseId, number: u64) -> bool {
        self.state().has_others(lock, lease_id, number)
    }

    /// Begins a withdrawal, in one step with looking whether another caller waits here under the same
    /// id: then there is nothing to withdraw.
    pub(super) fn begin_leaving(&self, lock: &LockName, lease_id: LeaseId, number: u64) -> bool {
        let mut state = self.state();
        let alone = !state.has_others(lock, lease_id, number);
        if alone {
            *state.leaving.entry((lock.clone(), lease_id)).or_default() += 1;
        }
        alone
    }

    /// A withdrawal is done.
    pub(super) fn has_left(&self, lock: &LockName, lease_id: LeaseId) {
        let key = (lock.clone(), lease_id);
        let mut state = self.state();
        if let Some(count) = state.leaving.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.leaving.remove(&key);
            }
        }
        drop(state);
        self.left.notify_waiters();
    }

    /// Waits until no earlier request with the same id is being withdrawn: a caller that is told of
    /// its grant must not be withdrawn with that. Cancel-safe.
    pub(super) async fn others_left(&self, lock: &LockName, lease_id: LeaseId) {
        let key = (lock.clone(), lease_id);
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if !self.state().leaving.contains_key(&key) {
                return;
            }
            left.await;
        }
    }
}

/// A caller's place among those of this server.
#[derive(Debug)]
pub(super) struct Ticket {
    lock: LockName,
    pub(super) number: u64,
    wake: Arc<Notify>,
}

impl Ticket {
    /// Waits to be woken; what came before is not lost. Cancel-safe.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

//! Who of this server waits for which lock, and how they are woken.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fence_protocol::{LeaseId, LockName};
use tokio::sync::{Notify, mpsc};

use super::RedisStore;
use crate::store::{Grant, StoreError};

/// What a waiter is told.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    /// The lock is yours, with what remained at `at_ms`; `shared` where another caller with the same id
    /// received it too.
    Granted { grant: Grant, at_ms: u64, shared: bool },
    /// Something happened: ask again.
    Ask,
    /// The patience of a repeat with the same id was over first, and with it that of all; or what was
    /// granted had to be taken back.
    Over(StoreError),
}

/// A grant comes at most once and a pending "ask again" says it all, so two places are enough.
const WAKES: usize = 2;

/// The waiters of this server.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    state: Mutex<State>,
    /// Tells the sweeper that there is something to look at earlier than it thought.
    pub(super) sooner: Notify,
    /// Tells who waits for the withdrawal of an earlier request with the same id.
    left: Notify,
}

/// The lock that a request is known by, and its id.
type Key = (LockName, LeaseId);

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<Key, Vec<Listener>>,
    /// How many withdrawals are under way. Whoever asks with the same id meanwhile would be withdrawn
    /// with them, and perhaps after it was told of its grant.
    leaving: HashMap<Key, usize>,
    count: usize,
    next_number: u64,
    look_at_ms: Option<u64>,
    /// Somebody asked again, and was not answered.
    missed: bool,
}

#[derive(Debug)]
struct Listener {
    number: u64,
    wakes: mpsc::Sender<Wake>,
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a grant on to whoever waits under its id; `false` where nobody does.
    pub(super) fn grant(&self, lock: &LockName, grant: Grant, at_ms: u64) -> bool {
        let lease_id = grant.lease_id;
        self.tell(lock, lease_id, |shared| Wake::Granted { grant: grant.clone(), at_ms, shared })
    }

    /// Has whoever waits under this id ask again; `false` where nobody does.
    pub(super) fn ask_again(&self, lock: &LockName, lease_id: LeaseId) -> bool {
        self.tell(lock, lease_id, |_| Wake::Ask)
    }

    /// What was handed to whoever waits under this id was taken back.
    pub(super) fn refuse(&self, locks: &[LockName], lease_id: LeaseId, refusal: &StoreError) {
        // It is known by the first of its locks by name.
        if let Some(lock) = locks.iter().min() {
            self.tell(lock, lease_id, |_| Wake::Over(refusal.clone()));
        }
    }

    /// The withdrawal of a request is done.
    fn has_left(&self, key: &Key) {
        let mut state = self.state();
        if let Some(count) = state.leaving.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                state.leaving.remove(key);
            }
        }
        drop(state);
        self.left.notify_waiters();
    }

    fn tell(&self, lock: &LockName, lease_id: LeaseId, wake: impl Fn(bool) -> Wake) -> bool {
        let state = self.state();
        let Some(listeners) = state.listeners.get(&(lock.clone(), lease_id)) else { return false };
        let mut heard = false;
        for listener in listeners {
            // A full channel holds an "ask again" already, and asking finds the grant.
            let sent = listener.wakes.try_send(wake(listeners.len() > 1));
            heard |= !matches!(sent, Err(mpsc::error::TrySendError::Closed(_)));
        }
        heard
    }

    /// Everybody asks again: messages may have been missed.
    pub(super) fn wake_all(&self) {
        for listener in self.state().listeners.values().flatten() {
            let _ = listener.wakes.try_send(Wake::Ask);
        }
    }

    /// Whoever waits was woken, and what it asked was not answered: it is woken again when Redis
    /// answers something.
    pub(super) fn missed(&self) {
        self.state().missed = true;
    }

    /// Redis answers.
    pub(super) fn answered(&self) {
        let missed = std::mem::take(&mut self.state().missed);
        if missed {
            self.wake_all();
        }
    }

    /// Whether anybody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.state().count == 0
    }

    /// A lock that somebody waits for must be looked at then.
    pub(super) fn look_again_in(&self, now_ms: u64, in_ms: u64) {
        let mut state = self.state();
        let at_ms = now_ms.saturating_add(in_ms);
        if state.look_at_ms.is_none_or(|known| at_ms < known) {
            state.look_at_ms = Some(at_ms);
            drop(state);
            self.sooner.notify_one();
        }
    }

    /// When to look; asking forgets it.
    pub(super) fn take_look_at_ms(&self) -> Option<u64> {
        self.state().look_at_ms.take()
    }
}

/// A waiter's place among this server's listeners. Dropped before it was settled, it withdraws the
/// request, unless another caller waits under the same id.
pub(super) struct Place<'a> {
    store: &'a RedisStore,
    /// The locks that it waits for; the first is the one that it is known by.
    locks: Vec<LockName>,
    lease_id: LeaseId,
    number: u64,
    wakes: mpsc::Receiver<Wake>,
    settled: bool,
}

impl<'a> Place<'a> {
    pub(super) fn take(
        store: &'a RedisStore,
        locks: Vec<LockName>,
        lease_id: LeaseId,
        limit: usize,
    ) -> Result<Self, StoreError> {
        let (sender, wakes) = mpsc::channel(WAKES);
        let mut state = store.inner.waiting.state();
        if state.count + locks.len() > limit {
            return Err(StoreError::Limit { what: "waiters of this server", limit: limit as u64 });
        }
        state.count += locks.len();
        state.next_number += 1;
        let number = state.next_number;
        let listener = Listener { number, wakes: sender };
        if let Some(lock) = locks.first() {
            state.listeners.entry((lock.clone(), lease_id)).or_default().push(listener);
        }
        drop(state);
        Ok(Self { store, locks, lease_id, number, wakes, settled: false })
    }

    /// Waits for the next word. Cancel-safe.
    pub(super) async fn woken(&mut self) -> Wake {
        // The sender lives as long as this place does.
        self.wakes.recv().await.unwrap_or(Wake::Ask)
    }

    /// Waits until no earlier request with the same id is being withdrawn. Cancel-safe.
    pub(super) async fn others_left(&self) {
        let Some(lock) = self.locks.first() else { return };
        let (key, waiting) = ((lock.clone(), self.lease_id), &self.store.inner.waiting);
        loop {
            let left = waiting.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if !waiting.state().leaving.contains_key(&key) {
                return;
            }
            left.await;
        }
    }

    /// Everybody here who waits under this id by now.
    pub(super) fn together(&self) -> Vec<mpsc::Sender<Wake>> {
        let Some(lock) = self.locks.first() else { return Vec::new() };
        let state = self.store.inner.waiting.state();
        let listeners = state.listeners.get(&(lock.clone(), self.lease_id));
        listeners.into_iter().flatten().map(|listener| listener.wakes.clone()).collect()
    }

    /// The request has its answer.
    pub(super) fn settled(&mut self) {
        self.settled = true;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.store.inner.waiting.state();
        state.count -= self.locks.len();
        let Some(lock) = self.locks.first() else { return };
        let key = (lock.clone(), self.lease_id);
        let mut others = false;
        if let Some(listeners) = state.listeners.get_mut(&key) {
            listeners.retain(|listener| listener.number != self.number);
            others = !listeners.is_empty();
        }
        if !others {
            state.listeners.remove(&key);
        }
        let mut told = std::iter::from_fn(|| self.wakes.try_recv().ok());
        // Another caller has the same grant.
        let shared = told.any(|wake| matches!(wake, Wake::Granted { shared: true, .. }));
        if self.settled || others || shared {
            return;
        }
        *state.leaving.entry(key.clone()).or_default() += 1;
        drop(state);
        let leaving = Leaving { store: self.store.clone(), key };
        let locks = std::mem::take(&mut self.locks);
        self.store.withdraw_later(locks, self.lease_id, Some(leaving));
    }
}

/// A withdrawal that is under way.
pub(super) struct Leaving {
    store: RedisStore,
    key: Key,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.store.inner.waiting.has_left(&self.key);
    }
}

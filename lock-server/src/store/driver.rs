//! One driver for every engine: it decides what waits by the rules, on what it knows of the records,
//! and commits everything that came together in one call.
//!
//! What arrives while a commit is under way goes into the next one. A commit that lost a race brings
//! the records as they stand, and the request is decided again. Where this process is the only one
//! that writes, its memory is the truth and only changes are written.
//!
//! | file | what it does |
//! | --- | --- |
//! | `op.rs` | a request: its records, its decision, its answer |
//! | `core.rs` | what is known; decides a batch, settles its commit |
//! | `draft.rs` | sorts requests that touch the same records into groups |
//! | `waiters.rs` | who waits for which answer |
//! | `stored.rs` | records as bytes |
//! | `shown.rs` | reads that decide nothing, where servers share the records |
//! | `background.rs` | time-outs and expiry, messages of other servers, their liveness |

mod background;
mod core;
mod draft;
mod op;
mod shown;
mod stored;
#[cfg(test)]
mod tests;
mod waiters;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use futures_util::FutureExt;
use lease::{Machine, tokens};
use service_kit::Kit;
use service_kit::health::Status;
use tokio::sync::{Notify, oneshot};

use self::core::{Core, Flight};
use self::op::{Call, Op, Tokens};
use self::waiters::{Answered, Waiting};
use super::records::{Batch, Committed, Key, RecordStore, ServerId};
use super::{
    Acquire, Grant, Limits, ListQuery, LockStore, NewSession, Revoke, SessionStore, StoreError,
};

/// How many requests may wait to be decided; more are refused, not queued.
const INBOX: usize = 16_384;
/// The readiness check of a driver that may have to stop.
const CHECK: &str = "journal";

/// Serves locks and sessions over an engine. Cheap to clone; clones are the same.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn RecordStore>,
    kit: Kit,
    limits: Limits,
    server: ServerId,
    state: Mutex<State>,
    /// Something is due earlier than the background thinks.
    sooner: Arc<Notify>,
}

struct State {
    core: Core,
    /// A batch is being decided or committed.
    is_led: bool,
    /// The counter that the store knows of, where this server is alone.
    committed: u64,
    /// When the background looks next.
    wakes_at_ms: u64,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.inner.store).finish()
    }
}

type Commit = Pin<Box<dyn Future<Output = Result<Committed, StoreError>> + Send>>;

impl Driver {
    /// Serves a namespace of which this process is the only server; `machine` has all that there is.
    pub fn alone(store: Arc<dyn RecordStore>, machine: Machine, limits: Limits, kit: &Kit) -> Self {
        kit.health.set(CHECK, Status::Ok);
        Self::start(store, machine, ServerId::default(), limits, kit)
    }

    /// Serves a namespace that it may share with other servers.
    pub fn shared(
        store: Arc<dyn RecordStore>,
        server: ServerId,
        limits: Limits,
        kit: &Kit,
    ) -> Self {
        // The engine bounds records; what is loaded here is no record of its own.
        let limits = Limits { locks: usize::MAX, sessions: usize::MAX, ..limits };
        let machine = Machine::shared(0, limits, server.0);
        Self::start(store, machine, server, limits, kit)
    }

    fn start(
        store: Arc<dyn RecordStore>,
        machine: Machine,
        server: ServerId,
        limits: Limits,
        kit: &Kit,
    ) -> Self {
        let committed = machine.counter();
        let core = Core::new(machine, server, &*store, &limits);
        let state = Mutex::new(State { core, is_led: false, committed, wakes_at_ms: u64::MAX });
        let inner =
            Inner { store, kit: kit.clone(), limits, server, state, sooner: Arc::default() };
        let driver = Self { inner: Arc::new(inner) };
        background::start(&driver.inner);
        driver
    }

    /// Decides one request and awaits its commit.
    async fn call<T: Tokens>(
        &self,
        keys: Vec<Key>,
        work: impl FnMut(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (op, reply) = Call::boxed(keys, work);
        self.inner.submit(op)?;
        reply.await.unwrap_or_else(|_| Err(unanswered()))
    }

    /// As [`call`](Self::call), for what says how long something lives: the time of the commit is
    /// subtracted by `late`.
    async fn timed<T: Tokens>(
        &self,
        keys: Vec<Key>,
        work: impl FnMut(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
        late: impl FnOnce(T, u64) -> T,
    ) -> Result<T, StoreError> {
        let sent_ms = self.inner.kit.clock.monotonic_ms();
        let value = self.call(keys, work).await?;
        Ok(late(value, self.inner.since_ms(sent_ms)))
    }

    /// Asks for locks, and withdraws the request where the caller leaves before its answer.
    async fn ask(&self, parts: Vec<Acquire>, is_several: bool) -> Result<Vec<Grant>, StoreError> {
        let Some(first) = parts.first() else { return Ok(Vec::new()) };
        let withdrawn = (first.wait_ms > 0).then(|| (first.lock.clone(), first.lease_id));
        let (waiting, reply) = Waiting::new(parts, is_several, self.inner.store.now_ms());
        let locks = waiting.locks();
        self.inner.submit(op::Asking::boxed(waiting))?;
        let mut caller = Caller { inner: &self.inner, reply, withdrawn, locks };
        let answered = (&mut caller.reply).await;
        caller.withdrawn = None;
        let Answered { at_ms, result, .. } = answered.map_err(|_| unanswered())?;
        let late_ms = self.inner.since_ms(at_ms);
        Ok(result?.into_iter().map(|grant| grant.later(late_ms)).collect())
    }
}

impl Inner {
    /// A request that panicked may have left half of a change: nothing is decided on that.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = PoisonError::into_inner(poisoned);
            if state.core.failed.is_none() {
                self.stop(&mut state, "a request ended in a panic".to_owned());
            }
            state
        })
    }

    /// Serves nothing any more: requests under way end as unknown, later ones as unavailable.
    fn stop(&self, state: &mut State, reason: String) {
        tracing::error!(reason, "the lease store failed; nothing is served until a restart");
        let text = format!("the lease store failed: {reason}; restart this server");
        self.kit.health.set(CHECK, Status::Failing(text));
        state.core.stop(reason);
        self.sooner.notify_one();
    }

    /// The commit takes its time, and the lease's runs meanwhile.
    fn since_ms(&self, at_ms: u64) -> u64 {
        self.kit.clock.monotonic_ms().saturating_sub(at_ms)
    }

    /// Queues a request, and decides it at once unless a batch is under way.
    fn submit(self: &Arc<Self>, op: Box<dyn Op>) -> Result<(), StoreError> {
        let flight = {
            let state = &mut *self.state();
            if let Some(reason) = &state.core.failed {
                let text = format!("the lease store failed: {reason}; restart this server");
                return Err(StoreError::Unavailable(text));
            }
            if state.core.pending.len() >= INBOX {
                return Err(StoreError::Limit { what: "requests in hand", limit: INBOX as u64 });
            }
            state.core.pending.push_back(op);
            self.take_off(state)
        };
        self.fly(flight);
        Ok(())
    }

    /// Decides what waits and what is due, unless a batch is under way.
    fn lead(self: &Arc<Self>) {
        let flight = self.take_off(&mut self.state());
        self.fly(flight);
    }

    /// Commits until nothing is left. A commit that is not ready at once is awaited in a task of its
    /// own.
    fn fly(self: &Arc<Self>, mut next: Option<Flight>) {
        while let Some(mut flight) = next {
            let batch = std::mem::take(&mut flight.batch);
            let (counter, tokens) = (batch.counter, batch.tokens);
            let store = self.store.clone();
            let mut commit: Commit = Box::pin(async move { store.commit(batch).await });
            flight.batch = Batch { counter, tokens, ..Batch::default() };
            let Some(result) = commit.as_mut().now_or_never() else {
                let inner = self.clone();
                self.kit.tasks.spawn(async move {
                    let result = commit.await;
                    let next = inner.land(flight, result);
                    inner.fly(next);
                });
                return;
            };
            next = self.land(flight, result);
        }
    }

    /// The next batch that the store has to commit; none while one is under way. Batches that change
    /// nothing, where this server is alone, are settled on the way.
    fn take_off(&self, state: &mut State) -> Option<Flight> {
        if state.is_led {
            return None;
        }
        loop {
            let (now_ms, at_ms) = (self.store.now_ms(), self.kit.clock.monotonic_ms());
            let flight = match state.core.failed {
                None => state.core.decide(now_ms, at_ms),
                Some(_) => None,
            };
            let Some(flight) = flight else {
                let next_ms = state.core.machine.next_alarm_ms().unwrap_or(u64::MAX);
                if next_ms < state.wakes_at_ms {
                    state.wakes_at_ms = next_ms;
                    self.sooner.notify_one();
                }
                return None;
            };
            let batch = &flight.batch;
            let is_change = batch.groups.iter().any(|group| !group.writes.is_empty());
            let counter = batch.counter + batch.tokens;
            let is_known = self.store.is_volatile() || counter == state.committed;
            if is_change || !self.store.is_alone() || !is_known {
                state.is_led = true;
                return Some(flight);
            }
            let committed = Committed {
                base: batch.counter,
                now_ms: None,
                groups: flight.groups().map(|_| Ok(())).collect(),
            };
            state.core.settle(flight, committed, now_ms);
        }
    }

    /// Settles a batch, and decides the next one.
    fn land(
        self: &Arc<Self>,
        flight: Flight,
        result: Result<Committed, StoreError>,
    ) -> Option<Flight> {
        let now_ms = self.store.now_ms();
        let (ended, next) = {
            let state = &mut *self.state();
            state.is_led = false;
            self.settle(state, flight, result, now_ms);
            (std::mem::take(&mut state.core.ended_sessions), self.take_off(state))
        };
        ended.into_iter().for_each(|id| self.clear_ended(id));
        next
    }

    fn settle(
        &self,
        state: &mut State,
        flight: Flight,
        result: Result<Committed, StoreError>,
        now_ms: u64,
    ) {
        match result {
            Ok(committed) => {
                state.committed = committed.base + flight.batch.tokens;
                state.core.settle(flight, committed, now_ms);
            }
            Err(error) if self.store.is_alone() => {
                // Memory is ahead of what is durable.
                drop(flight);
                self.stop(state, error.to_string());
            }
            Err(error) => state.core.fail(flight, &error),
        }
    }

    /// Takes back what a caller asked for that has left.
    fn withdraw(self: &Arc<Self>, lock: &LockName, lease_id: LeaseId) {
        let withdraw = self.state().core.waiters.leave(lock, lease_id);
        if let Some(withdraw) = withdraw {
            // Where too many requests wait, the waiter stays until its grant finds no caller.
            let _ = self.submit(Box::new(withdraw));
        }
    }
}

/// A request whose answer was dropped may have been carried out.
fn unanswered() -> StoreError {
    StoreError::Unknown("the store stopped before it answered".to_owned())
}

/// A caller that waits for locks; it withdraws its request when it leaves before the answer.
struct Caller<'a> {
    inner: &'a Arc<Inner>,
    reply: oneshot::Receiver<Answered>,
    /// The request's key; `None` where there is nothing to withdraw.
    withdrawn: Option<(LockName, LeaseId)>,
    locks: Vec<LockName>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let Some((lock, lease_id)) = self.withdrawn.take() else { return };
        // Closed first: from here on either the answer is in the channel, or sending it fails and
        // the sender rolls the grant back.
        self.reply.close();
        match self.reply.try_recv() {
            Ok(Answered { is_shared: false, result: Ok(_), .. }) => {
                let locks = std::mem::take(&mut self.locks);
                let _ = self.inner.submit(Box::new(op::Withdraw::new(locks, lease_id)));
            }
            Ok(_) => {}
            Err(_) => self.inner.withdraw(&lock, lease_id),
        }
    }
}

fn of_lock(lock: &LockName) -> Vec<Key> {
    vec![Key::Lock(lock.clone())]
}

fn later(mut session: SessionReply, ms: u64) -> SessionReply {
    session.expires_in_ms = session.expires_in_ms.saturating_sub(ms);
    session
}

#[async_trait]
impl LockStore for Driver {
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let grants = self.ask(vec![request], false).await?;
        grants.into_iter().next().ok_or_else(unanswered)
    }

    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        self.ask(parts, true).await
    }

    async fn renew(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let (keys, lock) = (of_lock(lock), lock.clone());
        let work = move |machine: &mut Machine, now_ms| machine.renew(now_ms, &lock, lease, ttl);
        self.timed(keys, work, Grant::later).await
    }

    async fn release(&self, lock: &LockName, lease: LeaseId) -> Result<EndedReply, StoreError> {
        let (keys, lock) = (of_lock(lock), lock.clone());
        self.call(keys, move |machine, now_ms| machine.release(now_ms, &lock, lease)).await
    }

    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError> {
        let (keys, lock) = (of_lock(lock), lock.clone());
        self.call(keys, move |machine, now_ms| machine.revoke(now_ms, &lock, &revoke)).await
    }

    async fn mint(&self, _lock: &LockName) -> Result<Token, StoreError> {
        self.call(Vec::new(), |machine, _| machine.mint()).await
    }

    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_lock(lock).await;
        }
        let lock = lock.clone();
        self.call(Vec::new(), move |machine, now_ms| Ok(machine.show(now_ms, &lock))).await
    }

    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_locks(query).await;
        }
        self.call(Vec::new(), move |machine, now_ms| Ok(machine.list(now_ms, &query))).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        if !self.inner.store.is_alone() {
            return self.inner.store.lift(mark).await;
        }
        let clock = self.inner.kit.clock.clone();
        let work = move |machine: &mut Machine, _| {
            let counter = machine.counter();
            if counter < mark.get() {
                let lifted = tokens::after_loss(mark.get(), clock.wall_ms());
                tracing::warn!(
                    counter, %mark, lifted,
                    "a guard has seen a higher token than this store has issued: the store lost its \
                     memory; tokens go on above everything that can have been issued"
                );
                machine.raise_counter(lifted);
            }
            Ok(())
        };
        self.call(Vec::new(), work).await
    }

    fn name(&self) -> &'static str {
        self.inner.store.name()
    }
}

#[async_trait]
impl SessionStore for Driver {
    async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
        let keys = vec![Key::Session(new.session_id)];
        let work = move |machine: &mut Machine, now_ms| machine.create_session(now_ms, new.clone());
        self.timed(keys, work, later).await
    }

    async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        let work = move |machine: &mut Machine, now_ms| machine.heartbeat(now_ms, session);
        self.timed(vec![Key::Session(session)], work, later).await
    }

    async fn end_session(&self, session: SessionId) -> Result<SessionEndedReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.end_shared(session).await;
        }
        self.call(Vec::new(), move |machine, now_ms| machine.end_session(now_ms, session)).await
    }

    async fn block_session(
        &self,
        session: SessionId,
        reason: Owner,
    ) -> Result<SessionReply, StoreError> {
        let work = move |machine: &mut Machine, now_ms: u64| {
            machine.block_session(now_ms, session, reason.clone())
        };
        self.timed(vec![Key::Session(session)], work, later).await
    }

    async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_session(session).await;
        }
        let work = move |machine: &mut Machine, now_ms| machine.show_session(now_ms, session);
        self.timed(Vec::new(), work, later).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<SessionPage, StoreError> {
        if !self.inner.store.is_alone() {
            return self.shared_sessions(after, limit).await;
        }
        let work = move |machine: &mut Machine, now_ms: u64| {
            Ok(machine.list_sessions(now_ms, after, limit))
        };
        self.call(Vec::new(), work).await
    }
}

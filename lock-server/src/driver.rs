//! One driver for every engine: it decides what waits by the rules, on what it knows of the
//! records, and commits everything that came together in one call, or in two side by side.
//!
//! What arrives while commits are under way goes into the next one. A commit that lost a race
//! brings the records as they stand, and the request is decided again. Where this process is the
//! only one that writes, its memory is the truth and only changes are written.
//!
//! | file | what it does |
//! | --- | --- |
//! | `op.rs` | a request: its records, its decision, its reply |
//! | `core.rs` | what is known; decides a batch, settles its commit |
//! | `core/in_flight.rs` | batches that are under way, and what waits for them |
//! | `core/retries.rs` | retries of requests whose earlier callers have left |
//! | `core/settlement.rs` | replies of a committed batch, and later tokens |
//! | `core/versions.rs` | versions of the loaded records |
//! | `core/writes.rs` | records as they are written |
//! | `core/uncommitted.rs` | decisions that lost a race, or that the store could not commit |
//! | `turn.rs` | what one turn of the event loop brings, decided together |
//! | `requests.rs` | the requests of the API |
//! | `draft.rs` | sorts requests that touch the same records into groups |
//! | `decided.rs` | time and tokens of a decision, in replies |
//! | `waiting.rs`, `waiters.rs` | an acquire with its callers, and all that wait |
//! | `stored.rs` | records as bytes |
//! | `shown.rs` | reads that decide nothing, where servers share the records |
//! | `background.rs` | time-outs and expiry, messages of other servers, their liveness |

mod background;
mod core;
mod decided;
mod draft;
mod op;
mod requests;
mod shown;
mod stored;
#[cfg(test)]
mod tests;
mod turn;
mod waiters;
mod waiting;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use futures_util::FutureExt;
use lease::{Machine, tokens};
use service_kit::health::Status;
use service_kit::{Kit, clock};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, oneshot};

use self::core::{Core, Submission};
use self::decided::Tokens;
use self::op::{Call, PendingGrant};
use self::waiting::{Answered, Waiting};
use crate::engines::contract::{Batch, Committed, Key, RecordStore, ServerId};
use crate::store::figures::{StoreTimes, show_held};
use crate::store::report::{Report, report_waiting};
use crate::store::session::SessionStore;
use crate::store::{Acquire, Grant, Limits, ListQuery, LockStore, NewSession, Revoke, StoreError};

/// Name of the readiness check of a driver that may have to stop.
const CHECK: &str = "journal";

/// A lock and session service over an engine. Cheap to clone; clones share their state.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<DriverInner>,
}

struct DriverInner {
    store: Arc<dyn RecordStore>,
    kit: Kit,
    limits: Limits,
    server: Server,
    times: StoreTimes,
    state: Mutex<DriverState>,
    /// Wakes the background when a time-out is earlier than it expects.
    sooner: Arc<Notify>,
    reports: OnceLock<Arc<dyn Report>>,
    /// The first current-thread runtime that a request came on.
    local: OnceLock<Handle>,
}

/// This server's identity among the servers of the namespace.
struct Server {
    id: ServerId,
    /// Time for which it counts as alive without a beat.
    liveness: Duration,
}

struct DriverState {
    core: Core,
    /// Counter that the store has committed, if this server is alone.
    committed: u64,
    /// Time of the next wake-up of the background.
    wakes_at_ms: u64,
    /// Threads at the end of whose turn the waiting requests are decided: a thread that hangs holds
    /// up no request of another.
    turns: Vec<ThreadId>,
    /// Sessions whose leases are being ended.
    clearing: BTreeSet<SessionId>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.inner.store).finish()
    }
}

type Commit = Pin<Box<dyn Future<Output = Result<Committed, StoreError>> + Send>>;

impl Driver {
    /// Serves a namespace of which this process is the only server; `machine` holds all of its
    /// records.
    pub fn alone(store: Arc<dyn RecordStore>, machine: Machine, limits: Limits, kit: &Kit) -> Self {
        kit.health.set(CHECK, Status::Ok);
        let alone = Server { id: ServerId::default(), liveness: Duration::ZERO };
        Self::start(store, machine, alone, limits, kit)
    }

    /// Serves a namespace that other servers may share, which count this one as alive until it has
    /// been silent for `liveness`. It must not take a request before [`live`](Self::live) has
    /// succeeded.
    pub fn shared(
        store: Arc<dyn RecordStore>,
        server: ServerId,
        liveness: Duration,
        limits: Limits,
        kit: &Kit,
    ) -> Self {
        // The engine bounds the records; a loaded copy does not count.
        let limits = Limits { locks: usize::MAX, sessions: usize::MAX, ..limits };
        let machine = Machine::shared(0, limits, server.0);
        Self::start(store, machine, Server { id: server, liveness }, limits, kit)
    }

    /// Records in the store that this server lives, and reads which others do.
    ///
    /// # Errors
    /// [`StoreError`], after which others may consider this server dead.
    pub async fn live(&self) -> Result<(), StoreError> {
        self.inner.beat().await
    }

    fn start(
        store: Arc<dyn RecordStore>,
        machine: Machine,
        server: Server,
        limits: Limits,
        kit: &Kit,
    ) -> Self {
        let committed = machine.counter();
        let core = Core::new(machine, server.id, store.clone(), &limits);
        let state = Mutex::new(DriverState {
            core,
            committed,
            wakes_at_ms: u64::MAX,
            turns: Vec::new(),
            clearing: BTreeSet::new(),
        });
        let times = StoreTimes::new(&kit.metrics);
        let inner = DriverInner {
            store,
            kit: kit.clone(),
            limits,
            server,
            times,
            state,
            sooner: Arc::default(),
            reports: OnceLock::new(),
            local: OnceLock::new(),
        };
        let driver = Self { inner: Arc::new(inner) };
        background::start(&driver.inner);
        let weak = Arc::downgrade(&driver.inner);
        show_held(&driver.inner.kit.metrics, move || Some(weak.upgrade()?.state().core.held()));
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

    /// Like [`call`](Self::call), for a result with a time to live: `late` subtracts the time of
    /// the commit.
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

    /// Acquires locks, and withdraws the request if the caller leaves before the reply.
    async fn acquire_parts(
        &self,
        parts: Vec<Acquire>,
        is_several: bool,
    ) -> Result<Vec<Grant>, StoreError> {
        let Some(first) = parts.first() else { return Ok(Vec::new()) };
        let withdrawn = (first.wait_ms > 0).then(|| (first.lock.clone(), first.lease_id));
        let waits = if first.wait_ms > 0 { parts.clone() } else { Vec::new() };
        let (waiting, reply) = Waiting::new(parts, is_several, self.inner.store.now_ms());
        let locks = waiting.locks();
        self.inner.submit(op::Asking::boxed(waiting))?;
        let caller = Caller { inner: &self.inner, reply, withdrawn, locks };
        match self.inner.reports.get().filter(|_| !waits.is_empty()) {
            Some(reports) => report_waiting(&**reports, &waits, caller.answer()).await,
            None => caller.answer().await,
        }
    }
}

impl DriverInner {
    /// A request that panicked may have left half of a change: the driver stops.
    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = PoisonError::into_inner(poisoned);
            if state.core.failed.is_none() {
                self.stop(&mut state, "a request ended in a panic".to_owned());
            }
            state
        })
    }

    /// Stops the service: requests under way end as unknown, later ones as unavailable.
    fn stop(&self, state: &mut DriverState, reason: String) {
        tracing::error!(reason, "the lease store failed; nothing is served until a restart");
        let text = format!("the lease store failed: {reason}; restart this server");
        self.kit.health.set(CHECK, Status::Failing(text));
        state.core.stop(reason);
        self.sooner.notify_one();
    }

    /// Returns the time since `at_ms`: a lease runs while its commit does.
    fn since_ms(&self, at_ms: u64) -> u64 {
        self.kit.clock.monotonic_ms().saturating_sub(at_ms)
    }

    /// Commits until no batch is left. A commit that is not ready at once is awaited in its own
    /// task, on the thread that sent it; if requests come on current-thread runtimes, on one of
    /// those.
    fn commit_all(self: &Arc<Self>, mut next: Option<Submission>) {
        if next.is_some()
            && let Some(local) = self.local.get()
            && Handle::try_current().is_ok_and(|here| !is_local(&here))
        {
            let inner = self.clone();
            self.kit.tasks.spawn_on(local, async move { inner.commit_all(next) });
            return;
        }
        while let Some(mut submission) = next {
            let batch = std::mem::take(&mut submission.batch);
            let counter = batch.counter;
            let tokens = batch.tokens;
            let in_pause = batch.in_pause;
            let store = self.store.clone();
            let begun = clock::now();
            let mut commit: Commit = Box::pin(async move { store.commit(batch).await });
            submission.batch = Batch { counter, tokens, in_pause, ..Batch::default() };
            let Some(result) = commit.as_mut().now_or_never() else {
                let inner = self.clone();
                self.kit.tasks.spawn_here(async move {
                    let result = commit.await;
                    inner.times.committed(begun);
                    let next = inner.complete(submission, result);
                    let may_be_more = next.is_some();
                    inner.commit_all(next);
                    if may_be_more {
                        inner.commit_waiting();
                    }
                });
                return;
            };
            self.times.committed(begun);
            next = self.complete(submission, result);
        }
    }

    /// `true` if the store has room for another batch beside those under way.
    fn has_room(&self, state: &DriverState) -> bool {
        let in_flight = &state.core.in_flight;
        let waiting = state.core.pending.len();
        match in_flight.count() {
            0 => true,
            1 if in_flight.drains() => false,
            1 => self.store.overlap_min(in_flight.requests()).is_some_and(|min| waiting >= min),
            _ => false,
        }
    }

    /// Returns the next batch for the store; `None` if it has to wait for one that is under way.
    /// Without other servers, batches without changes are settled at once.
    fn next_submission(&self, state: &mut DriverState) -> Option<Submission> {
        if !self.has_room(state) {
            return None;
        }
        loop {
            let now_ms = self.store.now_ms();
            let at_ms = self.kit.clock.monotonic_ms();
            state.core.machine.raise_counter(self.store.counter());
            let submission = match state.core.failed {
                None => state.core.decide(now_ms, at_ms),
                Some(_) => None,
            };
            let Some(submission) = submission else {
                self.rest(state);
                return None;
            };
            let batch = &submission.batch;
            let is_change = batch.groups.iter().any(|group| !group.writes.is_empty());
            let counter = batch.counter + batch.tokens;
            let is_known = self.store.is_volatile() || counter == state.committed;
            if is_change || !self.store.is_alone() || !is_known {
                state.core.begin(&submission);
                return Some(submission);
            }
            let committed = Committed {
                base: batch.counter,
                now_ms: None,
                lineage: None,
                groups: submission.groups().map(|_| Ok(())).collect(),
            };
            state.core.settle(submission, committed, now_ms, at_ms);
            self.report(state);
            if state.core.pending.is_empty() {
                // The background ends the rest that is due, by slices: others come between.
                self.rest(state);
                return None;
            }
        }
    }

    /// Has the background wake up for what is due next.
    fn rest(&self, state: &mut DriverState) {
        let next_ms = state.core.machine.next_alarm_ms().unwrap_or(u64::MAX);
        if next_ms < state.wakes_at_ms {
            state.wakes_at_ms = next_ms;
            self.sooner.notify_one();
        }
    }

    /// Reports what was committed, in the order of the commits.
    fn report(&self, state: &mut DriverState) {
        let events = std::mem::take(&mut state.core.reported);
        if let Some(reports) = self.reports.get().filter(|_| !events.is_empty()) {
            reports.report(events);
        }
    }

    /// Settles a batch, and decides the next one.
    fn complete(
        self: &Arc<Self>,
        submission: Submission,
        result: Result<Committed, StoreError>,
    ) -> Option<Submission> {
        let now_ms = self.store.now_ms();
        let lineage = result.as_ref().ok().and_then(|committed| committed.lineage.clone());
        let (ended, grants, next) = {
            let state = &mut *self.state();
            state.core.end(&submission);
            self.settle(state, submission, result, now_ms);
            self.report(state);
            let ended = std::mem::take(&mut state.core.ended_sessions);
            let grants = std::mem::take(&mut state.core.pending_grants);
            (ended, grants, self.next_submission(state))
        };
        self.confirm(grants, lineage);
        ended.into_iter().for_each(|(id, by)| self.clear_ended(id, by));
        next
    }

    fn settle(
        &self,
        state: &mut DriverState,
        submission: Submission,
        result: Result<Committed, StoreError>,
        now_ms: u64,
    ) {
        match result {
            Ok(committed) => {
                state.committed = committed.base + submission.batch.tokens;
                let at_ms = self.kit.clock.monotonic_ms();
                state.core.settle(submission, committed, now_ms, at_ms);
            }
            Err(error) if self.store.is_alone() => {
                // Memory is ahead of what is durable.
                drop(submission);
                self.stop(state, error.to_string());
            }
            Err(StoreError::Paused { left_ms }) if !submission.batch.in_pause => {
                state.core.pause(submission, now_ms.saturating_add(left_ms));
            }
            Err(error) => state.core.fail(submission, &error),
        }
    }

    /// Acknowledges grants once the engine has confirmed them, or rolls them back.
    fn confirm(self: &Arc<Self>, grants: Vec<PendingGrant>, lineage: Option<Arc<str>>) {
        if grants.is_empty() {
            return;
        }
        let inner = self.clone();
        self.kit.tasks.spawn(async move {
            let confirmed = inner.store.confirm(lineage.as_deref()).await;
            inner.state().core.machine.confirm(confirmed.token);
            for op in grants.into_iter().filter_map(|grant| grant.settle(&confirmed)) {
                // If too many requests wait, its callers read the dropped reply as unknown.
                let _ = inner.submit(op);
            }
        });
    }

    /// Withdraws the request of a caller that has disconnected.
    fn withdraw(self: &Arc<Self>, lock: &LockName, lease_id: LeaseId) {
        let left = self.state().core.waiters.leave(lock, lease_id);
        if let Some(left) = left {
            // If the store has failed, nothing is in a queue any more.
            let _ = self.submit(Box::new(op::Withdraw::from(left)));
        }
    }
}

fn is_local(runtime: &Handle) -> bool {
    runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Returns the error of a request whose reply was dropped: it may have been carried out.
fn unanswered() -> StoreError {
    StoreError::Unknown("the store stopped before it answered".to_owned())
}

/// A caller that waits for locks; it withdraws its request when it leaves before the answer.
struct Caller<'a> {
    inner: &'a Arc<DriverInner>,
    reply: oneshot::Receiver<Answered>,
    /// Key of the request; `None` if there is nothing to withdraw.
    withdrawn: Option<(LockName, LeaseId)>,
    locks: Vec<LockName>,
}

impl Caller<'_> {
    async fn answer(mut self) -> Result<Vec<Grant>, StoreError> {
        let answered = (&mut self.reply).await;
        self.withdrawn = None;
        let Answered { at_ms, result, .. } = answered.map_err(|_| unanswered())?;
        let late_ms = self.inner.since_ms(at_ms);
        Ok(result?.into_iter().map(|grant| grant.later(late_ms)).collect())
    }
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

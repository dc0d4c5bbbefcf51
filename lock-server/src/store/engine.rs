//! What the `memory` and `embedded` stores share: one thread that owns the rules.
//!
//! Requests come through a bounded channel. The thread takes all that wait, applies them to the
//! [`Machine`], lets the [`Journal`] make the changes durable in one go, and only then answers: one
//! fsync serves every request that came while the one before was under way, and no reply leaves
//! before it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Ttl};
use service_kit::clock::Clock;
use service_kit::health::{Health, Status};
use tokio::sync::oneshot;

use super::{Acquire, Grant, ListQuery, StoreError};
use crate::rules::{Machine, Reply};

/// How many requests may wait for the thread; more are refused, not queued.
const INBOX: usize = 16_384;
/// How many requests share one journal write at most.
const BATCH: usize = 4_096;
/// The readiness check of the journal.
const CHECK: &str = "journal";
/// How long the thread sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);

/// Makes the machine's changes durable.
pub(super) trait Journal: Send + 'static {
    /// Writes every change of the machine and the counter.
    ///
    /// # Errors
    /// A sentence. The store then refuses everything until the process starts anew: what is in
    /// memory is ahead of what is durable, and nobody may learn of it.
    fn commit(&mut self, machine: &mut Machine) -> Result<(), String>;
}

/// Forgets everything with the process.
#[derive(Debug)]
pub(super) struct NoJournal;

impl Journal for NoJournal {
    fn commit(&mut self, machine: &mut Machine) -> Result<(), String> {
        drop(machine.take_changes());
        Ok(())
    }
}

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// The answer to an acquire, and whether somebody else got the same one.
struct Heard {
    result: Result<Grant, StoreError>,
    shared: bool,
}

/// A request to the thread.
enum Request {
    Acquire(Acquire, oneshot::Sender<Heard>),
    Withdraw { lock: LockName, lease_id: LeaseId, granted: bool },
    Renew(LockName, LeaseId, Option<Ttl>, Answer<Grant>),
    Release(LockName, LeaseId, Answer<EndedReply>),
    Revoke(LockName, Answer<EndedReply>),
    Show(LockName, Answer<LockReply>),
    List(ListQuery, Answer<LockPage>),
    Stop,
}

/// A handle on the thread. Dropping it ends the thread after what it has in hand.
pub(super) struct Engine {
    inbox: SyncSender<Request>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A full inbox means that the thread is alive and will see the closed channel.
        let _ = self.inbox.try_send(Request::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system has no thread to give.
    pub(super) fn start(
        machine: Machine,
        journal: impl Journal,
        clock: Arc<dyn Clock>,
        health: Health,
    ) -> std::io::Result<Self> {
        let (inbox, requests) = sync_channel(INBOX);
        let worker = Worker {
            machine,
            journal,
            clock,
            waiting: HashMap::new(),
            ready: Vec::new(),
            failed: None,
            health,
        };
        worker.health.set(CHECK, Status::Ok);
        let thread = std::thread::Builder::new()
            .name("lock-engine".to_owned())
            .spawn(move || worker.run(&requests))?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// See [`LockStore::acquire`](super::LockStore::acquire).
    pub(super) async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let waits = request.wait_ms > 0;
        let (lock, lease_id) = (request.lock.clone(), request.lease_id);
        let (answer, reply) = oneshot::channel();
        self.send(Request::Acquire(request, answer))?;
        let mut caller = Caller { engine: self, reply, waiter: waits.then_some((lock, lease_id)) };
        let heard = (&mut caller.reply).await;
        caller.waiter = None;
        heard.map_or_else(|_| Err(unanswered()), |heard| heard.result)
    }

    pub(super) async fn renew(
        &self,
        lock: LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        self.ask(|answer| Request::Renew(lock, lease_id, ttl, answer)).await
    }

    pub(super) async fn release(
        &self,
        lock: LockName,
        lease_id: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.ask(|answer| Request::Release(lock, lease_id, answer)).await
    }

    pub(super) async fn revoke(&self, lock: LockName) -> Result<EndedReply, StoreError> {
        self.ask(|answer| Request::Revoke(lock, answer)).await
    }

    pub(super) async fn show(&self, lock: LockName) -> Result<LockReply, StoreError> {
        self.ask(|answer| Request::Show(lock, answer)).await
    }

    pub(super) async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.ask(|answer| Request::List(query, answer)).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, StoreError> {
        let (answer, reply) = oneshot::channel();
        self.send(request(answer))?;
        reply.await.unwrap_or_else(|_| Err(unanswered()))
    }

    fn send(&self, request: Request) -> Result<(), StoreError> {
        self.inbox.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => {
                StoreError::Limit { what: "requests in hand", limit: INBOX as u64 }
            }
            TrySendError::Disconnected(_) => stopped(),
        })
    }
}

/// A request whose answer was dropped may have been carried out.
fn unanswered() -> StoreError {
    StoreError::Unknown("the store stopped before it answered".to_owned())
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the store has stopped".to_owned())
}

/// Somebody who asked for a lock; withdraws the request when it goes away before the answer.
struct Caller<'a> {
    engine: &'a Engine,
    reply: oneshot::Receiver<Heard>,
    waiter: Option<(LockName, LeaseId)>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let Some((lock, lease_id)) = self.waiter.take() else { return };
        // Closed first: from here on either the answer is in the channel, or sending it fails and
        // the thread takes the grant back by itself.
        self.reply.close();
        let granted = match self.reply.try_recv() {
            Ok(Heard { shared: true, .. }) => return,
            Ok(heard) => heard.result.is_ok(),
            Err(_) => false,
        };
        // Where the inbox is full the waiter stays until its grant finds nobody.
        let _ = self.engine.inbox.try_send(Request::Withdraw { lock, lease_id, granted });
    }
}

/// Sends one answer; a grant that nobody hears is taken back in the machine at that time.
type Ready = Box<dyn FnOnce(&mut Machine, u64) + Send>;

struct Worker<J> {
    machine: Machine,
    journal: J,
    clock: Arc<dyn Clock>,
    /// Who waits for which answer; a repeated request has several listeners.
    waiting: HashMap<(LockName, LeaseId), Vec<oneshot::Sender<Heard>>>,
    /// Answers that leave after the commit.
    ready: Vec<Ready>,
    failed: Option<String>,
    health: Health,
}

impl<J: Journal> Worker<J> {
    fn run(mut self, requests: &Receiver<Request>) {
        loop {
            let first = match requests.recv_timeout(self.pause()) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let stop = self.turn(first, requests);
            if stop {
                return;
            }
        }
    }

    fn pause(&self) -> Duration {
        if self.failed.is_none() && self.machine.has_news() {
            return Duration::ZERO;
        }
        let Some(at_ms) = self.machine.next_alarm_ms() else { return IDLE };
        Duration::from_millis(at_ms.saturating_sub(self.clock.monotonic_ms())).min(IDLE)
    }

    /// One batch: apply, commit, answer. Returns whether to stop.
    fn turn(&mut self, first: Option<Request>, requests: &Receiver<Request>) -> bool {
        let batch = first.into_iter().chain(requests.try_iter()).take(BATCH);
        if self.failed.is_some() {
            return batch.fold(false, |stop, request| stop | matches!(request, Request::Stop));
        }
        let now_ms = self.clock.monotonic_ms();
        self.machine.tick(now_ms);
        let mut stop = false;
        for request in batch {
            stop |= matches!(request, Request::Stop);
            self.apply(now_ms, request);
        }
        self.collect_deliveries();
        match self.journal.commit(&mut self.machine) {
            Ok(()) => self.answer(now_ms),
            Err(reason) => self.fail(reason),
        }
        stop
    }

    /// What is in memory is ahead of what is durable: every answer in hand is dropped, which its
    /// caller reads as "unknown", and nothing is served any more.
    fn fail(&mut self, reason: String) {
        tracing::error!(reason, "the journal failed; nothing is served until a restart");
        let text = format!("the journal failed: {reason}; restart this server");
        self.health.set(CHECK, Status::Failing(text));
        self.failed = Some(reason);
        self.ready.clear();
        self.waiting.clear();
    }

    fn apply(&mut self, now_ms: u64, request: Request) {
        match request {
            Request::Acquire(acquire, answer) => self.acquire(now_ms, acquire, answer),
            Request::Withdraw { lock, lease_id, granted: true } => {
                self.machine.withdraw(now_ms, &lock, lease_id);
            }
            Request::Withdraw { lock, lease_id, granted: false } => {
                self.leave(now_ms, (lock, lease_id));
            }
            Request::Renew(lock, lease_id, ttl, answer) => {
                let result = self.machine.renew(now_ms, &lock, lease_id, ttl);
                self.answer_later(answer, result);
            }
            Request::Release(lock, lease_id, answer) => {
                let result = self.machine.release(now_ms, &lock, lease_id);
                self.answer_later(answer, result);
            }
            Request::Revoke(lock, answer) => {
                let result = self.machine.revoke(now_ms, &lock);
                self.answer_later(answer, result);
            }
            Request::Show(lock, answer) => {
                let result = self.machine.show(now_ms, &lock);
                self.answer_later(answer, Ok(result));
            }
            Request::List(query, answer) => {
                let result = self.machine.list(now_ms, &query);
                self.answer_later(answer, Ok(result));
            }
            Request::Stop => {}
        }
    }

    fn acquire(&mut self, now_ms: u64, acquire: Acquire, answer: oneshot::Sender<Heard>) {
        let key = (acquire.lock.clone(), acquire.lease_id);
        match self.machine.acquire(now_ms, acquire) {
            Reply::Done(result) => self.ready.push(Box::new(move |_, _| {
                drop(answer.send(Heard { result, shared: true }));
            })),
            Reply::Queued => self.waiting.entry(key).or_default().push(answer),
        }
    }

    /// A caller left the queue, unless another one waits for the same id.
    fn leave(&mut self, now_ms: u64, key: (LockName, LeaseId)) {
        let Some(listeners) = self.waiting.get_mut(&key) else { return };
        listeners.retain(|listener| !listener.is_closed());
        if listeners.is_empty() {
            self.waiting.remove(&key);
            self.machine.withdraw(now_ms, &key.0, key.1);
        }
    }

    fn collect_deliveries(&mut self) {
        for delivery in self.machine.take_deliveries() {
            let key = (delivery.lock.clone(), delivery.lease_id);
            let listeners = self.waiting.remove(&key).unwrap_or_default();
            self.ready.push(Box::new(move |machine, now_ms| {
                let granted = delivery.result.is_ok();
                let shared = listeners.len() > 1;
                let mut heard = false;
                for listener in listeners {
                    let result = delivery.result.clone();
                    heard |= listener.send(Heard { result, shared }).is_ok();
                }
                if granted && !heard {
                    machine.withdraw(now_ms, &delivery.lock, delivery.lease_id);
                }
            }));
        }
    }

    fn answer_later<T: Send + 'static>(
        &mut self,
        answer: Answer<T>,
        result: Result<T, StoreError>,
    ) {
        // A caller that left without waiting in the queue learns the result by repeating.
        self.ready.push(Box::new(move |_, _| drop(answer.send(result))));
    }

    /// Answers what the commit covered. Grants that nobody hears are taken back, which the next
    /// turn commits and hands on.
    fn answer(&mut self, now_ms: u64) {
        for ready in std::mem::take(&mut self.ready) {
            ready(&mut self.machine, now_ms);
        }
    }
}

/// Implements [`LockStore`](super::LockStore) for a newtype over [`Engine`].
macro_rules! serve_through_engine {
    ($store:ident, $name:literal) => {
        #[async_trait]
        impl LockStore for $store {
            async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
                self.0.acquire(request).await
            }

            async fn renew(
                &self,
                lock: &LockName,
                lease: LeaseId,
                ttl: Option<Ttl>,
            ) -> Result<Grant, StoreError> {
                self.0.renew(lock.clone(), lease, ttl).await
            }

            async fn release(
                &self,
                lock: &LockName,
                lease: LeaseId,
            ) -> Result<EndedReply, StoreError> {
                self.0.release(lock.clone(), lease).await
            }

            async fn revoke(&self, lock: &LockName) -> Result<EndedReply, StoreError> {
                self.0.revoke(lock.clone()).await
            }

            async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
                self.0.show(lock.clone()).await
            }

            async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
                self.0.list(query).await
            }

            fn name(&self) -> &'static str {
                $name
            }
        }
    };
}
pub(super) use serve_through_engine;

#[cfg(test)]
mod tests {
    use fence_protocol::Owner;
    use service_kit::clock::ManualClock;

    use super::*;
    use crate::store::Limits;

    fn ask(wait_ms: u64) -> Acquire {
        Acquire {
            lock: LockName::new("a").unwrap(),
            lease_id: service_kit::ids::lease_id(),
            owner: Owner::new("me").unwrap(),
            ttl: Ttl::DEFAULT,
            wait_ms,
            metadata: None,
            min_token: None,
        }
    }

    /// The caller leaves between the moment when its grant is made and the moment when it would be
    /// told: the lock is free again for the next one.
    #[test]
    fn a_grant_that_nobody_hears_is_taken_back() {
        let mut worker = Worker {
            machine: Machine::new(0, Limits::default()),
            journal: NoJournal,
            clock: Arc::new(ManualClock::new(0, 0)),
            waiting: HashMap::new(),
            ready: Vec::new(),
            failed: None,
            health: Health::new(),
        };
        let (holder, waiter) = (ask(0), ask(1_000));
        let (lock, holder_id) = (holder.lock.clone(), holder.lease_id);
        let ((first, _held), (second, heard)) = (oneshot::channel(), oneshot::channel());
        let (released, _) = oneshot::channel();
        worker.apply(0, Request::Acquire(holder, first));
        worker.apply(0, Request::Acquire(waiter.clone(), second));
        worker.apply(0, Request::Release(lock.clone(), holder_id, released));
        worker.collect_deliveries();
        let granted = worker.machine.show(0, &lock).holder.map(|holder| holder.lease_id);
        assert_eq!(granted, Some(waiter.lease_id));
        drop(heard);
        worker.answer(0);
        assert!(worker.machine.show(0, &lock).holder.is_none());
        assert!(worker.machine.has_news(), "the next turn makes it durable");
    }
}

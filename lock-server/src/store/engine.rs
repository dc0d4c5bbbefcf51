//! What the `memory` and `embedded` stores share: one thread that owns the rules.
//!
//! Requests come through a bounded channel. The thread takes all that wait, applies them to the
//! [`Machine`], lets the [`Journal`] make the changes durable in one go, and only then answers: one
//! fsync serves every request that came while the one before was under way, and no reply leaves
//! before it.

mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::SessionReply;
use fence_protocol::{LeaseId, LockName, Token, Ttl};
use service_kit::clock::Clock;
use service_kit::health::Health;
use tokio::sync::oneshot;

use self::worker::Worker;
use super::{Acquire, Grant, ListQuery, Revoke, StoreError};
use lease::Machine;

/// How many requests may wait for the thread; more are refused, not queued.
const INBOX: usize = 16_384;

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
        drop(machine.take_session_changes());
        Ok(())
    }
}

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Sends one answer; a grant that nobody hears is taken back in the machine at that time.
type Ready = Box<dyn FnOnce(&mut Machine, u64) + Send>;

/// Something to do with the rules, at a time; its answer leaves after the commit.
type Work = Box<dyn FnOnce(&mut Machine, u64) -> Ready + Send>;

/// The answer to an acquire, and whether somebody else got the same one.
struct Heard {
    /// When the time that remains was measured, by the engine's clock.
    at_ms: u64,
    result: Result<Grant, StoreError>,
    /// The grants of the other locks of a request for several.
    others: Vec<Grant>,
    shared: bool,
}

/// What a request asked for, as long as nobody has heard its answer.
struct Asked {
    lock: LockName,
    /// The other locks of a request for several.
    others: Vec<LockName>,
    lease_id: LeaseId,
}

/// A request to the thread.
enum Request {
    Acquire(Acquire, oneshot::Sender<Heard>),
    AcquireAll(Vec<Acquire>, oneshot::Sender<Heard>),
    Withdraw { asked: Asked, granted: bool },
    Renew(LockName, LeaseId, Option<Ttl>, Answer<Grant>),
    Release(LockName, LeaseId, Answer<EndedReply>),
    Show(LockName, Answer<LockReply>),
    List(ListQuery, Answer<LockPage>),
    Lift(Token, Answer<()>),
    Run(Work),
    Stop,
}

/// A handle on the thread. Dropping it ends the thread after what it has in hand.
pub(super) struct Engine {
    clock: Arc<dyn Clock>,
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
        let worker = Worker::new(machine, journal, clock.clone(), health);
        let thread = std::thread::Builder::new()
            .name("lock-engine".to_owned())
            .spawn(move || worker.run(&requests))?;
        Ok(Self { clock, inbox, thread: Some(thread) })
    }

    /// See [`LockStore::acquire`](super::LockStore::acquire).
    pub(super) async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError> {
        let waits = request.wait_ms > 0;
        let (lock, lease_id) = (request.lock.clone(), request.lease_id);
        let asked = waits.then_some(Asked { lock, others: Vec::new(), lease_id });
        let heard = self.hear(asked, |answer| Request::Acquire(request, answer)).await?;
        let late_ms = self.since_ms(heard.at_ms);
        Ok(heard.result?.later(late_ms))
    }

    /// See [`LockStore::acquire_all`](super::LockStore::acquire_all).
    pub(super) async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
        let Some((first, others)) = parts.split_first() else { return Ok(Vec::new()) };
        let asked = (first.wait_ms > 0).then(|| Asked {
            lock: first.lock.clone(),
            others: others.iter().map(|part| part.lock.clone()).collect(),
            lease_id: first.lease_id,
        });
        let heard = self.hear(asked, |answer| Request::AcquireAll(parts, answer)).await?;
        let (late_ms, first) = (self.since_ms(heard.at_ms), heard.result?);
        let grants = std::iter::once(first).chain(heard.others);
        Ok(grants.map(|grant| grant.later(late_ms)).collect())
    }

    /// Sends an acquire and awaits its answer; withdraws it where the caller goes away before.
    async fn hear(
        &self,
        asked: Option<Asked>,
        request: impl FnOnce(oneshot::Sender<Heard>) -> Request,
    ) -> Result<Heard, StoreError> {
        let (answer, reply) = oneshot::channel();
        self.send(request(answer))?;
        let mut caller = Caller { engine: self, reply, asked };
        let heard = (&mut caller.reply).await;
        caller.asked = None;
        heard.map_err(|_| unanswered())
    }

    pub(super) async fn renew(
        &self,
        lock: LockName,
        lease_id: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError> {
        let sent_ms = self.clock.monotonic_ms();
        let grant = self.ask(|answer| Request::Renew(lock, lease_id, ttl, answer)).await?;
        Ok(grant.later(self.since_ms(sent_ms)))
    }

    /// As [`run`](Self::run), of what tells how long a session lives.
    pub(super) async fn session(
        &self,
        work: impl FnOnce(&mut Machine, u64) -> Result<SessionReply, StoreError> + Send + 'static,
    ) -> Result<SessionReply, StoreError> {
        let sent_ms = self.clock.monotonic_ms();
        let mut session = self.run(work).await?;
        session.expires_in_ms = session.expires_in_ms.saturating_sub(self.since_ms(sent_ms));
        Ok(session)
    }

    /// The commit takes its time, and the lease's runs meanwhile.
    fn since_ms(&self, at_ms: u64) -> u64 {
        self.clock.monotonic_ms().saturating_sub(at_ms)
    }

    pub(super) async fn release(
        &self,
        lock: LockName,
        lease_id: LeaseId,
    ) -> Result<EndedReply, StoreError> {
        self.ask(|answer| Request::Release(lock, lease_id, answer)).await
    }

    pub(super) async fn revoke(
        &self,
        lock: LockName,
        revoke: Revoke,
    ) -> Result<Vec<EndedReply>, StoreError> {
        self.run(move |machine, now_ms| machine.revoke(now_ms, &lock, &revoke)).await
    }

    pub(super) async fn mint(&self) -> Result<Token, StoreError> {
        self.run(|machine, _| machine.mint()).await
    }

    pub(super) async fn show(&self, lock: LockName) -> Result<LockReply, StoreError> {
        self.ask(|answer| Request::Show(lock, answer)).await
    }

    pub(super) async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        self.ask(|answer| Request::List(query, answer)).await
    }

    pub(super) async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.ask(|answer| Request::Lift(mark, answer)).await
    }

    /// Runs one operation on the rules. What it answers leaves after it is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Machine, u64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(|answer: Answer<T>| {
            Request::Run(Box::new(move |machine, now_ms| {
                let result = work(machine, now_ms);
                Box::new(move |_, _| drop(answer.send(result)))
            }))
        })
        .await
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
    /// `None` where there is nothing to withdraw.
    asked: Option<Asked>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let Some(asked) = self.asked.take() else { return };
        // Closed first: from here on either the answer is in the channel, or sending it fails and
        // the thread takes the grant back by itself.
        self.reply.close();
        let granted = match self.reply.try_recv() {
            Ok(Heard { shared: true, .. }) => return,
            Ok(heard) => heard.result.is_ok(),
            Err(_) => false,
        };
        // Where the inbox is full the waiter stays until its grant finds nobody.
        let _ = self.engine.inbox.try_send(Request::Withdraw { asked, granted });
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

            async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError> {
                self.0.acquire_all(parts).await
            }

            async fn revoke(
                &self,
                lock: &LockName,
                revoke: Revoke,
            ) -> Result<Vec<EndedReply>, StoreError> {
                self.0.revoke(lock.clone(), revoke).await
            }

            async fn mint(&self, _lock: &LockName) -> Result<Token, StoreError> {
                self.0.mint().await
            }

            async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError> {
                self.0.show(lock.clone()).await
            }

            async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError> {
                self.0.list(query).await
            }

            async fn lift(&self, mark: Token) -> Result<(), StoreError> {
                self.0.lift(mark).await
            }

            fn name(&self) -> &'static str {
                $name
            }
        }

        #[async_trait]
        impl SessionStore for $store {
            async fn create_session(&self, new: NewSession) -> Result<SessionReply, StoreError> {
                self.0.session(move |machine, now_ms| machine.create_session(now_ms, new)).await
            }

            async fn heartbeat(&self, session: SessionId) -> Result<SessionReply, StoreError> {
                self.0.session(move |machine, now_ms| machine.heartbeat(now_ms, session)).await
            }

            async fn end_session(
                &self,
                session: SessionId,
            ) -> Result<SessionEndedReply, StoreError> {
                self.0.run(move |machine, now_ms| machine.end_session(now_ms, session)).await
            }

            async fn block_session(
                &self,
                session: SessionId,
                reason: Owner,
            ) -> Result<SessionReply, StoreError> {
                let work = move |machine: &mut Machine, now_ms: u64| {
                    machine.block_session(now_ms, session, reason)
                };
                self.0.run(work).await
            }

            async fn show_session(&self, session: SessionId) -> Result<SessionReply, StoreError> {
                self.0.run(move |machine, now_ms| machine.show_session(now_ms, session)).await
            }

            async fn list_sessions(
                &self,
                after: Option<SessionId>,
                limit: usize,
            ) -> Result<SessionPage, StoreError> {
                let work = move |machine: &mut Machine, now_ms: u64| {
                    Ok(machine.list_sessions(now_ms, after, limit))
                };
                self.0.run(work).await
            }
        }
    };
}
pub(super) use serve_through_engine;

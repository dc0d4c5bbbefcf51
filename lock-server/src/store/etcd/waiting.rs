//! Waiting in the queue.
//!
//! A request waits in a task of its own, which takes the grant when its turn comes whether or not
//! the caller looks at that moment; a caller that has gone is withdrawn, and its grant with it.

use std::time::Duration;

use fence_protocol::{LeaseId, LockName};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::acquire::Attempt;
use super::gateway::GatewayError;
use super::places::Ticket;
use super::txn::{Compare, On, Op, Txn};
use super::values::{Waiter, WaiterAt, written};
use super::view::{Standing, View};
use super::{EtcdStore, TRIES, leases, millis, secs, store_error};
use crate::store::{Acquire, Grant, StoreError};

/// How often the first of a server's waiters looks by itself, should the watch be deaf.
const LOOK_FIRST: Duration = Duration::from_secs(1);
/// How often the others do.
const LOOK_OTHERS: Duration = Duration::from_secs(5);
/// How long a lock that is handed over is looked at until it has a holder to be named.
const HANDOVER_LOOK: Duration = Duration::from_millis(10);
/// How often.
const HANDOVER_LOOKS: usize = 300;
/// The shortest time that an etcd lease lives, in seconds.
const LEASE_S_MIN: u64 = 2;

impl EtcdStore {
    /// Waits in the queue. Cancel-safe: dropped, it leaves it.
    pub(super) async fn wait(&self, request: Acquire) -> Result<Grant, StoreError> {
        let limit = self.inner.options.limits.waiters;
        let (lock, lease_id) = (request.lock.clone(), request.lease_id);
        let patience = Duration::from_millis(request.wait_ms);
        let entering = tokio::time::timeout(patience, self.enter(&request, limit));
        let ticket = entering.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "an earlier request with this lease_id is still being withdrawn; repeat it"
                    .to_owned(),
            ))
        })?;
        let number = ticket.number;
        let entered = Entered { store: self.clone(), ticket };
        let (sender, receiver) = oneshot::channel();
        let gone = CancellationToken::new();
        let (store, stop) = (self.clone(), gone.clone());
        let task = self.inner.tasks.spawn(async move {
            let outcome = store.wait_in_queue(&request, &entered.ticket, &stop).await;
            // A caller that has gone is withdrawn by its own departure.
            let _ = sender.send((outcome, entered));
        });
        let mut caller =
            Caller { store: self.clone(), lock, lease_id, number, gone, task: Some(task) };
        let outcome = receiver.await;
        caller.task = None;
        match outcome {
            Ok((Ok(grant), entered)) => {
                // Before it leaves: from then on nobody here knows of this caller.
                self.inner.keeper.claim(&caller.lock, lease_id);
                drop(entered);
                Ok(grant)
            }
            Ok((refused, _)) => refused,
            Err(_) => Err(StoreError::Unknown(
                "the server ends; repeat the request with the same lease_id".to_owned(),
            )),
        }
    }

    /// Waits until no earlier request with the same id is being withdrawn, and enters. Cancel-safe.
    async fn enter(&self, request: &Acquire, limit: usize) -> Result<Ticket, StoreError> {
        let (places, lock, lease_id) = (&self.inner.places, &request.lock, request.lease_id);
        loop {
            places.others_left(lock, lease_id).await;
            if let Some(ticket) = places.enter(lock, lease_id, request.session, limit)? {
                return Ok(ticket);
            }
        }
    }

    async fn wait_in_queue(
        &self,
        request: &Acquire,
        ticket: &Ticket,
        gone: &CancellationToken,
    ) -> Result<Grant, StoreError> {
        let began_ms = self.now_ms();
        let deadline = tokio::time::sleep(Duration::from_millis(request.wait_ms));
        tokio::pin!(deadline);
        let mut is_queued = false;
        let outcome = loop {
            match self.ask_or_queue(request, ticket).await {
                Ok(Asked::Granted(grant)) => break Ok(grant),
                Ok(Asked::Queued) => is_queued = true,
                Ok(Asked::Changed) if !gone.is_cancelled() => continue,
                Ok(Asked::Changed) => break Err(caller_gone()),
                // Whoever has a place does not lose it to an etcd that is away.
                Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) if is_queued => {}
                Err(error) => break Err(error),
            }
            let is_first = self.inner.places.is_first(ticket);
            let look = if is_first { LOOK_FIRST } else { LOOK_OTHERS };
            tokio::select! {
                () = ticket.woken() => {}
                () = tokio::time::sleep(look) => {}
                () = &mut deadline => break self.give_up(request, ticket).await,
                () = gone.cancelled() => break Err(caller_gone()),
            }
        };
        // It has a place for certain, or may have one.
        let has_place = is_queued || matches!(outcome, Err(StoreError::Unknown(_)));
        if has_place && outcome.is_err() && !gone.is_cancelled() {
            self.leave_nothing(&request.lock, request.lease_id, ticket.number).await;
        }
        self.inner.places.wake_id(&request.lock, request.lease_id);
        outcome.map(|grant| {
            let waited_ms = if is_queued { self.now_ms().saturating_sub(began_ms) } else { 0 };
            Grant { waited_ms, ..grant }
        })
    }

    /// Nothing of a refused request stays in the queue, unless another caller waits here under the
    /// same id. A place that stayed would hold up everybody: its etcd lease is this server's, and
    /// lives on.
    async fn leave_nothing(&self, lock: &LockName, lease_id: LeaseId, number: u64) {
        let places = &self.inner.places;
        if !places.begin_leaving(lock, lease_id, number) {
            return;
        }
        match self.withdraw(lock, lease_id).await {
            Ok(()) => places.has_left(lock, lease_id),
            Err(error) => {
                tracing::debug!(%lock, %lease_id, %error, "a waiter is not withdrawn yet");
                let (store, lock) = (self.clone(), lock.clone());
                self.inner.tasks.spawn(async move { store.withdraw_at_last(lock, lease_id).await });
            }
        }
    }

    /// Withdraws a request that began to leave, as soon as etcd lets it. What is left after all
    /// these tries is found by [`sweep`](super::sweep).
    async fn withdraw_at_last(&self, lock: LockName, lease_id: LeaseId) {
        for _ in 0..TRIES {
            match self.withdraw(&lock, lease_id).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(%lock, %lease_id, %error, "a waiter is not withdrawn yet");
                    tokio::time::sleep(LOOK_FIRST).await;
                }
            }
        }
        self.inner.places.has_left(&lock, lease_id);
    }

    /// Asks; takes a place in the queue where the lock is not to be had.
    async fn ask_or_queue(&self, request: &Acquire, ticket: &Ticket) -> Result<Asked, StoreError> {
        let view = match self.attempt(request, false).await? {
            Attempt::Granted(grant) => return Ok(Asked::Granted(grant)),
            Attempt::NotNow(view) => view,
        };
        let Some(create_revision) = self.take_place(request, &view).await? else {
            return Ok(Asked::Changed);
        };
        self.inner.places.place(ticket, create_revision);
        Ok(Asked::Queued)
    }

    /// Takes a place in the queue, or the one that the id has; `None` where something had changed.
    async fn take_place(&self, request: &Acquire, view: &View) -> Result<Option<u64>, StoreError> {
        let server = &self.inner.server_id;
        if let Some(place) = &view.place
            && place.waiter.server == *server
        {
            return Ok(Some(place.create_revision));
        }
        let limit = self.inner.options.limits.waiters_per_lock;
        if view.place.is_none() && view.queue_length >= limit {
            return Err(StoreError::Limit { what: "waiters of this lock", limit: limit as u64 });
        }
        let terms = self.terms(request).await?;
        let lease = self.places_lease().await.map_err(store_error)?;
        let (keys, lock) = (&self.inner.keys, &request.lock);
        let key = keys.waiter(lock, request.lease_id);
        let since_ms = view.place.as_ref().map_or(self.wall_ms(), |place| place.waiter.since_ms);
        let waiter = Waiter {
            lease_id: request.lease_id,
            owner: request.owner.clone(),
            since_ms,
            server: server.clone(),
            session: request.session,
        };
        let before = view.place.as_ref().map_or(0, |place| place.mod_revision);
        let mut compare = vec![
            // Whoever asks again at another server keeps its place.
            Compare::unchanged(&key, before),
            // The id was not ended meanwhile.
            Compare::unchanged(&keys.record(lock), view.record.mod_revision),
        ];
        compare.extend(terms.compare());
        let mut success = vec![Op::put(&key, &written(&waiter), On::Lease(lease))];
        success.extend(terms.wait(lease));
        let txn = Txn { compare, success, failure: Vec::new() };
        match self.inner.gateway.write_compared(&txn).await {
            Ok(reply) if reply.succeeded => {
                let own = view.place.as_ref().map(|place| place.create_revision);
                Ok(Some(own.unwrap_or(reply.header.revision)))
            }
            Ok(_) => Ok(None),
            Err(error) if error.is_no_lease() => {
                self.inner.places.lease_is_gone(lease);
                Ok(None)
            }
            Err(error) => Err(store_error(error)),
        }
    }

    /// The etcd lease of this server's places; it is kept alive in the background.
    async fn places_lease(&self) -> Result<u64, GatewayError> {
        let places = &self.inner.places;
        let _alone = places.making_lease.lock().await;
        if let Some(id) = places.lease() {
            return Ok(id);
        }
        let id = leases::random_id();
        self.inner.gateway.lease_grant(id, self.places_lease_s()).await?;
        places.set_lease(id);
        Ok(id)
    }

    /// What it lives, in seconds.
    pub(super) fn places_lease_s(&self) -> u64 {
        secs(millis(self.inner.options.liveness)).max(LEASE_S_MIN)
    }

    /// How often it is kept alive, and places are looked at.
    pub(super) fn places_pause(&self) -> Duration {
        Duration::from_secs(self.places_lease_s()) / 3
    }

    /// Patience is over: leaves the queue and says who holds the lock, unless it was granted.
    async fn give_up(&self, request: &Acquire, ticket: &Ticket) -> Result<Grant, StoreError> {
        let (lock, lease_id) = (&request.lock, request.lease_id);
        for _ in 0..HANDOVER_LOOKS {
            // What waits in etcd still may be granted before anybody sees to it.
            let still = |error: StoreError| StoreError::Unknown(error.to_string());
            let view = self.view(lock, lease_id).await.map_err(still)?;
            match view.standing(lease_id, &request.owner) {
                Standing::Ended(lost) => return Err(lost),
                Standing::Conflict(owner) => return Err(StoreError::IdConflict { owner }),
                Standing::Yours | Standing::Open => {
                    if let Attempt::Granted(grant) = self.attempt(request, false).await? {
                        return Ok(grant);
                    }
                }
                // On its way to somebody who will be named.
                Standing::Behind => tokio::time::sleep(HANDOVER_LOOK).await,
                Standing::Held => {
                    let shares = self.inner.places.has_others(lock, lease_id, ticket.number);
                    let is_ours =
                        |place: &&WaiterAt| !shares && place.waiter.server == self.inner.server_id;
                    let left = match view.place.as_ref().filter(is_ours) {
                        Some(place) => self.leave_queue(lock, place).await.map_err(still)?,
                        None => true,
                    };
                    if left {
                        return Err(self.refusal(lock, view).await);
                    }
                }
            }
        }
        Err(StoreError::Unavailable(format!(
            "lock {lock} changes hands all the time; repeat the request with the same lease_id"
        )))
    }

    /// The refusal of a request that has left the queue, and is not counted there.
    async fn refusal(&self, lock: &LockName, mut view: View) -> StoreError {
        if view.place.is_some() {
            view.queue_length = view.queue_length.saturating_sub(1);
        }
        match self.held(lock, &view).await {
            Ok(Some(refusal)) => refusal,
            Ok(None) => super::ending::contended(lock),
            Err(error) => error,
        }
    }
}

/// What came of asking once.
enum Asked {
    Granted(Grant),
    Queued,
    Changed,
}

fn caller_gone() -> StoreError {
    StoreError::Unavailable("the caller has gone".to_owned())
}

/// A caller among those of this server, until its answer has arrived: whoever withdraws a request
/// with the same id sees it, and takes no grant back that is on its way to it.
struct Entered {
    store: EtcdStore,
    ticket: Ticket,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.store.inner.places.leave(&self.ticket);
    }
}

/// Whoever waits for the answer. Dropped before it came, the request is withdrawn, unless another
/// caller waits here under the same id.
struct Caller {
    store: EtcdStore,
    lock: LockName,
    lease_id: LeaseId,
    number: u64,
    gone: CancellationToken,
    /// None once the answer is there.
    task: Option<JoinHandle<()>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        self.gone.cancel();
        let (store, lock, lease_id) = (self.store.clone(), self.lock.clone(), self.lease_id);
        let places = &self.store.inner.places;
        if !places.begin_leaving(&lock, lease_id, self.number) {
            return;
        }
        self.store.inner.tasks.spawn(async move {
            // A try that is under way ends first: its grant is then there to be seen.
            let _ = task.await;
            store.withdraw_at_last(lock, lease_id).await;
        });
    }
}

//! Work without a request: time-outs, and changes by other servers.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::{LockName, SessionId};
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;

use super::core::EndedBy;
use super::op::{CallReply, Withdraw, look_at};
use super::{Driver, DriverInner};
use crate::engines::contract::{Key, ServerId, WAKEUPS_MAX, Wakeup};
use crate::store::StoreError;

/// Most reads under way for messages, before more are received.
pub(super) const LOOKS_MAX: usize = 64;
/// Keys that are compared with each other while the driver's state is locked: more than one request
/// has.
const APART_AT_ONCE: usize = 1_024;
/// Rest when nothing is due, in milliseconds.
const IDLE_MS: u64 = 3_600_000;
/// Interval at which records that requests wait for are read again, in case a message was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Number of beats in the time for which a server counts as alive.
const BEATS: u32 = 3;
/// Longest interval between two beats.
const BEAT_MAX: Duration = Duration::from_secs(1);
/// Time after its time-out at which a request gets a reply without the store, in milliseconds.
const OVERDUE_MS: u64 = 1_000;

/// Runs until shutdown, or until the driver is dropped.
pub(super) fn start(inner: &Arc<DriverInner>) {
    spawn(inner, alarms);
    if inner.store.is_alone() {
        return;
    }
    let wakeups = inner.store.wakeups(inner.server.id);
    spawn(inner, move |inner| listen(inner, wakeups));
    spawn(inner, beat);
    spawn(inner, look_again);
}

fn spawn<F>(inner: &Arc<DriverInner>, task: impl FnOnce(Weak<DriverInner>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let stop = inner.kit.tasks.shutdown_token();
    let work = task(Arc::downgrade(inner));
    inner.kit.tasks.spawn(async move {
        stop.run_until_cancelled(work).await;
    });
}

/// Applies the rules when something is due: leases, time-outs, sessions.
async fn alarms(weak: Weak<DriverInner>) {
    let Some(sooner) = weak.upgrade().map(|inner| inner.sooner.clone()) else { return };
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let rest_ms = {
            let state = &mut *inner.state();
            if state.core.failed.is_some() {
                // A failed driver makes no more changes.
                return;
            }
            let now_ms = inner.store.now_ms();
            // Changes that are due while a batch is under way are decided when it ends.
            let next_ms =
                state.core.machine.next_alarm_ms().filter(|_| state.core.in_flight.is_empty());
            state.wakes_at_ms = next_ms.unwrap_or(u64::MAX);
            next_ms.map_or(IDLE_MS, |at_ms| at_ms.saturating_sub(now_ms)).min(IDLE_MS)
        };
        if rest_ms == 0 {
            inner.commit_waiting();
        }
        // The driver must be droppable while this waits.
        drop(inner);
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(rest_ms)) => {}
            () = sooner.notified() => {}
        }
    }
}

/// Reads the records that other servers have changed. Any client of the store may send messages:
/// one record is read once for all that wait, and few reads are under way at once.
async fn listen(weak: Weak<DriverInner>, mut wakeups: mpsc::Receiver<Wakeup>) {
    let mut received = Vec::new();
    let mut looks = FuturesUnordered::new();
    while wakeups.recv_many(&mut received, WAKEUPS_MAX).await > 0 {
        if received.len() == WAKEUPS_MAX {
            // Some may have been dropped.
            received.push(Wakeup::All);
        }
        let mut keys = BTreeSet::new();
        for wakeup in received.drain(..) {
            let Some(inner) = weak.upgrade() else { return };
            match wakeup {
                Wakeup::Record(key) => drop(keys.insert(key)),
                Wakeup::All => keys.extend(inner.awaited_locks().into_iter().map(Key::Lock)),
            }
        }
        let Some(inner) = weak.upgrade() else { return };
        let keys = inner.apart(keys);
        drop(inner);
        for key in keys {
            // Without a reply the driver has stopped.
            while let Some(Some(_)) = looks.next().now_or_never() {}
            while looks.len() >= LOOKS_MAX && looks.next().await.is_some() {}
            let Some(inner) = weak.upgrade() else { return };
            looks.extend(inner.look_at(key));
        }
    }
}

async fn beat(weak: Weak<DriverInner>) {
    if let Some(inner) = weak.upgrade() {
        // Servers may have died while no other lived to notice.
        inner.watch_sessions();
    }
    loop {
        let Some(inner) = weak.upgrade() else { return };
        if let Err(error) = inner.beat().await {
            tracing::debug!(%error, "the beat of this server failed");
        }
        let rest = (inner.server.liveness / BEATS).min(BEAT_MAX);
        drop(inner);
        tokio::time::sleep(rest).await;
    }
}

async fn look_again(weak: Weak<DriverInner>) {
    let mut looks = join_all(Vec::new());
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(inner) = weak.upgrade() else { return };
        // A slow store must not be asked for more than it can read between requests: one round
        // follows the other.
        if (&mut looks).now_or_never().is_some() {
            looks = join_all(inner.look_at_all());
        }
        inner.give_up_overdue();
        inner.withdraw_abandoned();
    }
}

impl DriverInner {
    /// Reads a record that may have changed, if it matters here; the reply comes afterwards.
    fn look_at(self: &Arc<Self>, key: Key) -> Option<CallReply<()>> {
        let matters = {
            let core = &self.state().core;
            match &key {
                Key::Lock(lock) => core.waiters.wait_for(lock) || core.machine.knows(lock),
                Key::Session(id) => core.machine.session(*id).is_some(),
            }
        };
        let (op, reply) = matters.then(|| look_at(key))?;
        self.submit(op).ok().map(|()| reply)
    }

    /// Watches the leases of a server that died, so that their end is reported.
    fn look_after(self: &Arc<Self>, dead: ServerId) {
        let locks = self.reports.get().map(|reports| reports.granted_by(dead));
        for lock in locks.into_iter().flatten() {
            let _ = self.submit(look_at(Key::Lock(lock)).0);
        }
    }

    fn awaited_locks(&self) -> Vec<LockName> {
        self.state().core.waiters.locks().cloned().collect()
    }

    pub(super) fn look_at_all(self: &Arc<Self>) -> Vec<CallReply<()>> {
        let locks = self.apart(self.awaited_locks().into_iter().map(Key::Lock));
        locks.into_iter().filter_map(|lock| self.look_at(lock)).collect()
    }

    /// See [`Core::apart`](super::core::Core::apart). Others get their turn between.
    fn apart(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let keys: Vec<Key> = keys.into_iter().collect();
        let parts = keys.chunks(APART_AT_ONCE);
        parts.flat_map(|part| self.state().core.apart(part.iter().cloned())).collect()
    }

    /// Withdraws requests that may have an entry in a queue, unless a retry waits there.
    pub(super) fn withdraw_abandoned(self: &Arc<Self>) {
        let abandoned = {
            let core = &mut self.state().core;
            let mut abandoned = std::mem::take(&mut core.abandoned);
            abandoned.retain(|(locks, lease_id)| {
                !locks.iter().any(|lock| core.waiters.has(&(lock.clone(), *lease_id)))
            });
            abandoned
        };
        for (locks, lease_id) in abandoned {
            let _ = self.submit(Box::new(Withdraw::new(locks, lease_id)));
        }
    }

    /// Replies to requests that have timed out and to which the store gave no result.
    fn give_up_overdue(&self) {
        let now_ms = self.store.now_ms().saturating_sub(OVERDUE_MS);
        let overdue = self.state().core.waiters.take_overdue(now_ms);
        for waiting in overdue {
            let text = "the store did not reply in time; retry the request";
            waiting.refuse(StoreError::Unknown(text.to_owned()));
        }
    }

    /// Records in the store that this server lives. If another one has died, its waiters are
    /// skipped and its leases are watched here.
    pub(super) async fn beat(self: &Arc<Self>) -> Result<(), StoreError> {
        let at_ms = self.store.now_ms();
        let liveness_ms = u64::try_from(self.server.liveness.as_millis()).unwrap_or(u64::MAX);
        let alive = self.store.beat(self.server.id, liveness_ms).await?;
        let alive = alive.iter().map(|server| server.0).collect();
        // The reply may show that the engine's clock was set back.
        let at_ms = at_ms.min(self.store.now_ms());
        let dead = self.state().core.machine.set_alive(at_ms, alive);
        if !dead.is_empty() {
            drop(self.look_at_all());
            self.watch_sessions();
        }
        dead.into_iter().for_each(|server| self.look_after(ServerId(server)));
        Ok(())
    }

    /// Reads every session, so that its end is noticed here: the server that would have noticed it
    /// may have died.
    fn watch_sessions(self: &Arc<Self>) {
        let driver = Driver { inner: self.clone() };
        let stop = self.kit.tasks.shutdown_token();
        self.kit.tasks.spawn(async move {
            let read = stop.run_until_cancelled(driver.read_sessions());
            if let Some(Err(error)) = read.await {
                tracing::debug!(%error, "not every session was read");
            }
        });
    }

    /// Ends the leases of a session that has ended, and then lets the session be forgotten.
    pub(super) fn clear_ended(self: &Arc<Self>, id: SessionId, by: EndedBy) {
        if !self.state().clearing.insert(id) {
            return;
        }
        let weak = Arc::downgrade(self);
        let stop = self.kit.tasks.shutdown_token();
        self.kit.tasks.spawn(async move {
            let clear = async {
                if by == EndedBy::Another {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                clear(weak, id).await;
            };
            stop.run_until_cancelled(clear).await;
        });
    }
}

async fn clear(weak: Weak<DriverInner>, id: SessionId) {
    while let Some(inner) = weak.upgrade() {
        let driver = Driver { inner: inner.clone() };
        match driver.clear_session(id).await {
            Ok(()) => {
                inner.state().clearing.remove(&id);
                return;
            }
            Err(error) => {
                tracing::debug!(session = %id, %error, "leases of a session were not cleared");
            }
        }
        drop((inner, driver));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

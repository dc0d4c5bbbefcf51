//! What happens without a request: time passes, and other servers write.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::{LockName, SessionId};
use tokio::sync::mpsc;

use super::core::EndedBy;
use super::op::{Withdraw, look_at};
use super::{Driver, Inner};
use crate::store::StoreError;
use crate::store::records::{Key, ServerId, Wakeup};

/// How long to rest when nothing is due.
const IDLE_MS: u64 = 3_600_000;
/// How often records that requests wait for are read again, in case a message was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often a server says that it lives, while it counts as alive.
const BEATS: u32 = 3;
/// How long it is silent at most.
const BEAT_MAX: Duration = Duration::from_secs(1);
/// How long a request waits beyond its patience before it is answered without the store.
const OVERDUE_MS: u64 = 1_000;

/// Runs until shutdown, or until the driver is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    spawn(inner, alarms);
    if inner.store.is_alone() {
        return;
    }
    let wakeups = inner.store.wakeups(inner.server.id);
    spawn(inner, move |inner| listen(inner, wakeups));
    spawn(inner, beat);
    spawn(inner, look_again);
}

fn spawn<F>(inner: &Arc<Inner>, task: impl FnOnce(Weak<Inner>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (stop, work) = (inner.kit.tasks.shutdown_token(), task(Arc::downgrade(inner)));
    inner.kit.tasks.spawn(async move {
        stop.run_until_cancelled(work).await;
    });
}

/// Lets the rules look when something is due: leases, time-outs, sessions.
async fn alarms(weak: Weak<Inner>) {
    let Some(sooner) = weak.upgrade().map(|inner| inner.sooner.clone()) else { return };
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let rest_ms = {
            let state = &mut *inner.state();
            if state.core.failed.is_some() {
                // What is due stays due.
                return;
            }
            let now_ms = inner.store.now_ms();
            // What is due while a batch is under way is decided when that lands.
            let next_ms =
                state.core.machine.next_alarm_ms().filter(|_| state.core.in_flight.is_empty());
            state.wakes_at_ms = next_ms.unwrap_or(u64::MAX);
            next_ms.map_or(IDLE_MS, |at_ms| at_ms.saturating_sub(now_ms)).min(IDLE_MS)
        };
        if rest_ms == 0 {
            inner.lead();
        }
        // The driver must be able to go while this waits.
        drop(inner);
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(rest_ms)) => {}
            () = sooner.notified() => {}
        }
    }
}

/// Reads what other servers say that they have changed.
async fn listen(weak: Weak<Inner>, mut wakeups: mpsc::UnboundedReceiver<Wakeup>) {
    while let Some(wakeup) = wakeups.recv().await {
        let Some(inner) = weak.upgrade() else { return };
        match wakeup {
            Wakeup::Record(key) => inner.look_at(key),
            Wakeup::All => inner.look_at_all(),
        }
    }
}

async fn beat(weak: Weak<Inner>) {
    if let Some(inner) = weak.upgrade() {
        // Servers may have died while none lived to see it.
        inner.watch_sessions();
    }
    loop {
        let Some(inner) = weak.upgrade() else { return };
        if let Err(error) = inner.beat().await {
            tracing::debug!(%error, "the store does not know that this server lives");
        }
        let rest = (inner.server.liveness / BEATS).min(BEAT_MAX);
        drop(inner);
        tokio::time::sleep(rest).await;
    }
}

async fn look_again(weak: Weak<Inner>) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(inner) = weak.upgrade() else { return };
        inner.look_at_all();
        inner.give_up_overdue();
        inner.withdraw_abandoned();
    }
}

impl Inner {
    /// A record may have changed: it is read, where it matters here.
    fn look_at(self: &Arc<Self>, key: Key) {
        let matters = {
            let core = &self.state().core;
            match &key {
                Key::Lock(lock) => core.waiters.wait_for(lock) || core.machine.knows(lock),
                Key::Session(id) => core.machine.session(*id).is_some(),
            }
        };
        if matters {
            let _ = self.submit(look_at(key));
        }
    }

    /// The leases of a server that died are followed here, so that their end is reported.
    fn look_after(self: &Arc<Self>, dead: ServerId) {
        let locks = self.reports.get().map(|reports| reports.granted_by(dead));
        for lock in locks.into_iter().flatten() {
            let _ = self.submit(look_at(Key::Lock(lock)));
        }
    }

    fn look_at_all(self: &Arc<Self>) {
        let locks: Vec<LockName> = self.state().core.waiters.locks().cloned().collect();
        for lock in locks {
            self.look_at(Key::Lock(lock));
        }
    }

    /// Withdraws requests that may have a place in a queue, unless a retry waits there.
    pub(super) fn withdraw_abandoned(self: &Arc<Self>) {
        let abandoned = {
            let core = &mut self.state().core;
            let mut abandoned = std::mem::take(&mut core.abandoned);
            abandoned.retain(|(locks, lease_id)| {
                !locks.iter().any(|lock| core.waiters.ids(lock).contains(lease_id))
            });
            abandoned
        };
        for (locks, lease_id) in abandoned {
            let _ = self.submit(Box::new(Withdraw::new(locks, lease_id)));
        }
    }

    /// Answers requests whose patience is over and which the store could not answer.
    fn give_up_overdue(&self) {
        let now_ms = self.store.now_ms().saturating_sub(OVERDUE_MS);
        let overdue = self.state().core.waiters.take_overdue(now_ms);
        for waiting in overdue {
            let text = "the store did not say in time who holds the lock; repeat the request";
            waiting.refuse(StoreError::Unknown(text.to_owned()));
        }
    }

    /// Tells the store that this server lives. Where another one has died, its waiters are passed over
    /// and what it watched is watched here.
    pub(super) async fn beat(self: &Arc<Self>) -> Result<(), StoreError> {
        let at_ms = self.store.now_ms();
        let liveness_ms = u64::try_from(self.server.liveness.as_millis()).unwrap_or(u64::MAX);
        let alive = self.store.beat(self.server.id, liveness_ms).await?;
        let alive = alive.iter().map(|server| server.0).collect();
        // The reply may show that the engine's clock was set back.
        let at_ms = at_ms.min(self.store.now_ms());
        let dead = self.state().core.machine.set_alive(at_ms, alive);
        if !dead.is_empty() {
            self.look_at_all();
            self.watch_sessions();
        }
        dead.into_iter().for_each(|server| self.look_after(ServerId(server)));
        Ok(())
    }

    /// Reads every session, so that the end of each is noticed here: the server that would have noticed
    /// it may have died.
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

    /// Ends what is bound to a session that has ended, and then lets the session be forgotten.
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

async fn clear(weak: Weak<Inner>, id: SessionId) {
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

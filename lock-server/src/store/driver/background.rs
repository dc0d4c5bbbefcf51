//! What happens without a request: time passes, and other servers write.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::{LockName, SessionId};
use tokio::sync::mpsc;

use super::op::Call;
use super::waiters::Answered;
use super::{Driver, Inner};
use crate::store::StoreError;
use crate::store::records::{Key, Wakeup};

/// How long to rest when nothing is due.
const IDLE_MS: u64 = 3_600_000;
/// How often records that requests wait for are read again, in case a message was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How long a server that fell silent counts as alive.
const LIVENESS_MS: u64 = 3_000;
/// How often it says that it lives.
const BEAT: Duration = Duration::from_millis(1_000);
/// How long a request waits beyond its patience before it is answered without the store.
const OVERDUE_MS: u64 = 1_000;

/// Runs until shutdown, or until the driver is gone.
pub(super) fn start(inner: &Arc<Inner>) {
    spawn(inner, alarms);
    if inner.store.is_alone() {
        return;
    }
    let wakeups = inner.store.wakeups(inner.server);
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
            let next_ms = state.core.machine.next_alarm_ms();
            state.wakes_at_ms = next_ms.unwrap_or(u64::MAX);
            next_ms.map_or(IDLE_MS, |at_ms| at_ms.saturating_sub(now_ms)).min(IDLE_MS)
        };
        if rest_ms == 0 {
            inner.lead();
        }
        // The driver must be able to go while this waits.
        drop(inner);
        tokio::select! {
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
    loop {
        let Some(inner) = weak.upgrade() else { return };
        match inner.store.beat(inner.server, LIVENESS_MS).await {
            Ok(alive) => {
                let state = &mut *inner.state();
                state.core.machine.set_alive(alive.iter().map(|server| server.0).collect());
            }
            Err(error) => tracing::debug!(%error, "the store does not know that this server lives"),
        }
        drop(inner);
        tokio::time::sleep(BEAT).await;
    }
}

async fn look_again(weak: Weak<Inner>) {
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        let Some(inner) = weak.upgrade() else { return };
        inner.look_at_all();
        inner.give_up_overdue();
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
            // Decides nothing, on what is known: where that has changed, it is read.
            let (op, _) = Call::boxed(vec![key], |_, _| Ok(()));
            let _ = self.submit(op);
        }
    }

    fn look_at_all(self: &Arc<Self>) {
        let locks: Vec<LockName> = self.state().core.waiters.locks().cloned().collect();
        for lock in locks {
            self.look_at(Key::Lock(lock));
        }
    }

    /// Answers requests whose patience is over and which the store could not answer.
    fn give_up_overdue(&self) {
        let now_ms = self.store.now_ms().saturating_sub(OVERDUE_MS);
        let overdue = self.state().core.waiters.take_overdue(now_ms);
        for waiting in overdue {
            let text = "the store did not say in time who holds the lock; repeat the request";
            let result = Err(StoreError::Unknown(text.to_owned()));
            drop(waiting.answer(Answered { at_ms: 0, result, is_shared: true }));
        }
    }

    /// Ends what is bound to a session that has ended.
    pub(super) fn clear_ended(self: &Arc<Self>, id: SessionId) {
        let driver = Driver { inner: self.clone() };
        self.kit.tasks.spawn(async move {
            if let Err(error) = driver.clear_session(id).await {
                tracing::debug!(session = %id, %error, "leases of a session were not cleared");
            }
        });
    }
}

//! Background tasks; no other module of this crate spawns.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::clock::{self, Moment};

/// Background tasks of one client: the releases of dropped leases and sessions.
#[derive(Clone, Debug, Default)]
pub struct Background {
    tracker: TaskTracker,
}

impl Background {
    /// Spawns `task` on `runtime`. Never blocks, and works outside of the runtime too (in a
    /// `Drop`). A runtime that is shutting down drops the task.
    pub fn spawn_on(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(task, runtime);
    }

    /// Spawns the release of what may have been granted, as by [`spawn_on`](Self::spawn_on). It
    /// ends at `expires_at`, when the grant has expired by itself.
    pub fn release_on(
        &self,
        runtime: &Handle,
        expires_at: Moment,
        release: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn_on(runtime, async move {
            tokio::select! {
                biased;
                () = clock::sleep_until(expires_at) => {}
                () = release => {}
            }
        });
    }

    /// Waits until all spawned tasks have ended; `false` if `deadline` passed first. Cancel-safe.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.tracker.close();
        let drained = tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok();
        self.tracker.reopen();
        drained
    }
}

/// Spawns `task` on the current runtime; dropping the returned guard cancels it. Panics outside of
/// a runtime.
pub fn spawn_until_dropped(task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    spawn(async move {
        tokio::select! {
            biased;
            () = stopped.cancelled() => {}
            () = task => {}
        }
    });
    stop.drop_guard()
}

/// Spawns `task` on the current runtime; the caller bounds it. Panics outside of a runtime.
#[expect(clippy::disallowed_methods, reason = "this module is the replacement that clippy names")]
pub fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_release_without_a_reply_ends_when_the_grant_has_expired() {
        let background = Background::default();
        let expires_at = clock::now().plus_ms(20);
        background.release_on(&Handle::current(), expires_at, std::future::pending());
        assert!(background.drained(Duration::from_secs(60)).await);
        assert!(clock::now() >= expires_at);
    }
}

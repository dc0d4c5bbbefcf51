//! The one place of this crate that spawns.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Background work of one client: the release of dropped leases.
#[derive(Clone, Debug, Default)]
pub struct Background {
    tracker: TaskTracker,
}

impl Background {
    /// Runs `task` in the background, on `runtime`. Never blocks, and works outside of the runtime
    /// too (in a `Drop`). On a runtime that is shutting down the task is dropped.
    pub fn spawn_on(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn_on(task, runtime);
    }

    /// Waits until everything that was spawned has ended; `false` when `deadline` passed first.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.tracker.close();
        let drained = tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok();
        self.tracker.reopen();
        drained
    }
}

/// Runs `task` on the current runtime until it ends or the guard that is returned is dropped.
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

/// Runs `task` on the current runtime. The caller bounds it.
#[expect(clippy::disallowed_methods, reason = "this module is the replacement that clippy names")]
pub fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

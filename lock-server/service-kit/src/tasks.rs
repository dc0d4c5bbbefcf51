//! Tasks that shutdown knows of and awaits.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks, counts them, tells them when to end and waits for them. Cheap to clone; all
/// clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Tasks {
    /// No tasks, and no shutdown yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a tracked task on the current runtime. It runs on when the handle is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs `work` on the runtime's threads for blocking work, tracked too.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn_blocking(work)
    }

    /// Cancelled when shutdown begins.
    pub fn shutdown_token(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Tells every task to end. Repeating it changes nothing.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Whether shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// How many tasks are running.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Waits until every task has ended; `false` when some still run at the deadline. It does not
    /// begin the shutdown. Cancel-safe.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn drained_waits_for_tasks_and_says_when_it_gave_up() {
        let tasks = Tasks::new();
        let token = tasks.shutdown_token();
        let task = tasks.spawn(async move {
            token.cancelled().await;
            7
        });
        assert!(!tasks.drained(Duration::from_millis(10)).await, "nobody told it to end");
        assert!(!tasks.is_shutting_down());
        tasks.begin_shutdown();
        assert!(tasks.drained(Duration::from_secs(30)).await);
        assert_eq!(task.await.unwrap(), 7);
        assert_eq!(tasks.running(), 0);
    }
}

//! Tasks that shutdown knows of and awaits.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Spawns tasks, counts them, notifies them of the shutdown and waits for them. Cheap to clone; all
/// clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    shutdown: CancellationToken,
    /// The runtime that these were made on; `None` where they were made outside of one.
    home: Option<Handle>,
}

impl Tasks {
    /// No tasks, and no shutdown yet. Tasks run on the current runtime, wherever they are spawned
    /// from; made outside of a runtime, on that of the caller of [`spawn`](Self::spawn).
    pub fn new() -> Self {
        Self { home: Handle::try_current().ok(), ..Self::default() }
    }

    /// Spawns a tracked task on the runtime of [`Tasks::new`]. It continues when the handle is
    /// dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime, where [`Tasks::new`] was called outside of one too.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match &self.home {
            Some(home) => self.spawn_on(home, task),
            None => self.spawn_here(task),
        }
    }

    /// Spawns a tracked task on `runtime`.
    pub fn spawn_on<F>(&self, runtime: &Handle, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn_on(task, runtime)
    }

    /// Spawns a tracked task on the current runtime, whose timers and sockets it may hold.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn_here<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs `work` in the caller's task for as long as the caller awaits it, and in a tracked task
    /// of the same runtime from the moment that the caller drops the returned future. It costs no
    /// task where no caller leaves.
    ///
    /// Such tasks have no bound of their own: `work` must have a time limit.
    ///
    /// # Cancel safety
    /// Dropping the returned future cancels nothing once it was polled.
    pub fn finish<F>(&self, work: F) -> Finish<Pin<Box<F>>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.finish_unpin(Box::pin(work))
    }

    /// As [`finish`](Self::finish), without a box for work that needs none.
    pub fn finish_unpin<F>(&self, work: F) -> Finish<F>
    where
        F: Future<Output: Send> + Unpin + Send + 'static,
    {
        Finish { work: Some(work), progress: Progress::New, tasks: self.clone() }
    }

    /// Runs `work` on the runtime's threads for blocking work, tracked too.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        match &self.home {
            Some(home) => self.tracker.spawn_blocking_on(work, home),
            None => self.tracker.spawn_blocking(work),
        }
    }

    /// Cancelled when shutdown begins.
    pub fn shutdown_token(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Notifies every task to end. Idempotent.
    pub fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// True once shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Number of running tasks.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }

    /// Returns when every task has ended, once [`drained`](Self::drained) was called. Cancel-safe.
    pub async fn ended(&self) {
        self.tracker.wait().await;
    }

    /// Waits until every task has ended; `false` when some still run at the deadline. It does not
    /// begin the shutdown. Cancel-safe.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}

/// Work that is completed whether or not its caller stays; see [`Tasks::finish`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Finish<F>
where
    F: Future<Output: Send> + Unpin + Send + 'static,
{
    /// `None` once it is complete.
    work: Option<F>,
    progress: Progress,
    tasks: Tasks,
}

/// Progress of the work of a [`Finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It was never polled.
    New,
    /// It is being polled. It keeps this value if the poll panics, and must not be polled again.
    Polled,
    /// It was polled and waits.
    Pending,
}

impl<F> fmt::Debug for Finish<F>
where
    F: Future<Output: Send> + Unpin + Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finish").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl<F> Future for Finish<F>
where
    F: Future<Output: Send> + Unpin + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let Some(work) = this.work.as_mut().filter(|_| this.progress != Progress::Polled) else {
            return Poll::Pending;
        };
        this.progress = Progress::Polled;
        let polled = Pin::new(work).poll(cx);
        match &polled {
            Poll::Ready(_) => this.work = None,
            Poll::Pending => this.progress = Progress::Pending,
        }
        polled
    }
}

impl<F> Drop for Finish<F>
where
    F: Future<Output: Send> + Unpin + Send + 'static,
{
    fn drop(&mut self) {
        // Without a runtime the process ends.
        if self.progress == Progress::Pending
            && let Some(work) = self.work.take()
            && Handle::try_current().is_ok()
        {
            self.tasks.spawn_here(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_finished_though_its_caller_leaves() {
        let tasks = Tasks::new();
        let (begin, begun) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = Box::pin(tasks.finish(async move {
            begun.await.unwrap();
            done.send(7).unwrap();
        }));
        assert!(futures_util::poll!(work.as_mut()).is_pending());
        assert_eq!(tasks.running(), 0, "the caller runs it");
        drop(work);
        assert_eq!(tasks.running(), 1, "shutdown awaits it");
        begin.send(()).unwrap();
        assert_eq!(is_done.await.unwrap(), 7);
        assert!(tasks.drained(Duration::from_secs(30)).await);
    }

    #[tokio::test]
    async fn work_that_never_began_is_dropped_and_finished_work_leaves_no_task() {
        let tasks = Tasks::new();
        drop(tasks.finish(async { unreachable!("it was never polled") }));
        assert_eq!(tasks.finish(async { 7 }).await, 7);
        assert_eq!(tasks.running(), 0);
    }

    #[tokio::test]
    async fn work_that_panicked_is_not_polled_again() {
        let tasks = Tasks::new();
        let mut polls = 0;
        let mut work = tasks.finish_unpin(std::future::poll_fn(move |_| -> Poll<()> {
            polls += 1;
            panic!("poll {polls}")
        }));
        let poll = |work: &mut Finish<_>| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            let poll = || Pin::new(work).poll(&mut cx);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll))
        };
        assert!(poll(&mut work).is_err());
        assert!(poll(&mut work).is_ok_and(|polled| polled.is_pending()));
        drop(work);
        assert_eq!(tasks.running(), 0);
    }

    #[test]
    fn tasks_run_where_they_were_made() {
        let runtime = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let home = runtime("home");
        let other = runtime("other");
        let tasks = home.block_on(async { Tasks::new() });
        let name = || std::thread::current().name().map(str::to_owned);
        other.block_on(async {
            assert_eq!(tasks.spawn(async move { name() }).await.unwrap().unwrap(), "home");
            assert_eq!(tasks.spawn_here(async move { name() }).await.unwrap().unwrap(), "other");
            assert!(tasks.drained(Duration::from_secs(30)).await);
        });
    }

    #[tokio::test]
    async fn drained_waits_for_tasks_and_says_when_it_gave_up() {
        let tasks = Tasks::new();
        let token = tasks.shutdown_token();
        let task = tasks.spawn(async move {
            token.cancelled().await;
            7
        });
        assert!(!tasks.drained(Duration::from_millis(10)).await, "it was not asked to end");
        assert!(!tasks.is_shutting_down());
        tasks.begin_shutdown();
        assert!(tasks.drained(Duration::from_secs(30)).await);
        assert_eq!(task.await.unwrap(), 7);
        assert_eq!(tasks.running(), 0);
    }
}

//! Threads that serve connections, each with a current-thread runtime of its own.
//!
//! On a multi-threaded runtime a request may start on one thread and continue on another, and every
//! wake-up may have to wake a sleeping thread. Here a connection stays on one thread from its first
//! byte to its last (docs/decisions/0047-http-threads.md).

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::{Shared, connection};
use crate::tasks::Tasks;

/// The threads of a listener. Without any, connections are served on the runtime that accepts them.
///
/// The threads end when every task of the [`Tasks`] that they were started with has ended after
/// [`Tasks::drained`]: a task may use timers and sockets of the thread that it began on.
#[derive(Debug, Default)]
pub struct HttpThreads {
    /// The number of references to a runtime is one more than its number of connections.
    runtimes: Vec<Arc<Handle>>,
}

impl HttpThreads {
    /// The largest number of threads.
    pub const MAX: usize = 256;
    const DEFAULT_MAX: usize = 8;

    /// One thread for every `cores_each` cores, at most 8: no store keeps up with more threads than
    /// that.
    pub fn default_count(cores_each: NonZeroUsize) -> NonZeroUsize {
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let count = (cores.get() / cores_each).clamp(1, Self::DEFAULT_MAX);
        NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
    }

    /// Starts the threads, named `http-0`, `http-1` and so on; at most [`Self::MAX`].
    ///
    /// # Errors
    /// Where the system has no thread or no event queue left.
    pub async fn start(count: NonZeroUsize, tasks: &Tasks) -> io::Result<Self> {
        let mut runtimes = Vec::new();
        for number in 0..count.get().min(Self::MAX) {
            runtimes.push(Arc::new(start(number, tasks.clone()).await?));
        }
        Ok(Self { runtimes })
    }

    /// Serves a connection on the thread with the fewest connections, as a tracked task; `slot` is
    /// dropped at its end.
    pub(super) fn serve<T: Send + 'static>(
        &self,
        stream: TcpStream,
        slot: T,
        shared: Arc<Shared>,
        tasks: &Tasks,
    ) {
        let Some(runtime) = self.runtimes.iter().min_by_key(|runtime| Arc::strong_count(runtime))
        else {
            tasks.spawn_here(async move {
                connection::run(stream, &shared).await;
                drop(slot);
            });
            return;
        };
        let counted = Arc::clone(runtime);
        let serving = async move {
            // A socket belongs to the event queue of one runtime.
            match stream.into_std().and_then(TcpStream::from_std) {
                Ok(stream) => connection::run(stream, &shared).await,
                Err(error) => tracing::warn!(%error, "a connection could not be served"),
            }
            drop((counted, slot));
        };
        tasks.spawn_on(runtime, serving);
    }
}

async fn start(number: usize, tasks: Tasks) -> io::Result<Handle> {
    let (sender, receiver) = oneshot::channel();
    let serve = move || match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let sent = sender.send(Ok(runtime.handle().clone()));
            if sent.is_ok() {
                runtime.block_on(tasks.ended());
            }
        }
        Err(error) => drop(sender.send(Err(error))),
    };
    std::thread::Builder::new().name(format!("http-{number}")).spawn(serve)?;
    receiver.await.unwrap_or_else(|_| Err(io::Error::other("an HTTP thread ended at its start")))
}

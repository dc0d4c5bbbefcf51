//! Connections at rest, and those that requests share, by the thread that uses them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use service_kit::clock;
use service_kit::tasks::Tasks;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::Connection;
use super::shared::{Lease, SharedConnection};

/// Connections at rest of one thread.
const IDLE_MAX: usize = 1024;

/// Connections of one thread.
#[derive(Debug, Default)]
struct Own {
    /// HTTP/1, at rest, with its beginning.
    idle: VecDeque<(Instant, Box<Connection>)>,
    /// HTTP/2, at rest or in use.
    shared: Vec<SharedConnection>,
    connecting: Arc<Connecting>,
}

/// Turn to make a connection of HTTP/2: requests that come together share one.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    failures: AtomicU64,
    /// Error of the last failure.
    turn: AsyncMutex<String>,
}

impl Connecting {
    /// Waits for the turn.
    ///
    /// # Errors
    /// The error of the connection that was waited for.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, String> {
        let seen = self.failures.load(Ordering::Relaxed);
        let last = self.turn.lock().await;
        if self.failures.load(Ordering::Relaxed) != seen {
            return Err(last.clone());
        }
        Ok(Turn { failures: &self.failures, last })
    }
}

/// The turn to make a connection.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    failures: &'a AtomicU64,
    last: AsyncMutexGuard<'a, String>,
}

impl Turn<'_> {
    /// Ends the turn without a connection, for those that wait too.
    pub(super) fn failed(mut self, error: &str) {
        error.clone_into(&mut self.last);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Connections, by the thread that they are used on. A socket belongs to the event queue of one
/// thread, so another thread would have to be woken for each of its events.
#[derive(Debug)]
pub(super) struct Pool {
    /// Longest rest after which a connection is used again.
    idle_max: Duration,
    /// Those of HTTP/1 in the order in which their rest began.
    threads: Mutex<HashMap<ThreadId, Own>>,
}

impl Pool {
    pub(super) fn new(idle_max: Duration) -> Self {
        Self { idle_max, threads: Mutex::default() }
    }

    /// Returns `true` if connections are kept at all.
    pub(super) fn is_used(&self) -> bool {
        !self.idle_max.is_zero()
    }

    /// Takes the connection of this thread that rested for the shortest time.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        let mut threads = self.locked();
        let own = threads.get_mut(&std::thread::current().id())?;
        let (since, connection) = own.idle.pop_back()?;
        if clock::now().duration_since(since) <= self.idle_max {
            return Some(connection);
        }
        // The others have rested for longer.
        own.idle.clear();
        None
    }

    /// Keeps a connection.
    pub(super) fn put(&self, connection: Box<Connection>) {
        let mut threads = self.locked();
        let own = threads.entry(std::thread::current().id()).or_default();
        if own.idle.len() < IDLE_MAX {
            own.idle.push_back((clock::now(), connection));
        }
    }

    /// Returns this thread's turn to make a connection of HTTP/2.
    pub(super) fn connecting(&self) -> Arc<Connecting> {
        let mut threads = self.locked();
        Arc::clone(&threads.entry(std::thread::current().id()).or_default().connecting)
    }

    /// Takes a place on a connection of this thread that requests share.
    pub(super) fn lease(&self, cx: &mut Context<'_>) -> Option<Lease> {
        let mut threads = self.locked();
        let own = threads.get_mut(&std::thread::current().id())?;
        let lease = own.shared.iter().find_map(|shared| shared.lease(self.idle_max, cx));
        if lease.is_none() {
            own.shared.retain(|shared| shared.is_kept(self.idle_max));
        }
        lease
    }

    /// Keeps a connection that requests share.
    pub(super) fn put_shared(&self, shared: SharedConnection) {
        self.locked().entry(std::thread::current().id()).or_default().shared.push(shared);
    }

    /// Starts the task that closes connections which rested for too long.
    pub(super) fn start_pruning(pool: &Arc<Self>, tasks: &Tasks) {
        if !pool.is_used() {
            return;
        }
        let idle_max = pool.idle_max;
        let pool = Arc::downgrade(pool);
        let stop = tasks.shutdown_token();
        tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(idle_max) => {}
                }
                let Some(pool) = pool.upgrade() else { return };
                pool.prune();
            }
        });
    }

    fn prune(&self) {
        let now = clock::now();
        for own in self.locked().values_mut() {
            let is_late = |(since, _): &(Instant, _)| now.duration_since(*since) > self.idle_max;
            while own.idle.front().is_some_and(is_late) {
                own.idle.pop_front();
            }
            own.shared.retain(|shared| shared.is_kept(self.idle_max));
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ThreadId, Own>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

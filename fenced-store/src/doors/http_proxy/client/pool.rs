//! Connections at rest, by the thread that they were used on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use service_kit::clock;
use service_kit::tasks::Tasks;

use super::Connection;

/// Connections at rest of one thread.
const IDLE_MAX: usize = 1024;

/// Connections of each thread, with the beginning of their rest.
type Idle = HashMap<ThreadId, VecDeque<(Instant, Box<Connection>)>>;

/// Connections at rest. A socket belongs to the event queue of one thread, so another thread would
/// have to be woken for each of its events.
#[derive(Debug)]
pub(super) struct Pool {
    /// Longest rest after which a connection is used again.
    idle_max: Duration,
    /// In the order in which their rest began.
    idle: Mutex<Idle>,
}

impl Pool {
    pub(super) fn new(idle_max: Duration) -> Self {
        Self { idle_max, idle: Mutex::default() }
    }

    /// Returns `true` if connections are kept at all.
    pub(super) fn is_used(&self) -> bool {
        !self.idle_max.is_zero()
    }

    /// Takes the connection of this thread that rested for the shortest time.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        let mut idle = self.locked();
        let own = idle.get_mut(&std::thread::current().id())?;
        let (since, connection) = own.pop_back()?;
        if clock::now().duration_since(since) <= self.idle_max {
            return Some(connection);
        }
        // The others have rested for longer.
        own.clear();
        None
    }

    /// Keeps a connection.
    pub(super) fn put(&self, connection: Box<Connection>) {
        let mut idle = self.locked();
        let own = idle.entry(std::thread::current().id()).or_default();
        if own.len() < IDLE_MAX {
            own.push_back((clock::now(), connection));
        }
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
        self.locked().retain(|_, own| {
            while own.front().is_some_and(|(since, _)| now.duration_since(*since) > self.idle_max) {
                own.pop_front();
            }
            !own.is_empty()
        });
    }

    fn locked(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

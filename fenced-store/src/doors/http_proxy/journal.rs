//! Durable state of the lanes: marks, and the lanes whose writes may be at the upstream.

mod file;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fence_protocol::LockName;

pub(super) use self::file::FileJournal;
use crate::stores::contract::StoreError;
use crate::stores::redis::lanes::{LaneChange, LanesInRedis, LeadError, Leader};
use crate::verdict::Mark;

use super::term::Term;
use crate::stores::lanes::Opening;

/// Pause before a commit that failed is retried.
const RETRY: Duration = Duration::from_millis(50);

/// An open lane: its lock, its mark, and the writes that may be at the upstream.
pub(super) type OpenLane = (LockName, Option<Mark>, Opening);

/// Changes of one commit.
pub(super) type Changes = HashMap<LockName, Change>;

/// Journal of one term. All clones share it.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    keeper: Keeper,
    queue: Arc<Mutex<Queue>>,
}

/// Place of the journal.
#[derive(Clone, Debug)]
enum Keeper {
    /// A file of this guard alone.
    File(FileJournal),
    /// A Redis that is shared with a standby.
    Redis(SharedJournal),
}

/// Lanes in Redis, changed in the name of a leader. All clones share it.
#[derive(Clone, Debug)]
struct SharedJournal {
    lanes: LanesInRedis,
    leader: Leader,
    term: Term,
    /// Number of the last batch.
    batch: Arc<AtomicU64>,
}

/// Changes that wait for the next commit. Within a lane the last one counts.
#[derive(Debug, Default)]
struct Queue {
    changes: Changes,
    /// A task commits what is queued.
    is_served: bool,
}

/// Change of one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Number of the lane's action.
    pub(super) seq: u64,
    /// Raised mark, if any.
    pub(super) mark: Option<Mark>,
    /// Writes that may be at the upstream; `None` for a closed lane.
    pub(super) open: Option<Opening>,
}

impl Journal {
    /// Journal in a file of this guard alone.
    pub(super) fn in_file(file: FileJournal) -> Self {
        Self { keeper: Keeper::File(file), queue: Arc::default() }
    }

    /// Journal of the leader of a term.
    pub(super) fn of_leader(lanes: LanesInRedis, leader: Leader, term: Term) -> Self {
        let shared = SharedJournal { lanes, leader, term, batch: Arc::default() };
        Self { keeper: Keeper::Redis(shared), queue: Arc::default() }
    }

    /// Fails once the journal cannot be trusted.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.keeper {
            Keeper::File(file) => file.check(),
            Keeper::Redis(_) => Ok(()),
        }
    }

    pub(super) async fn mark(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        match &self.keeper {
            Keeper::File(file) => file.mark(lock).await,
            Keeper::Redis(shared) => shared.lanes.intact_mark(lock).await,
        }
    }

    /// Queues a change behind those of the same lane. Returns `true` if no task commits the queue:
    /// the caller must start one that calls [`next`](Self::next) until it returns `None`.
    pub(super) fn queue(&self, lock: &LockName, change: Change) -> bool {
        let mut queue = self.locked();
        let queued = queue.changes.entry(lock.clone()).or_insert(change);
        let mark = change.mark.or(queued.mark);
        *queued = Change { mark, ..change };
        !std::mem::replace(&mut queue.is_served, true)
    }

    /// Takes the queued changes; `None` if there are none, and then the queue is not served.
    pub(super) fn next(&self) -> Option<Changes> {
        let mut queue = self.locked();
        let changes = std::mem::take(&mut queue.changes);
        queue.is_served = !changes.is_empty();
        queue.is_served.then_some(changes)
    }

    /// Makes changes durable, in one step. One commit at a time.
    ///
    /// # Errors
    /// [`StoreError`], which is final: the journal cannot be trusted any more, or another guard
    /// leads.
    pub(super) async fn commit(&self, changes: Arc<Changes>) -> Result<(), StoreError> {
        match &self.keeper {
            Keeper::File(file) => file.commit(changes).await,
            Keeper::Redis(shared) => shared.commit(&changes).await,
        }
    }

    fn locked(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedJournal {
    /// Makes changes durable; retries until the term ends. One commit at a time.
    async fn commit(&self, changes: &Changes) -> Result<(), StoreError> {
        let batch = self.batch.fetch_add(1, Ordering::Relaxed) + 1;
        let over = || StoreError::Unavailable("the guard's term has ended".to_owned());
        loop {
            let lanes = changes
                .iter()
                .map(|(lock, &Change { mark, open, .. })| (lock, LaneChange { mark, open }));
            let committed = self.term.run(self.lanes.commit(&self.leader, batch, lanes)).await;
            match committed.ok_or_else(over)? {
                Ok(()) => return Ok(()),
                Err(error @ (LeadError::Deposed { .. } | LeadError::Refused(_))) => {
                    let token = self.leader.token;
                    tracing::error!(%token, %error, "a change of lanes was refused; the term ends");
                    self.term.end_because(error.to_string());
                    return Err(over());
                }
                Err(LeadError::Failed(why)) => {
                    tracing::warn!("lanes wait for a commit, which is retried: {why}");
                    self.term.run(tokio::time::sleep(RETRY)).await.ok_or_else(over)?;
                }
            }
        }
    }
}

//! Group commit: what waits while a transaction runs goes into the next one.
//!
//! A lock whose raise has to end or await something is taken out: its operations wait aside until
//! `fence.seal` on a session of its own has returned, and the batches of the others go on.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fence_protocol::{LockName, Namespace};
use postgres_link::{ConnectOptions, LinkError, PostgresConnection, PostgresLink, error_text};
use service_kit::clock;
use service_kit::tasks::Tasks;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::error::SqlState;

use super::batch::BatchStep;
use super::transaction;
use super::verify::{self, ObjectsVerifier};
use crate::stores::contract::{FenceOutcome, Operation, StoreError};
use crate::verdict::Mark;

/// Operations that wait or run; more wait to be queued.
const QUEUE: usize = 1024;
/// Operations that wait aside, of all locks; a lock may have a quarter of what the others left.
const ASIDE: usize = QUEUE / 4 * 3;
/// Operations of a transaction: bounds memory and the wait of the first.
const BATCH_STEPS: usize = 256;
/// Approximate size at which a transaction takes no further operation, in bytes.
const BATCH_BYTES: usize = 32 << 20;
/// Longest wait for a transaction, or a read. After that its connection is closed.
pub(super) const REPLY_WITHIN: Duration = Duration::from_secs(15);
/// Attempts of a transaction that the database rolled back because of another one, and of an
/// operation whose lock has to be sealed first.
const TRIES: usize = 8;
/// Locks that are sealed aside at the same time, each on a session of its own.
const SEALS: usize = 16;
/// The same of locks whose seals are slow.
const SLOW_SEALS: usize = 8;
/// Longest wait for a seal, in which lower sessions and transactions end.
const SEAL_WITHIN: Duration = Duration::from_secs(30);
/// A seal that takes longer is slow: something does not end, and it is begun again among the slow
/// ones, where it keeps no other lock waiting.
const QUICK_SEAL: Duration = Duration::from_secs(5);
/// Time after which a lock whose seal was slow is sealed beside the others again.
const SLOW_FOR: Duration = Duration::from_secs(60);
/// Time that lower transactions have to end by themselves, in milliseconds. One may be another
/// guard's, which is only slow: ending it fails the operations of other locks in its batch.
const SEAL_WAIT_MS: u64 = 3_000;

type Reply = oneshot::Sender<Result<FenceOutcome, StoreError>>;

/// Operation that waits for its transaction.
struct Job {
    step: BatchStep,
    reply: Reply,
    seals: usize,
    _permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Operations of locks that are being sealed.
    aside: BTreeMap<LockName, Vec<Job>>,
    /// Locks whose seal was slow, and when; at most as many as operations wait.
    slow: HashMap<LockName, Instant>,
    is_running: bool,
}

impl Waiting {
    /// Puts a job aside, or fails it.
    fn put_aside(&mut self, lock: LockName, job: Job) {
        let all: usize = self.aside.values().map(Vec::len).sum();
        let jobs = self.aside.entry(lock).or_default();
        if jobs.len() * 4 < ASIDE.saturating_sub(all - jobs.len()) {
            return jobs.push(job);
        }
        let text =
            "too many operations wait for lower sessions or transactions of this lock to end";
        fail(vec![job], &StoreError::LimitReached(text.to_owned()));
    }
}

impl Waiting {
    fn is_slow(&self, lock: &LockName) -> bool {
        self.slow.get(lock).is_some_and(|since| since.elapsed() < SLOW_FOR)
    }

    fn note_slow(&mut self, lock: &LockName) {
        if self.slow.len() >= QUEUE {
            self.slow.retain(|_, since| since.elapsed() < SLOW_FOR);
        }
        if self.slow.len() < QUEUE {
            self.slow.insert(lock.clone(), clock::now());
        }
    }
}

/// Operations before one database, and the task that runs their transactions.
pub(super) struct Queue {
    link: PostgresLink,
    namespace: Namespace,
    verifier: Arc<ObjectsVerifier>,
    tasks: Tasks,
    waiting: Mutex<Waiting>,
    room: Arc<Semaphore>,
    sealing: Semaphore,
    sealing_slowly: Semaphore,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("link", &self.link).finish_non_exhaustive()
    }
}

/// Outcome of a transaction that did not succeed.
enum Failed {
    /// Rolled back because of another transaction; it may be run again.
    Contended(String),
    /// The server refused one of the operations; nothing was applied.
    Refused(StoreError),
    /// Nothing was applied, and no other operation would be now.
    Down(String),
    /// The COMMIT was sent.
    Unknown(String),
}

impl Queue {
    pub(super) fn new(
        link: PostgresLink,
        namespace: Namespace,
        verifier: Arc<ObjectsVerifier>,
        tasks: Tasks,
    ) -> Arc<Self> {
        let waiting = Mutex::default();
        let room = Arc::new(Semaphore::new(QUEUE));
        let [sealing, sealing_slowly] = [SEALS, SLOW_SEALS].map(Semaphore::new);
        Arc::new(Self { link, namespace, verifier, tasks, waiting, room, sealing, sealing_slowly })
    }

    /// Runs a step in a transaction with others; returns once it is committed.
    ///
    /// # Errors
    /// [`StoreError`].
    ///
    /// # Cancel safety
    /// Dropping the future cancels nothing once the step is queued.
    pub(super) async fn submit(
        self: &Arc<Self>,
        step: BatchStep,
    ) -> Result<FenceOutcome, StoreError> {
        let closed = || StoreError::Unavailable("the store is shutting down".to_owned());
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| closed())?;
        let (reply, outcome) = oneshot::channel();
        self.enqueue([Job { step, reply, seals: 0, _permit: permit }]);
        outcome.await.unwrap_or_else(|_| {
            Err(StoreError::Unknown("the transaction ended before it replied".to_owned()))
        })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code panics between two changes that belong together.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, jobs: impl IntoIterator<Item = Job>) {
        let mut waiting = self.lock();
        waiting.jobs.extend(jobs);
        if !waiting.is_running && !waiting.jobs.is_empty() {
            waiting.is_running = true;
            let runner = Runner(Arc::clone(self));
            self.tasks.spawn(async move { runner.run().await });
        }
    }

    /// Takes the jobs of the next transaction; none if no job waits, and the runner ends.
    fn take(&self) -> Vec<Job> {
        let mut waiting = self.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_STEPS && bytes < BATCH_BYTES {
            let Some(job) = waiting.jobs.pop_front() else { break };
            let lock = job.step.fence.as_ref().map(|fence| &fence.lock);
            if let Some(lock) = lock.filter(|lock| waiting.aside.contains_key(*lock)).cloned() {
                waiting.put_aside(lock, job);
                continue;
            }
            bytes += job.step.operation.as_ref().map_or(0, Operation::bytes);
            batch.push(job);
        }
        waiting.is_running = !batch.is_empty();
        batch
    }

    /// Runs a batch. If the server refuses one of several operations, each runs by itself.
    async fn execute(self: &Arc<Self>, batch: Vec<Job>) {
        match self.attempts(&batch).await {
            Ok(outcomes) => self.settle(batch, outcomes),
            Err(Failed::Refused(_)) if batch.len() > 1 => {
                for job in batch {
                    let alone = vec![job];
                    match self.attempts(&alone).await {
                        Ok(outcomes) => self.settle(alone, outcomes),
                        Err(failed) => fail(alone, &failed.error()),
                    }
                }
            }
            Err(failed) => fail(batch, &failed.error()),
        }
    }

    async fn attempts(&self, batch: &[Job]) -> Result<Vec<Option<FenceOutcome>>, Failed> {
        let steps: Vec<BatchStep> = batch.iter().map(|job| job.step.clone()).collect();
        let mut result = self.attempt(&steps).await;
        for _ in 1..TRIES {
            match &result {
                Err(Failed::Contended(reason)) => {
                    tracing::debug!(reason, "a batch is run again");
                    result = self.attempt(&steps).await;
                }
                _ => break,
            }
        }
        result
    }

    async fn attempt(&self, steps: &[BatchStep]) -> Result<Vec<Option<FenceOutcome>>, Failed> {
        let is_committing = AtomicBool::new(false);
        let Self { link, namespace, verifier, .. } = self;
        let run = async |connection: &PostgresConnection| {
            transaction::run(connection, namespace, verifier, steps, &is_committing).await
        };
        match link.run(run).await {
            Ok(Some(outcomes)) => Ok(outcomes),
            Ok(None) => Err(Failed::Down(verify::leave(link))),
            Err(LinkError::Unknown(reason)) if is_committing.load(Ordering::Acquire) => {
                Err(Failed::Unknown(reason))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Replies, and puts aside the jobs whose locks have to be sealed first.
    fn settle(self: &Arc<Self>, batch: Vec<Job>, outcomes: Vec<Option<FenceOutcome>>) {
        let mut aside: HashSet<LockName> = HashSet::new();
        for (job, outcome) in batch.into_iter().zip(outcomes) {
            match (outcome, &job.step.fence) {
                (Some(outcome), fence) => {
                    if let Some(fence) = fence.as_ref().filter(|_| outcome.mark().is_some()) {
                        self.verifier.marks.remember(fence);
                    }
                    // The caller may have gone; the operation stays done.
                    let _ = job.reply.send(Ok(outcome));
                }
                (None, Some(fence)) => {
                    let lock = fence.lock.clone();
                    self.lock().put_aside(lock.clone(), job);
                    aside.insert(lock);
                }
                (None, None) => fail(vec![job], &inconsistent()),
            }
        }
        for lock in aside {
            let queue = Arc::clone(self);
            self.tasks.spawn(async move { queue.seal_aside(lock).await });
        }
    }

    /// Seals a lock, and queues its operations again, which the mark then decides.
    async fn seal_aside(self: Arc<Self>, lock: LockName) {
        let highest = self.lock().aside.get(&lock).and_then(|jobs| {
            let marks = jobs.iter().filter_map(|job| job.step.fence.as_ref());
            marks.map(|fence| fence.presented).max_by_key(|mark| mark.token)
        });
        let sealed = match self.verifier.marks.deciding(&lock, highest) {
            Some(mark) => tokio::time::timeout(SEAL_WITHIN, self.seal(&lock, mark)).await,
            None => Ok(Ok(())),
        };
        let sealed = sealed.unwrap_or_else(|_| Err(format!("no end within {SEAL_WITHIN:?}")));
        let unavailable = |reason: &str| {
            StoreError::Unavailable(format!(
                "sessions or transactions with lower tokens could not be ended: {reason}"
            ))
        };
        let jobs = self.lock().aside.remove(&lock).unwrap_or_default();
        if let Err(reason) = sealed {
            return fail(jobs, &unavailable(&reason));
        }
        let (tried, mut again): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.seals >= TRIES);
        fail(tried, &unavailable("there were new ones each time"));
        again.iter_mut().for_each(|job| job.seals += 1);
        self.enqueue(again);
    }

    /// Seals a lock beside others, or among the slow ones.
    async fn seal(&self, lock: &LockName, mark: Mark) -> Result<(), String> {
        let closed = |error: tokio::sync::AcquireError| error.to_string();
        if !self.lock().is_slow(lock) {
            let _permit = self.sealing.acquire().await.map_err(closed)?;
            match self.seal_within(QUICK_SEAL, lock, mark).await {
                Err(refusal) if refusal.is_slow => self.lock().note_slow(lock),
                sealed => return sealed.map_err(|refusal| refusal.reason),
            }
        }
        let _permit = self.sealing_slowly.acquire().await.map_err(closed)?;
        let sealed = self.seal_within(SEAL_WITHIN, lock, mark).await;
        if sealed.is_ok() {
            self.lock().slow.remove(lock);
        }
        sealed.map_err(|refusal| refusal.reason)
    }

    async fn seal_within(
        &self,
        limit: Duration,
        lock: &LockName,
        mark: Mark,
    ) -> Result<(), SealRefusal> {
        let options =
            ConnectOptions { statement_timeout: Some(limit), ..ConnectOptions::default() };
        let connection = self.link.target().connect(&options, &self.tasks).await;
        let connection = connection.map_err(|reason| SealRefusal { reason, is_slow: false })?;
        let Mark { token, lease } = mark;
        tracing::info!(%lock, %token, "ending sessions and transactions with lower tokens");
        // Namespaces and locks have no character that ends a literal.
        let sql = format!(
            "SELECT fence.seal('{lock}', {token}, '{lease}', '{}', {SEAL_WAIT_MS})",
            self.namespace
        );
        let Err(error) = connection.client().simple_query(&sql).await else { return Ok(()) };
        match error.code().map(SqlState::code) {
            // Stale or a collision by now: the next transaction finds the mark.
            Some("FE412" | "FE409") => Ok(()),
            code => {
                // The detail names the sessions that do not end.
                let detail = error.as_db_error().and_then(|refusal| refusal.detail());
                let reason = match detail {
                    Some(detail) => format!("{} ({detail})", error_text(&error)),
                    None => error_text(&error),
                };
                Err(SealRefusal { reason, is_slow: code == Some("57014") })
            }
        }
    }
}

/// Why a lock was not sealed.
struct SealRefusal {
    reason: String,
    /// It was cancelled at its time limit.
    is_slow: bool,
}

/// The task that runs transactions while there is work.
struct Runner(Arc<Queue>);

impl Runner {
    async fn run(&self) {
        loop {
            let batch = self.0.take();
            if batch.is_empty() {
                return;
            }
            self.0.execute(batch).await;
        }
    }
}

impl Drop for Runner {
    /// Lets the next job start another runner if this one panicked or was cancelled.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().is_running = false;
        }
    }
}

impl Failed {
    fn error(self) -> StoreError {
        match self {
            Self::Contended(reason) => StoreError::Unavailable(format!(
                "other transactions came in between {TRIES} times: {reason}"
            )),
            Self::Refused(error) => error,
            Self::Down(reason) => StoreError::Unavailable(reason),
            Self::Unknown(reason) => StoreError::Unknown(reason),
        }
    }
}

/// Sorts what failed before the COMMIT, and a refusal of the server, which has rolled the
/// transaction back.
fn failed(error: LinkError) -> Failed {
    let text = error.to_string();
    let LinkError::Server { code, .. } = error else { return Failed::Down(text) };
    match code.as_str() {
        // Serialization, deadlock, and the wait for a row.
        "40001" | "40P01" | "55P03" => Failed::Contended(text),
        // The disk or the memory is full, or the object is too large.
        "53100" | "53200" | "54000" => Failed::Refused(StoreError::LimitReached(text)),
        _ => Failed::Refused(StoreError::Unavailable(text)),
    }
}

fn inconsistent() -> StoreError {
    StoreError::Unavailable("the object was changed while it was read".to_owned())
}

fn fail(jobs: Vec<Job>, error: &StoreError) {
    for job in jobs {
        let _ = job.reply.send(Err(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts as many operations of a lock aside as there is room for; returns their number.
    fn fill(waiting: &mut Waiting, lock: &str, room: &Arc<Semaphore>) -> usize {
        let lock: LockName = lock.parse().unwrap();
        for _ in 0..room.available_permits() {
            let permit = Arc::clone(room).try_acquire_owned().unwrap();
            let step = BatchStep { fence: None, operation: None, once: None };
            let job = Job { step, reply: oneshot::channel().0, seals: 0, _permit: permit };
            waiting.put_aside(lock.clone(), job);
        }
        waiting.aside[&lock].len()
    }

    #[test]
    fn a_lock_under_seal_leaves_room_for_others() {
        let room = Arc::new(Semaphore::new(QUEUE));
        let mut waiting = Waiting::default();
        assert_eq!(fill(&mut waiting, "a", &room), 192);
        assert_eq!(fill(&mut waiting, "b", &room), 144);
        assert_eq!(fill(&mut waiting, "a", &room), 192);
        for number in 0..100 {
            fill(&mut waiting, &format!("c/{number}"), &room);
        }
        assert_eq!(room.available_permits(), QUEUE - ASIDE);
    }
}

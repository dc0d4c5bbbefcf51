//! Group commit: one thread owns all writing to a redb file.
//!
//! Whatever waits when the thread is free goes into one transaction and is made durable by one
//! commit; only then is any of it answered. The busier the guard, the more requests share an fsync.
//!
//! A commit that fails leaves it open what reached the disk, and trying again after a failed fsync
//! can lie (the kernel may have dropped the pages that it could not write). So the first failure
//! *poisons* the file: what was in that transaction is answered with "unknown", everything after it
//! with "unavailable", until an operator has restarted the process.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use redb::{Database, Durability, ReadTransaction, WriteTransaction};
use service_kit::health::{Health, Status};
use tokio::sync::{mpsc, oneshot};

use crate::store::StoreError;

pub(crate) mod marks;
pub(crate) use service_kit::data_file::Cause;
pub use service_kit::data_file::FolderError;

/// Jobs that wait for the writer; whoever comes when it is full waits to be let in.
const QUEUE: usize = 1024;
/// A transaction holds at most this many jobs, so that memory and the wait of the first stay
/// bounded.
const BATCH_JOBS: usize = 512;
/// A transaction takes no further job once it has written about this many bytes.
const BATCH_BYTES: usize = 32 << 20;

/// The name of the readiness check.
const CHECK: &str = "data-folder";

/// What a job did inside the transaction.
#[derive(Debug)]
pub(crate) struct Done<T> {
    /// The answer, given once the transaction is durable.
    pub(crate) answer: T,
    /// Whether anything was written; a transaction without a change is not committed.
    pub(crate) changed: bool,
}

impl<T> Done<T> {
    /// An answer without a change.
    pub(crate) fn unchanged(answer: T) -> Self {
        Self { answer, changed: false }
    }
}

/// Something to do inside the shared transaction.
trait Job: Send {
    fn run(&mut self, transaction: &WriteTransaction) -> Result<bool, Cause>;
    /// About how many bytes it writes.
    fn bytes(&self) -> usize;
    fn committed(self: Box<Self>);
    fn failed(self: Box<Self>, error: StoreError);
}

struct Work<F, T> {
    work: Option<F>,
    bytes: usize,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Job for Work<F, T>
where
    F: FnOnce(&WriteTransaction) -> Result<Done<T>, Cause> + Send,
    T: Send,
{
    fn run(&mut self, transaction: &WriteTransaction) -> Result<bool, Cause> {
        let Some(work) = self.work.take() else { return Ok(false) };
        let done = work(transaction)?;
        self.answer = Some(done.answer);
        Ok(done.changed)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn committed(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // Whoever asked may have gone; what was done stays done.
            let _ = self.reply.send(Ok(answer));
        }
    }

    fn failed(self: Box<Self>, error: StoreError) {
        let _ = self.reply.send(Err(error));
    }
}

/// A redb file with its writer. Dropping it ends the writer, after what waits has been committed,
/// and closes the file.
#[derive(Debug)]
pub(crate) struct Committer {
    database: Arc<Database>,
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    poison: Arc<Poison>,
    writer: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
}

/// Set once, by the first failure; makes the service's readiness fail from then on.
#[derive(Debug)]
struct Poison {
    set: AtomicBool,
    reason: Mutex<String>,
    health: Health,
}

impl Poison {
    fn new(health: &Health) -> Self {
        health.set(CHECK, Status::Ok);
        Self { set: AtomicBool::new(false), reason: Mutex::default(), health: health.clone() }
    }

    fn set(&self, reason: String) {
        self.health.set(CHECK, Status::Failing(format!("{reason}; restart the process")));
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.set.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), StoreError> {
        if !self.set.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Err(StoreError::Unavailable(format!(
            "the data folder failed and is not used any more until a restart: {reason}"
        )))
    }
}

impl Committer {
    /// Opens or makes `folder/file`, and lets `prepare` make the tables in a first transaction.
    ///
    /// # Errors
    /// [`FolderError`] where the folder cannot be made or written, is in use by another process, or
    /// is damaged.
    pub(crate) fn open(
        folder: &Path,
        file: &str,
        health: &Health,
        prepare: impl FnOnce(&WriteTransaction) -> Result<(), Cause>,
    ) -> Result<Self, FolderError> {
        let path = folder.join(file);
        let database = service_kit::data_file::open(folder, &path, prepare)?;
        Self::start(database, path, health)
    }

    /// Starts the writer of an open file.
    fn start(database: Database, path: PathBuf, health: &Health) -> Result<Self, FolderError> {
        let database = Arc::new(database);
        let poison = Arc::new(Poison::new(health));
        let (jobs, waiting) = mpsc::channel(QUEUE);
        let writer = Writer { database: Arc::clone(&database), poison: Arc::clone(&poison) };
        let thread = std::thread::Builder::new()
            .name("commit".to_owned())
            .spawn(move || writer.run(waiting))
            .map_err(|error| FolderError::new(&path, error.to_string()))?;
        let writer = Mutex::new(Some(thread));
        Ok(Self { database, jobs: Some(jobs), poison, writer, path })
    }

    /// The file, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails once the file is poisoned.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the reason.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.poison.check()
    }

    /// Runs `work` in a transaction with others and answers once it is durable. `bytes` says about
    /// how much it writes.
    ///
    /// # Errors
    /// `Unavailable` where it was not applied, `Unknown` where the commit itself failed.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&WriteTransaction) -> Result<Done<T>, Cause> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.poison.check()?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Work { work: Some(work), bytes, answer: None, reply });
        let closed = || StoreError::Unavailable("the store is shutting down".to_owned());
        let jobs = self.jobs.as_ref().ok_or_else(closed)?;
        jobs.send(job).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::Unknown("the writer ended before it answered".to_owned()))
        })
    }

    /// Runs `work` over a snapshot of what is durable, on a thread that may wait for the disk.
    ///
    /// # Errors
    /// `Unavailable` where the file is poisoned or cannot be read.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Cause> + Send + 'static,
    ) -> Result<T, StoreError> {
        use redb::ReadableDatabase as _;
        self.poison.check()?;
        let database = Arc::clone(&self.database);
        let read = move || work(&database.begin_read()?);
        let failed = |error: &dyn std::fmt::Display| {
            StoreError::Unavailable(format!("the data folder cannot be read: {error}"))
        };
        match tokio::task::spawn_blocking(read).await {
            Ok(result) => result.map_err(|error| failed(&error)),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.jobs = None;
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(path = %self.path.display(), "the writer thread panicked");
        }
    }
}

struct Writer {
    database: Arc<Database>,
    poison: Arc<Poison>,
}

impl Drop for Writer {
    /// redb panics on some kinds of damage: then nothing can be answered any more either.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.poison.set("the writer panicked; the file may be damaged".to_owned());
        }
    }
}

impl Writer {
    fn run(&self, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
        while let Some(first) = waiting.blocking_recv() {
            if let Err(error) = self.poison.check() {
                first.failed(error);
                continue;
            }
            self.batch(first, &mut waiting);
        }
    }

    fn batch(&self, first: Box<dyn Job>, waiting: &mut mpsc::Receiver<Box<dyn Job>>) {
        let mut done = Vec::new();
        let transaction = match self.begin() {
            Ok(transaction) => transaction,
            Err(error) => return self.abandon(vec![first], &error, Poisoning::BeforeCommit),
        };
        let (mut changed, mut bytes, mut next) = (false, 0, Some(first));
        while let Some(mut job) = next {
            bytes += job.bytes();
            let result = job.run(&transaction);
            done.push(job);
            match result {
                Ok(wrote) => changed |= wrote,
                // Part of the job may be in the transaction: none of it may be committed.
                Err(error) => return self.abandon(done, &error, Poisoning::BeforeCommit),
            }
            next = match done.len() < BATCH_JOBS && bytes < BATCH_BYTES {
                true => waiting.try_recv().ok(),
                false => None,
            };
        }
        let end = if changed {
            transaction.commit().map_err(Cause::from)
        } else {
            transaction.abort().map_err(Cause::from)
        };
        match end {
            Ok(()) => done.into_iter().for_each(Job::committed),
            Err(error) => self.abandon(done, &error, Poisoning::InCommit),
        }
    }

    fn begin(&self) -> Result<WriteTransaction, Cause> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }

    fn abandon(&self, jobs: Vec<Box<dyn Job>>, error: &Cause, when: Poisoning) {
        tracing::error!(%error, ?when, "writing to the data folder failed; it is not used any more");
        self.poison.set(error.to_string());
        for job in jobs {
            job.failed(match when {
                Poisoning::BeforeCommit => {
                    StoreError::Unavailable(format!("the data folder failed: {error}"))
                }
                Poisoning::InCommit => {
                    StoreError::Unknown(format!("the commit to the data folder failed: {error}"))
                }
            });
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Poisoning {
    /// Nothing of the transaction can have become durable.
    BeforeCommit,
    /// All of it may have, or none.
    InCommit,
}

#[cfg(test)]
mod tests;

//! Group commit: one thread owns all writing to a redb file.
//!
//! All jobs that wait when the thread is free go into one transaction and become durable by one
//! commit; only then does any get a reply. The busier the guard, the more requests share an fsync.
//! Clients that were just answered by one commit send their next requests soon and at different
//! moments: the thread [lingers](linger) for as many as the last commit had.
//!
//! After a failed commit it is unknown what reached the disk, and a retry after a failed fsync can
//! lie (the kernel may have dropped the pages that it could not write). So the first failure
//! *poisons* the file: the jobs of that transaction get `Unknown`, all later ones `Unavailable`,
//! until the process is restarted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use redb::{Database, Durability, ReadTransaction, WriteTransaction};
use service_kit::clock;
use service_kit::health::{Health, Status};
use tokio::sync::{mpsc, oneshot};

use self::linger::Linger;
use super::contract::StoreError;

mod linger;
pub(crate) mod marks;
pub(crate) use service_kit::data_file::Cause;
pub use service_kit::data_file::FolderError;

/// Maximum number of jobs that wait for the writer; more wait to be queued.
const QUEUE: usize = 1024;
/// Maximum number of jobs in a transaction: bounds memory and the wait of the first.
const BATCH_JOBS: usize = 512;
/// Approximate size at which a transaction takes no further job, in bytes.
const BATCH_BYTES: usize = 32 << 20;

/// Name of the readiness check.
const CHECK: &str = "data-folder";

/// Result of a job inside the transaction.
#[derive(Debug)]
pub(crate) struct Done<T> {
    /// Reply, sent once the transaction is durable.
    pub(crate) answer: T,
    /// `true` if anything was written; a transaction without a change is not committed.
    pub(crate) changed: bool,
}

impl<T> Done<T> {
    /// Makes a reply without a change.
    pub(crate) fn unchanged(answer: T) -> Self {
        Self { answer, changed: false }
    }
}

/// A job inside the shared transaction.
trait Job: Send {
    fn run(&mut self, transaction: &WriteTransaction) -> Result<bool, Cause>;
    /// Approximate number of bytes that it writes.
    fn bytes(&self) -> usize;
    /// Replies once the transaction has ended, durable or not.
    fn reply(self: Box<Self>, end: Result<(), StoreError>);
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

    fn reply(self: Box<Self>, end: Result<(), StoreError>) {
        let Self { answer, reply, .. } = *self;
        if let Some(answer) = end.map(|()| answer).transpose() {
            // The caller may have gone; the job stays done.
            let _ = reply.send(answer);
        }
    }
}

/// A redb file with its writer. On drop the writer commits the queued jobs and ends, and the file
/// is closed.
#[derive(Debug)]
pub(crate) struct Committer {
    database: Arc<Database>,
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    poison: Arc<Poison>,
    writer: Option<JoinHandle<()>>,
    path: PathBuf,
}

/// Poisoned state of the file: set once, by the first failure; the readiness check fails from then
/// on.
#[derive(Debug)]
struct Poison {
    reason: OnceLock<String>,
    health: Health,
}

impl Poison {
    fn new(health: &Health) -> Self {
        health.set(CHECK, Status::Ok);
        Self { reason: OnceLock::new(), health: health.clone() }
    }

    fn set(&self, reason: String) {
        self.health.set(CHECK, Status::Failing(format!("{reason}; restart the process")));
        // A later failure changes nothing.
        let _ = self.reason.set(reason);
    }

    fn check(&self) -> Result<(), StoreError> {
        let Some(reason) = self.reason.get() else { return Ok(()) };
        Err(StoreError::Unavailable(format!(
            "the data folder failed and is not used until a restart: {reason}"
        )))
    }
}

impl Committer {
    /// Opens or creates `folder/file`; `prepare` makes the tables in a first transaction.
    ///
    /// # Errors
    /// [`FolderError`] if the folder cannot be created or written, is in use by another process, or
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
        let writer = std::thread::Builder::new()
            .name("commit".to_owned())
            .spawn(move || writer.run(waiting))
            .map_err(|error| FolderError::new(&path, error.to_string()))?;
        Ok(Self { database, jobs: Some(jobs), poison, writer: Some(writer), path })
    }

    /// Returns the file's path, for messages.
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

    /// Runs `work` in a transaction with others and returns once it is durable. `bytes` is the
    /// approximate number of bytes that it writes.
    ///
    /// # Errors
    /// `Unavailable` if it was not applied, `Unknown` if the commit itself failed.
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
            Err(StoreError::Unknown("the writer ended before it replied".to_owned()))
        })
    }

    /// Runs `work` over a snapshot of the durable state, on a thread that may block.
    ///
    /// # Errors
    /// `Unavailable` if the file is poisoned or cannot be read.
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
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!(path = %self.path.display(), "the writer thread panicked");
        }
    }
}

struct Writer {
    database: Arc<Database>,
    poison: Arc<Poison>,
}

impl Drop for Writer {
    /// Poisons the file if redb panicked, as it does on some kinds of damage.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.poison.set("the writer panicked; the file may be damaged".to_owned());
        }
    }
}

impl Writer {
    fn run(&self, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
        let mut linger = Linger::default();
        while let Some(first) = waiting.blocking_recv() {
            if let Err(error) = self.poison.check() {
                first.reply(Err(error));
                continue;
            }
            self.batch(first, &mut waiting, &mut linger);
        }
    }

    fn batch(
        &self,
        first: Box<dyn Job>,
        waiting: &mut mpsc::Receiver<Box<dyn Job>>,
        linger: &mut Linger,
    ) {
        let mut done = Vec::new();
        let transaction = match self.begin() {
            Ok(transaction) => transaction,
            Err(error) => return self.abandon(vec![first], &error, Poisoning::BeforeCommit),
        };
        let mut changed = false;
        let mut bytes = 0;
        let mut next = Some(first);
        linger.begin();
        while let Some(mut job) = next {
            bytes += job.bytes();
            let result = job.run(&transaction);
            done.push(job);
            match result {
                Ok(wrote) => changed |= wrote,
                // The transaction may hold part of the job: do not commit it.
                Err(error) => return self.abandon(done, &error, Poisoning::BeforeCommit),
            }
            next = match done.len() < BATCH_JOBS && bytes < BATCH_BYTES {
                true => linger.next(waiting, done.len()),
                false => None,
            };
        }
        let committing = clock::now();
        let end = if changed {
            transaction.commit().map_err(Cause::from)
        } else {
            transaction.abort().map_err(Cause::from)
        };
        linger.committed(done.len(), committing.elapsed());
        match end {
            Ok(()) => done.into_iter().for_each(|job| job.reply(Ok(()))),
            Err(error) => self.abandon(done, &error, Poisoning::InCommit),
        }
    }

    fn begin(&self) -> Result<WriteTransaction, Cause> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction)
    }

    fn abandon(&self, jobs: Vec<Box<dyn Job>>, error: &Cause, when: Poisoning) {
        tracing::error!(%error, ?when, "writing to the data folder failed; it is not used until a restart");
        self.poison.set(error.to_string());
        for job in jobs {
            job.reply(Err(match when {
                Poisoning::BeforeCommit => {
                    StoreError::Unavailable(format!("the data folder failed: {error}"))
                }
                Poisoning::InCommit => {
                    StoreError::Unknown(format!("the commit to the data folder failed: {error}"))
                }
            }));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Poisoning {
    /// Nothing of the transaction can be durable.
    BeforeCommit,
    /// All of it may be durable, or none.
    InCommit,
}

#[cfg(test)]
mod tests;

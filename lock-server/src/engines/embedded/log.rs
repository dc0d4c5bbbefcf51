//! An append-only log of key-value changes with snapshots, in a folder of its own.
//!
//! Batches are appended by any number of callers; one thread makes all that wait durable with one
//! write and one sync. A second thread replaces old files by a snapshot of what lives. After a
//! crash the log has every acknowledged batch, and of the last unacknowledged ones all or none.
//!
//! What cannot be recognised: damage of the very last write that the disk acknowledged looks like a
//! write that a crash cut short, and is removed with a log line.

mod disk;
mod format;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod keeper;
mod names;
mod reader;
mod recovery;
mod segment;
mod writer;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use prometheus_client::metrics::histogram::Histogram;
use service_kit::data_file::FolderError;
use service_kit::metrics::Metrics;
use tokio::sync::oneshot;

use self::disk::{Disk, Folder};
use self::keeper::{Exchange, Keeper};
pub(crate) use self::reader::Entries;
use self::writer::{Queue, Writer};
use crate::store::figures::latencies;

/// File whose lock says that a process uses the folder.
const LOCK_FILE: &str = "lock";

/// A key with its new value; `None` removes the key.
pub(crate) type Change = (Bytes, Option<Bytes>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Length of a file of the log, reserved in advance.
    pub(crate) segment_bytes: u64,
    /// Length of all files together below which no snapshot is made. Above it, one is made when
    /// they are four times as long as the last snapshot.
    pub(crate) snapshot_bytes_min: u64,
    /// Bytes of batches that may wait for the disk; at most 2 GiB.
    pub(crate) waiting_bytes_max: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 8 << 20, snapshot_bytes_min: 8 << 20, waiting_bytes_max: 64 << 20 }
    }
}

/// A batch that was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AppendError {
    /// The batch is not in the log; try again later.
    #[error("too many batches wait for the disk")]
    Busy,
    /// The batch is not in the log, and would not be accepted later.
    #[error("a batch of {bytes} bytes is above the limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
    /// The batch is not in the log, nor is any that was appended behind it before this was
    /// returned. Later batches are accepted.
    #[error("the batch could not be written: {0}")]
    NotWritten(Arc<str>),
    /// The batch may be in the log after a restart. Later batches are refused.
    #[error("it is unknown whether the batch was written: {0}")]
    Unknown(Arc<str>),
    /// The batch is not in the log: an earlier one ended as [`Unknown`](Self::Unknown).
    #[error("the log failed and takes nothing until a restart: {0}")]
    Poisoned(Arc<str>),
}

/// Resolves when the batch is durable, or with the reason why it is not. Dropping it does not
/// withdraw the batch.
#[derive(Debug)]
#[must_use = "a batch is durable once its ticket resolves"]
pub(crate) struct Ticket(oneshot::Receiver<Result<(), AppendError>>);

impl Future for Ticket {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = |_| Err(AppendError::Unknown("the writer stopped".into()));
        Pin::new(&mut self.0).poll(context).map(|result| result.unwrap_or_else(lost))
    }
}

/// An open log. Dropping it writes what waits, and returns when that is durable.
#[derive(Debug)]
pub(crate) struct Log {
    queue: Arc<Queue>,
    exchange: Arc<Exchange>,
    syncs: Histogram,
    /// The writer, then the keeper.
    threads: Vec<JoinHandle<()>>,
    _lock: Option<File>,
}

impl Log {
    /// Opens the log in `folder`, or makes a new one.
    ///
    /// # Errors
    /// [`FolderError`], which names the path and what to do, where another process uses the folder,
    /// a file is damaged or of another version, or the system refuses. Nothing was changed then.
    pub(crate) fn open(folder: &Path, options: LogOptions) -> Result<(Self, Entries), FolderError> {
        fs::create_dir_all(folder).map_err(|error| FolderError::of_io(folder, &error))?;
        let lock = lock(folder)?;
        let (mut log, restored) = Self::open_on(Arc::new(Folder::new(folder)), options)?;
        log._lock = Some(lock);
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // Makes the name of a new folder durable. The parent may belong to another user; then
            // the folder existed before.
            let _ = Folder::new(parent).sync_folder();
        }
        Ok((log, restored))
    }

    fn open_on(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, Entries), FolderError> {
        let found = recovery::recover(&*disk, &options)?;
        let queue = Arc::new(Queue::new(options.waiting_bytes_max));
        let exchange = Arc::new(Exchange::default());
        let keeper = Keeper::new(
            disk.clone(),
            options,
            exchange.clone(),
            found.snapshot,
            found.closed,
            found.active.index,
        );
        let syncs = latencies();
        let writer = Writer::new(
            queue.clone(),
            exchange.clone(),
            found.active,
            options.segment_bytes,
            found.next_sequence,
            syncs.clone(),
        );
        // Made first: dropping it stops the first thread if the second does not start.
        let mut log = Self { queue, exchange, syncs, threads: Vec::new(), _lock: None };
        log.spawn(&*disk, "log-writer", move || writer.run())?;
        log.spawn(&*disk, "log-keeper", move || keeper.run())?;
        Ok((log, found.entries))
    }

    /// Appends a batch behind all that were appended before: after a crash the log has all of it or
    /// none. Does not block; the batch is durable when the ticket resolves.
    ///
    /// # Errors
    /// [`AppendError::Busy`], [`AppendError::TooLarge`], [`AppendError::Poisoned`].
    pub(crate) fn append(&self, batch: &[Change]) -> Result<Ticket, AppendError> {
        self.queue.push(batch).map(Ticket)
    }

    /// Shows how long it takes to write a batch and make it durable.
    pub(crate) fn register(&self, metrics: &Metrics) {
        metrics.register(
            "lock_fsync_seconds",
            "Time to append a batch to the log and make it durable (embedded store)",
            self.syncs.clone(),
        );
    }

    fn spawn(
        &mut self,
        disk: &dyn Disk,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), FolderError> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|error| FolderError::of_io(&disk.path(""), &error))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.close();
        self.exchange.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes the lock that says that this process uses the folder.
fn lock(folder: &Path) -> Result<File, FolderError> {
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|error| FolderError::of_io(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(FolderError::new(
            folder,
            "another process is using it; stop that one, or name another folder",
        )),
        Err(TryLockError::Error(error)) => Err(FolderError::of_io(&path, &error)),
    }
}

#[cfg(test)]
mod tests;

//! Leases in a file: one redb database, written by one thread, one fsync for a batch of requests.
//!
//! The journal holds, per lock, the live lease and the ids that ended lately, and the namespace's
//! counter: all of a batch in one transaction. Moments are not stored: after a restart a lease gets
//! its full time again, because nobody knows how long the process was away.

mod journal;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::{LeaseId, LockName, Ttl};
use service_kit::clock::Clock;

use super::engine::Engine;
use super::{Acquire, Grant, Limits, ListQuery, LockStore, StoreError};
use crate::rules::Machine;

/// The file in the data folder.
const FILE: &str = "locks.redb";

/// The `embedded:DIR` store.
#[derive(Debug)]
pub struct EmbeddedStore(Engine);

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// Another process has it.
    #[error(
        "the data folder {0} is in use by another process; stop that one, or give this one another folder with --store embedded:DIR"
    )]
    InUse(PathBuf),
    /// The system refuses.
    #[error("the data folder {0} cannot be used: {1}; check that it exists and may be written")]
    Io(PathBuf, std::io::Error),
    /// What is in the file is not what was written.
    #[error(
        "the data file {0} is damaged: {1}; nothing was changed. Restore it from a backup, or move it away to start anew (tokens of this namespace then begin again: keep its guards' marks in mind)"
    )]
    Damaged(PathBuf, String),
}

impl EmbeddedStore {
    /// Opens or makes the database in `dir` and restores every lock.
    ///
    /// # Errors
    /// [`EmbeddedError`], which names the folder.
    pub fn open(dir: &Path, limits: Limits, clock: Arc<dyn Clock>) -> Result<Self, EmbeddedError> {
        let io_error = |error| EmbeddedError::Io(dir.to_owned(), error);
        make_folder(dir).map_err(io_error)?;
        let mut machine = Machine::new(0, limits);
        let journal = journal::RedbJournal::open(&dir.join(FILE), &mut machine, &*clock)?;
        sync_folder(dir).map_err(io_error)?;
        let engine = Engine::start(machine, journal, clock).map_err(io_error)?;
        Ok(Self(engine))
    }
}

/// Makes the folder, and makes its own name durable in the folder above it.
fn make_folder(dir: &Path) -> std::io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => Ok(()),
    }
}

/// A new file's name is durable only when its folder is.
fn sync_folder(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

super::engine::serve_through_engine!(EmbeddedStore, "embedded");

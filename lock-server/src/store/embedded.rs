//! Leases in a file: one redb database, written by one thread, one fsync for a batch of requests.
//!
//! The journal holds, per lock, the live lease and the ids that ended lately, and the namespace's
//! counter: all of a batch in one transaction. Moments are not stored: after a restart a lease gets
//! its full time again, because nobody knows how long the process was away.

mod journal;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};
use service_kit::clock::Clock;
use service_kit::data_file::FolderError;
use service_kit::health::Health;

use super::engine::Engine;
use super::{
    Acquire, Grant, Limits, ListQuery, LockStore, NewSession, Revoke, SessionStore, StoreError,
};
use lease::Machine;

/// The file in the data folder.
const FILE: &str = "locks.redb";

/// The `embedded:DIR` store.
#[derive(Debug)]
pub struct EmbeddedStore(Engine);

impl EmbeddedStore {
    /// Whether `dir` holds no database yet.
    pub fn is_new(dir: &Path) -> bool {
        !dir.join(FILE).exists()
    }

    /// Opens or makes the database in `dir` and restores every lock. The first token of a new one
    /// is above `begins_at`.
    ///
    /// # Errors
    /// [`FolderError`], which names the path and what to do.
    pub fn open(
        dir: &Path,
        begins_at: u64,
        limits: Limits,
        clock: Arc<dyn Clock>,
        health: Health,
    ) -> Result<Self, FolderError> {
        let mut machine = Machine::new(0, limits);
        let file = dir.join(FILE);
        let journal = journal::RedbJournal::open(dir, &file, begins_at, &mut machine, &*clock)?;
        let engine = Engine::start(machine, journal, clock, health)
            .map_err(|error| FolderError::new(dir, error.to_string()))?;
        Ok(Self(engine))
    }
}

super::engine::serve_through_engine!(EmbeddedStore, "embedded");

//! Leases in files: the driver over an append-only log, one fsync for a batch of requests.
//!
//! The log holds, per lock, the live leases and the ids that ended lately; per session, the
//! session; and the namespace's counter: all of a batch together. After a restart leases get their
//! full time again, because nothing says how long the process was away; so a renewal is not
//! written.

pub(crate) mod log;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fence_protocol::{LockName, SessionId};
use lease::{Machine, Reading, Record, Session, StoredRecord, StoredSession};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::data_file::FolderError;

use self::log::{Log, LogOptions};
use super::contract::{Batch, Change, Committed, Key, RecordStore};
use crate::driver::Driver;
use crate::store::{Limits, StoreError};

/// The key of the namespace's counter.
const COUNTER: &[u8] = b"c";
const LOCK: u8 = b'l';
const SESSION: u8 = b's';

/// The folder of a namespace that is read, and not served yet.
#[derive(Debug)]
pub struct Opened {
    log: Log,
    entries: log::Entries,
    folder: std::path::PathBuf,
}

/// Opens the log in `folder` or makes one.
///
/// # Errors
/// [`FolderError`], which names the path and what to do.
pub fn open(folder: &Path) -> Result<Opened, FolderError> {
    let (log, entries) = Log::open(folder, LogOptions::default())?;
    Ok(Opened { log, entries, folder: folder.to_owned() })
}

impl Opened {
    /// True if nothing was ever written here. It may be new, or what it held is lost.
    pub fn is_new(&self) -> bool {
        !self.entries.contains_key(COUNTER)
    }

    /// Serves what was read. The first token of a folder that is new is above `begins_at`.
    ///
    /// # Errors
    /// [`FolderError`] where an entry cannot be read.
    pub fn serve(self, begins_at: u64, limits: Limits, kit: &Kit) -> Result<Driver, FolderError> {
        let counter = match self.entries.get(COUNTER) {
            None => begins_at,
            Some(bytes) => self.entry(COUNTER, counter_of(bytes))?,
        };
        let mut machine = Machine::new(counter, limits);
        let now_ms = kit.clock.monotonic_ms();
        for is_session in [true, false] {
            for (key, value) in &self.entries {
                match (key.split_first(), is_session) {
                    (Some((&SESSION, id)), true) => {
                        let (id, session) = self.entry(key, read_session(id, value, now_ms))?;
                        machine.restore_session(id, session);
                    }
                    (Some((&LOCK, lock)), false) => {
                        let (lock, record) = self.entry(key, read_record(lock, value, now_ms))?;
                        machine.restore(now_ms, lock, record);
                    }
                    _ => {}
                }
            }
        }
        machine.forget_growth();
        let is_new = self.is_new();
        self.log.register(&kit.metrics);
        let records = LoggedRecords { log: self.log, clock: kit.clock.clone() };
        if is_new {
            // The next process knows from this that the folder is not new.
            let first = [(Bytes::from_static(COUNTER), Some(counter_bytes(begins_at)))];
            records.log.append(&first).map(drop).map_err(|error| {
                FolderError::new(&self.folder, format!("{error}; make room, and start again"))
            })?;
        }
        Ok(Driver::alone(Arc::new(records), machine, limits, kit))
    }

    fn entry<T>(&self, key: &[u8], read: Result<T, String>) -> Result<T, FolderError> {
        read.map_err(|why| {
            let key = String::from_utf8_lossy(key);
            let problem = format!("the entry {key:?} cannot be read ({why}); restore a backup");
            FolderError::new(&self.folder, problem)
        })
    }
}

fn counter_bytes(counter: u64) -> Bytes {
    Bytes::copy_from_slice(&counter.to_be_bytes())
}

fn counter_of(bytes: &[u8]) -> Result<u64, String> {
    let bytes = bytes.try_into().map_err(|_| format!("{} bytes are no counter", bytes.len()))?;
    Ok(u64::from_be_bytes(bytes))
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

fn read_session(id: &[u8], value: &[u8], now_ms: u64) -> Result<(SessionId, Session), String> {
    let id: SessionId = text(id)?.parse().map_err(|error| format!("{error}"))?;
    let stored: StoredSession = lease::from_bytes(value)?;
    Ok((id, Session::from_stored(stored, Reading::Restart { now_ms })))
}

fn read_record(lock: &[u8], value: &[u8], now_ms: u64) -> Result<(LockName, Record), String> {
    let lock = LockName::new(text(lock)?).map_err(|error| error.to_string())?;
    let stored: StoredRecord = lease::from_bytes(value)?;
    let record = Record::from_stored(stored, Reading::Restart { now_ms });
    Ok((lock, record.ok_or("a token that is none")?))
}

/// Writes what the driver commits; it reads nothing, because the driver's memory is the truth.
#[derive(Debug)]
struct LoggedRecords {
    log: Log,
    clock: Arc<dyn Clock>,
}

fn key_bytes(key: &Key) -> Bytes {
    let (kind, name) = match key {
        Key::Lock(lock) => (LOCK, lock.as_str().to_owned()),
        Key::Session(id) => (SESSION, id.to_string()),
    };
    std::iter::once(kind).chain(name.into_bytes()).collect()
}

#[async_trait]
impl RecordStore for LoggedRecords {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let counter = batch.counter + batch.tokens;
        let outcomes = batch.groups.iter().map(|_| Ok(())).collect();
        let writes = batch.groups.into_iter().flat_map(|group| group.writes);
        let mut changes: Vec<log::Change> = writes
            .filter_map(|write| {
                let value = match write.change {
                    Change::Keep => return None,
                    Change::Put { value, .. } => Some(Bytes::from(value)),
                    Change::Remove => None,
                };
                Some((key_bytes(&write.key), value))
            })
            .collect();
        changes.push((Bytes::from_static(COUNTER), Some(counter_bytes(counter))));
        let unknown = |error: log::AppendError| StoreError::Unknown(error.to_string());
        self.log.append(&changes).map_err(unknown)?.await.map_err(unknown)?;
        Ok(Committed { base: batch.counter, now_ms: None, lineage: None, groups: outcomes })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fence_protocol::{LeaseId, Owner, Token, Ttl};

    use super::*;
    use crate::store::{Acquire, LockStore};

    fn request(lock: &str, lease_id: LeaseId) -> Acquire {
        let lock = LockName::new(lock).unwrap();
        let owner = Owner::new("me").unwrap();
        Acquire::new(lock, lease_id, owner, Ttl::DEFAULT)
    }

    fn serve(folder: &Path, begins_at: u64) -> (Driver, Kit) {
        let limits = Limits { ended_retention_ms: 1, ..Limits::default() };
        let kit = Kit::new("lock-server");
        // A process that another test forks has all files, and so their locks, until it runs its
        // own program.
        let mut opened = open(folder);
        for _ in 0..1_000 {
            if !opened.as_ref().is_err_and(|error| error.to_string().contains("another process")) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            opened = open(folder);
        }
        (opened.unwrap().serve(begins_at, limits, &kit).unwrap(), kit)
    }

    /// The end of the process: after it the folder is free.
    async fn end((driver, kit): (Driver, Kit)) {
        drop(driver);
        kit.tasks.begin_shutdown();
        assert!(kit.tasks.drained(Duration::from_secs(20)).await);
    }

    /// L1 across a restart, with a counter that began above, and one that was lifted.
    #[tokio::test]
    async fn the_counter_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut last = 40;
        for _ in 0..3 {
            let served = serve(folder.path(), 40);
            let driver = &served.0;
            let lease_id = service_kit::ids::lease_id();
            let request = request("a", lease_id);
            let granted = driver.acquire(request.clone()).await.unwrap().token.get();
            assert!(granted > last, "{granted} after {last}");
            driver.release(&request.lock, lease_id).await.unwrap();
            last = driver.mint(&request.lock).await.unwrap().get();
            assert!(last > granted);
            end(served).await;
        }
        let served = serve(folder.path(), 40);
        served.0.lift(Token::new(last + 1_000_000).unwrap()).await.unwrap();
        end(served).await;
        let served = serve(folder.path(), 40);
        let token = served.0.mint(&LockName::new("a").unwrap()).await.unwrap().get();
        assert!(token > last + 1_000_000);
    }

    #[tokio::test]
    async fn a_lease_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let request = request("a", service_kit::ids::lease_id());
        let served = serve(folder.path(), 0);
        let granted = served.0.acquire(request.clone()).await.unwrap();
        end(served).await;
        let again = serve(folder.path(), 0).0.acquire(request).await.unwrap();
        assert_eq!(again.token, granted.token);
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = Log::open(folder.path(), LogOptions::default()).unwrap();
        let broken = [(Bytes::from_static(b"la"), Some(Bytes::from_static(b"{")))];
        drop(log.append(&broken).unwrap());
        drop(log);
        let opened = open(folder.path()).unwrap();
        let error = opened.serve(0, Limits::default(), &Kit::new("lock-server")).unwrap_err();
        assert!(error.to_string().contains("\"la\" cannot be read"), "{error}");
    }
}

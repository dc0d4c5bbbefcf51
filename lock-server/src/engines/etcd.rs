//! Records in etcd: every group of a batch is a transaction, and they share one entry of the log.
//!
//! Any number of lock servers may serve one etcd. It is reached by gRPC (`client`), with messages
//! that are written by hand. Tokens are made of the revision of the commit that takes them
//! (`offset.rs`), and `lineage.rs` says when etcd is not trusted any more. etcd has no clock:
//! servers judge moments by their own (`clock.rs`). Why it is so:
//! docs/decisions/0051-records-in-etcd.md.
//!
//! | file | what it does |
//! | --- | --- |
//! | `keys.rs`, `codec.rs`, `txn.rs`, `wire.rs` | keys, values, messages of etcd, without I/O |
//! | `commit.rs` | a batch as transactions, and the outcome after a lost reply |
//! | `offset.rs`, `lineage.rs` | the arithmetic of tokens; when they are suspect |
//! | `clock.rs` | moments of other servers' clocks |
//! | `sweep.rs` | records that nothing matters of any more |
//! | `background.rs` | liveness, messages, the state of etcd |
//! | `client.rs`, `url.rs`, `versions.rs` | the members of an etcd |

mod background;
mod client;
mod clock;
mod codec;
mod commit;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod keys;
mod lineage;
mod offset;
mod sweep;
mod txn;
mod url;
mod versions;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::{LockName, SessionId, Token};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::tasks::Tasks;
use tokio::sync::mpsc;

use self::client::{CallError, EtcdClient};
use self::clock::{Clocks, Process};
use self::codec::Header;
use self::commit::CommitMarker;
use self::keys::Keys;
use self::lineage::{Lineage, Occasion};
use self::sweep::Due;
pub use self::url::EtcdTarget;
use self::wire::{KeyValue, Txn};
use super::contract::{
    Batch, Committed, ItemName, Key, RecordStore, ServerId, Snapshot, Version, Wakeup,
};
use super::options::StoreOptions;
use crate::guards::Guards;
use crate::store::{ListQuery, StoreError};

/// The store's name.
const NAME: &str = "etcd";
/// Most records that are read in one call.
const READ_MAX: usize = 100;
/// Least number of keys of a page of a list.
const PAGE: usize = 100;
/// Time for which the key of a server's last commit is kept after the server's end, in seconds.
const MARKER_TTL_S: u64 = 86_400;

/// Records in etcd. Cheap to clone.
#[derive(Clone)]
pub struct EtcdRecords {
    inner: Arc<EtcdInner>,
}

struct EtcdInner {
    client: EtcdClient,
    keys: Keys,
    lineage: Lineage,
    /// This process, as the writer of records.
    writer: u32,
    clock: Arc<dyn Clock>,
    clocks: Mutex<Clocks>,
    /// When messages to servers that are gone were looked for.
    swept_ms: AtomicU64,
    /// Number of versions that this process gave and the driver does not know of.
    versions: AtomicU32,
    /// Held while what dead servers left is looked through.
    adopting: tokio::sync::Mutex<()>,
    /// One commit at a time: each replaces the one before it.
    marker: tokio::sync::Mutex<CommitMarker>,
    due: Mutex<Due>,
    /// The etcd leases that the keys of live servers hang on, and their seconds.
    beats: Mutex<HashMap<ServerId, (u64, u64)>>,
    /// The writers that lived at the last beat.
    writers: Mutex<Option<Vec<u32>>>,
    tasks: Tasks,
}

impl fmt::Debug for EtcdRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdRecords").field("client", &self.inner.client).finish_non_exhaustive()
    }
}

/// A mutex whose holder panicked guards no rule: what is behind it is a cache.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EtcdRecords {
    /// Connects, verifies version and counter, and watches etcd in the background.
    ///
    /// # Errors
    /// A sentence where etcd cannot be reached or cannot be used.
    pub async fn start(
        target: &EtcdTarget,
        options: &StoreOptions,
        guards: Guards,
        kit: &Kit,
    ) -> Result<Self, String> {
        let client = connect(target, options)?;
        let keys = Keys::new(&options.namespace);
        versions::check(&client).await?;
        let lineage = Lineage::new(&keys, guards, kit);
        if let Err(error) = lineage.verify(&client, Occasion::Start).await {
            return Err(background::with_leader(&client, error.to_string()).await);
        }
        let inner = EtcdInner {
            client,
            keys,
            lineage,
            writer: ServerId::random().0,
            clock: kit.clock.clone(),
            clocks: Mutex::default(),
            swept_ms: AtomicU64::new(0),
            versions: AtomicU32::new(1),
            adopting: tokio::sync::Mutex::default(),
            marker: tokio::sync::Mutex::default(),
            due: Mutex::default(),
            beats: Mutex::default(),
            writers: Mutex::default(),
            tasks: kit.tasks.clone(),
        };
        let records = Self { inner: Arc::new(inner) };
        background::start(&records.inner, kit.health.clone());
        Ok(records)
    }
}

fn connect(target: &EtcdTarget, options: &StoreOptions) -> Result<EtcdClient, String> {
    let link = options.link;
    EtcdClient::new(target, &options.login, link.connect_timeout, link.reply_timeout)
}

/// Prepares a namespace that has never issued a token, and returns the lowest that it can issue.
///
/// # Errors
/// A sentence where it is not new, or where etcd cannot be used.
pub async fn init_fresh(
    target: &EtcdTarget,
    options: &StoreOptions,
    guards: &Guards,
) -> Result<u64, String> {
    let client = connect(target, options)?;
    versions::check(&client).await?;
    lineage::init_fresh(&client, &Keys::new(&options.namespace), guards).await
}

impl EtcdInner {
    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// A new etcd lease.
    async fn new_lease(&self, ttl_s: u64) -> Result<u64, StoreError> {
        let id = u64::from(ServerId::random().0) << 31 | u64::from(ServerId::random().0 >> 1);
        self.client.lease_grant(id, ttl_s).await.map_err(store_error)?;
        Ok(id)
    }

    /// Returns whether an etcd lease exists, and renews it. Every member is queried at once:
    /// skipping one that hangs takes longer than the lease may have.
    async fn is_kept(&self, lease: u64) -> Result<bool, StoreError> {
        self.client.lease_keepalive_at_all(lease).await.map_err(store_error)
    }

    /// The keys of some records after a revision (0 for the newest), in one reading for every
    /// [`READ_MAX`], and the last one's counter.
    async fn read_raw(
        &self,
        keys: &[Key],
        revision: u64,
    ) -> Result<(Vec<Vec<KeyValue>>, u64), StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        let mut counter = 0;
        let mut rest = keys;
        loop {
            let (some, later) = rest.split_at(rest.len().min(READ_MAX));
            // Beside the records the counter, so that there is always something to read.
            let steps = std::iter::once(txn::get(&self.keys.meta()));
            let records = some.iter().map(|key| txn::as_of(self.get(key), revision));
            let success = steps.chain(records).collect();
            let reply = self.client.run(&Txn { success, ..Txn::default() }).await;
            let reply = reply.map_err(store_error)?;
            counter = self.lineage.counter(&reply.header).max(counter);
            self.lineage.saw(&reply.header);
            found.extend(reply.ranges().skip(1).map(|range| range.kvs));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        if found.len() == keys.len() {
            Ok((found, counter))
        } else {
            Err(StoreError::Unavailable("etcd answers less than was asked".to_owned()))
        }
    }

    async fn read_all(&self, keys: &[Key]) -> Result<Vec<Snapshot>, StoreError> {
        let (found, _) = self.read_raw(keys, 0).await?;
        let now_ms = self.now_ms();
        let found = keys.iter().zip(found);
        Ok(found.map(|(key, kvs)| self.snapshot(key, kvs, now_ms)).collect())
    }

    /// The version of a record by its keys.
    fn version_of(&self, key: &Key, kvs: &[KeyValue]) -> Version {
        let name = self.keys.record(key);
        let kv = kvs.iter().find(|kv| kv.name() == name);
        kv.map_or(Version::ABSENT, |kv| {
            Header::read(&kv.value).map_or(Version(u64::MAX), |(header, _)| header.version)
        })
    }

    /// A record by its keys.
    fn snapshot(&self, key: &Key, kvs: Vec<KeyValue>, now_ms: u64) -> Snapshot {
        let name = self.keys.record(key);
        let mut snapshot = Snapshot::absent(key.clone());
        for kv in kvs {
            if kv.name() != name {
                let item = kv.name().get(name.len() + 1..).unwrap_or_default().to_owned();
                snapshot.items.push((item, kv.value));
                continue;
            }
            let Some((header, value)) = Header::read(&kv.value) else {
                // No lock server has written it, and none can read it: it is refused as such.
                (snapshot.version, snapshot.value) = (Version(u64::MAX), kv.value);
                continue;
            };
            snapshot.version = header.version;
            snapshot.base = offset::base(header.offset, kv.mod_revision);
            snapshot.value = value.to_vec();
            snapshot.shift_ms = self.shift_ms(key, header, now_ms);
        }
        if snapshot.version == Version::ABSENT {
            locked(&self.clocks).forget(key);
            snapshot.items.clear();
        }
        snapshot
    }

    fn shift_ms(&self, key: &Key, header: Header, now_ms: u64) -> i64 {
        let mut clocks = locked(&self.clocks);
        if header.writer == self.writer {
            clocks.forget(key);
            return 0;
        }
        clocks.record_shift_ms(key, header.version, (header.writer, header.at_ms), now_ms)
    }

    /// The records of a kind whose names come after one, as many as are asked for, and whether
    /// there are more. Of a lock with many items it reads pages that it passes over.
    async fn names<T>(
        &self,
        kind: char,
        (mut from, prefix): (String, &str),
        limit: usize,
        of: impl Fn(Key) -> Option<(T, String)>,
    ) -> Result<(Vec<T>, bool), StoreError> {
        let mut found = Vec::new();
        let end = txn::Range::prefixed(self.keys.records(kind, prefix).begin).end;
        loop {
            let range = txn::Range { end: end.clone(), ..self.keys.records(kind, &from) };
            let size = PAGE.max((limit + 1 - found.len().min(limit)).min(1_000));
            let page = self.client.page(&range, size, true).await.map_err(store_error)?;
            for kv in &page.kvs {
                // A key that no lock server has written is skipped.
                let Some(key) = self.keys.subject(&kv.name()) else { continue };
                if self.keys.record(&key) != kv.name() {
                    continue;
                }
                if found.len() >= limit {
                    return Ok((found, true));
                }
                if let Some((name, after)) = of(key) {
                    found.push(name);
                    from = after;
                }
            }
            let last = page.kvs.last().filter(|_| page.more);
            let Some(last) = last else { return Ok((found, false)) };
            // Behind the last key, and behind all items of the last record.
            let begin = self.keys.records(kind, "").begin;
            let beyond = format!("{}\0", last.name().get(begin.len()..).unwrap_or_default());
            from = from.max(beyond);
        }
    }
}

#[async_trait]
impl RecordStore for EtcdRecords {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }

    fn shift_ms(&self, server: ServerId, at_ms: u64) -> i64 {
        let now_ms = self.now_ms();
        locked(&self.inner.clocks).saw(Process::Server(server), at_ms, now_ms)
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let (found, counter) = self.inner.read_raw(keys, 0).await?;
        let now_ms = self.now_ms();
        let found = keys.iter().zip(found);
        let found = found.map(|(key, kvs)| self.inner.snapshot(key, kvs, now_ms));
        Ok((found.collect(), counter))
    }

    async fn items(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let mut range = self.inner.keys.items(key);
        let prefix = range.begin.len();
        if let Some(after) = after {
            range.begin = format!("{}\0", self.inner.keys.item(key, after));
        }
        let page = self.inner.client.page(&range, limit, false).await.map_err(store_error)?;
        let items = page.kvs.into_iter();
        let items =
            items.map(|kv| (kv.name().get(prefix..).unwrap_or_default().to_owned(), kv.value));
        Ok(items.collect())
    }

    async fn item_count(&self, key: &Key) -> Result<usize, StoreError> {
        let count = txn::count(&self.inner.keys.items(key));
        let txn = Txn { success: vec![count], ..Txn::default() };
        let reply = self.inner.client.run(&txn).await.map_err(store_error)?;
        let count = reply.ranges().next().map_or(0, |range| range.count);
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        self.inner.commit_batch(&batch).await
    }

    fn reads_max(&self) -> usize {
        commit::READS_MAX
    }

    async fn locks(&self, query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        let after = query.after.as_ref().map(keys::after_lock).unwrap_or_default();
        let from = after.max(query.prefix.clone());
        let lock = |key| match key {
            Key::Lock(lock) => {
                let after = keys::after_lock(&lock);
                Some((lock, after))
            }
            Key::Session(_) => None,
        };
        self.inner.names('l', (from, &query.prefix), query.limit, lock).await
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        let from = after.map(keys::after_session).unwrap_or_default();
        let session = |key| match key {
            Key::Session(id) => Some((id, keys::after_session(id))),
            Key::Lock(_) => None,
        };
        self.inner.names('s', (from, ""), limit, session).await
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        self.inner.lineage.lift(&self.inner.client, mark).await
    }

    async fn beat(&self, server: ServerId, ms: u64) -> Result<Vec<ServerId>, StoreError> {
        self.inner.beat(server, ms).await
    }

    fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        background::wakeups(&self.inner, server)
    }
}

/// The error of a call that was not carried out as it should be.
fn store_error(error: CallError) -> StoreError {
    match error {
        CallError::Down(reason) => StoreError::Unavailable(reason),
        CallError::Unknown(reason) | CallError::Full(reason) => StoreError::Unknown(format!(
            "whether etcd did it is not known ({reason}); repeat it with the same lease_id"
        )),
        CallError::Refused { message, .. } => {
            StoreError::Unavailable(format!("etcd refuses, and nothing was done: {message}"))
        }
    }
}

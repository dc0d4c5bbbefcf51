//! The interface of an engine: it keeps records and commits changes to them.
//!
//! An engine does not know what a lock is. It keeps values under keys, each with a version, takes
//! tokens from one counter, and commits groups of writes, each group under the condition that
//! nothing that it was decided on has changed. The rules (package `lease`) decide, and the driver
//! stands between the two.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::{LockName, SessionId, Token};
use tokio::sync::mpsc;

use crate::store::{ListQuery, StoreError};

/// Subject of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A lock. Its items are the requests in its queue.
    Lock(LockName),
    /// A session. Its items are the leases that are bound to it.
    Session(SessionId),
}

pub(crate) const LOCK: &str = "lock:";
pub(crate) const SESSION: &str = "session:";

impl Key {
    /// Text that names the record, in messages and keys.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Lock(lock) => [LOCK, lock.as_str()].concat(),
            Self::Session(id) => format!("{SESSION}{id}"),
        }
    }

    /// The record that a text names.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        if let Some(lock) = text.strip_prefix(LOCK) {
            return LockName::new(lock).ok().map(Self::Lock);
        }
        text.strip_prefix(SESSION)?.parse().ok().map(Self::Session)
    }
}

/// A number that is given to one write of one record and to no other: the server that wrote it and
/// a count. [`ABSENT`](Self::ABSENT) stands for no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// No record.
    pub const ABSENT: Self = Self(0);

    /// Returns a version of a server's write: the server, and a count of its writes.
    pub fn of_write(server: ServerId, count: u32) -> Self {
        Self(u64::from(server.0) << 32 | u64::from(count))
    }

    /// Returns the server that wrote it.
    pub fn writer(self) -> ServerId {
        ServerId(u32::try_from(self.0 >> 32).unwrap_or(u32::MAX))
    }
}

/// One process that serves a namespace, for as long as it runs. Zero is no server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u32);

impl ServerId {
    /// An id that no other server has.
    pub fn random() -> Self {
        let random = u32::from_str_radix(&service_kit::ids::random_hex(4), 16);
        Self(random.unwrap_or(1).max(1))
    }
}

/// The name of an item of a record; items are read in the order of their names.
pub type ItemName = String;

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Key of the record.
    pub key: Key,
    /// The version; [`Version::ABSENT`] where there is no record.
    pub version: Version,
    /// The counter's value before the tokens that the value names as new; see [`Change::Put`].
    pub base: u64,
    /// Value that was written; empty where there is no record, or none that can be read.
    pub value: Vec<u8>,
    /// The items in the order of their names; of a session none, see [`RecordStore::items`].
    pub items: Vec<(ItemName, Vec<u8>)>,
    /// By how much the moments in the value are to be moved to be moments of this server's clock,
    /// in milliseconds; 0 where the engine has a clock for all servers. The items may be older than
    /// the value, and by other servers: see [`RecordStore::shift_ms`].
    pub shift_ms: i64,
}

impl Snapshot {
    /// No record.
    pub fn absent(key: Key) -> Self {
        let value = Vec::new();
        let items = Vec::new();
        Self { key, version: Version::ABSENT, base: 0, value, items, shift_ms: 0 }
    }

    /// A key that no lock server has written: of no version that a write has, and without a value.
    pub fn unreadable(key: Key) -> Self {
        Self { version: Version(u64::MAX), ..Self::absent(key) }
    }
}

/// Changes that are committed in one call to the engine: one round trip, one fsync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Each is committed or refused by itself.
    pub groups: Vec<Group>,
    /// The counter's value that the groups were decided on: the tokens of this batch are above it.
    pub counter: u64,
    /// Most by which `counter` may be above the engine's, because of the tokens of batches that are
    /// under way; see [`RecordStore::overlap_min`]. An engine whose counter is lower has lost
    /// tokens.
    pub ahead: u64,
    /// Number of tokens to take. They follow the engine's counter as it is now. Groups of a batch
    /// that takes some have no record in common; an engine that cannot commit all of them in one
    /// step may refuse the last ones as if they had lost a race.
    pub tokens: u64,
    /// No lease that the groups begin or prolong lives longer than this, its lock-delay included,
    /// in milliseconds; 0 where they do neither. After a loss of memory an engine that may have
    /// other servers lets no lease begin for that long.
    pub lives_ms: u64,
    /// The groups were decided in the knowledge that no lease may begin: none of the tokens is a
    /// lease's.
    pub in_pause: bool,
}

/// Writes that happen together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Versions that the decision was based on: the group is refused where a record has another
    /// version by now. Every record that is written is among them.
    pub reads: Vec<(Key, Version)>,
    /// The group is refused before this moment of the engine's clock: the decision took something
    /// for over. 0 for no bound.
    pub not_before_ms: u64,
    /// The group is refused from this moment on: the decision took something for live.
    /// [`u64::MAX`] for no bound.
    pub before_ms: u64,
    /// Changes of records.
    pub writes: Vec<Write>,
    /// Other servers that are notified once the group is committed, and of what.
    pub notify: Vec<(ServerId, Key)>,
}

impl Group {
    /// A group without conditions and writes.
    pub fn everything() -> Self {
        Self { before_ms: u64::MAX, ..Self::default() }
    }
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Key of the record.
    pub key: Key,
    /// Change of its value.
    pub change: Change,
    /// Items that are added, replaced or (`None`) removed.
    pub items: Vec<(ItemName, Option<Vec<u8>>)>,
}

/// Change of a record's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays, and so does its version.
    Keep,
    /// It is replaced.
    Put {
        /// The version of this write.
        version: Version,
        /// The bytes. A token that this batch takes stands in it as its distance from the counter
        /// before the batch; the engine stores that counter beside the value, as
        /// [`Snapshot::base`].
        value: Vec<u8>,
        /// After so many milliseconds nothing in it matters any more, and the engine may forget the
        /// record; `None` where that is not known.
        lives_ms: Option<u64>,
    },
    /// The record goes, with its items.
    Remove,
}

/// The outcome of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The counter before the tokens of this batch: the first of them is one above.
    pub base: u64,
    /// The engine's time at the commit, in milliseconds; `None` where it has no clock of its own.
    pub now_ms: Option<u64>,
    /// Lineage in which it was committed; `None` where the engine has none.
    pub lineage: Option<Arc<str>>,
    /// Of each group in order: committed, or, where it was refused, the records as they stand at
    /// the commit or after it.
    pub groups: Vec<Result<(), Vec<Snapshot>>>,
}

/// Outcome of [`RecordStore::confirm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// Every grant with a token up to this one is safe.
    pub token: u64,
    /// Why those above it may not be.
    pub shortfall: Option<String>,
}

/// Most wake-ups that wait to be received; the engine drops more.
pub const WAKEUPS_MAX: usize = 1_024;

/// A message that something may have changed. It may be lost, repeated, late or forged: its
/// receiver reads the record, and does nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wakeup {
    /// One record.
    Record(Key),
    /// Messages were lost, for example with a connection.
    All,
}

/// An engine.
///
/// One that [is alone](Self::is_alone) only commits: the methods with a body are not called there.
///
/// # Errors
/// Every method returns [`StoreError::Unavailable`] where nothing was done, [`StoreError::Unknown`]
/// where it may or may not have been done. Of a batch of groups that takes tokens it is
/// [`StoreError::Paused`] while the engine lets no lease begin; nothing was done then, and what
/// begins no lease can be committed [in the pause](Batch::in_pause).
#[async_trait]
pub trait RecordStore: Send + Sync + fmt::Debug + 'static {
    /// Name of the engine, for logs and `/readyz?verbose`.
    fn name(&self) -> &'static str;

    /// True if this process is the only one that writes here. Its memory is then the truth, nothing
    /// is read after the start, and a renewal or a place in a queue is not written.
    fn is_alone(&self) -> bool;

    /// True if it is alone and forgets everything with this process: then the driver commits
    /// nothing.
    fn is_volatile(&self) -> bool {
        false
    }

    /// Most records that a group should read: requests that would make one larger are decided for
    /// the next commit.
    fn reads_max(&self) -> usize {
        usize::MAX
    }

    /// Least number of waiting requests for which a batch is committed beside another one, of
    /// `under_way` requests; they have no record in common. `None` where one is committed after the
    /// other.
    fn overlap_min(&self, under_way: usize) -> Option<usize> {
        let _ = under_way;
        None
    }

    /// Most leases, lock-delays and waits whose time is over that one batch ends: the requests
    /// that come with it wait for them.
    fn ends_max(&self) -> usize {
        256
    }

    /// Least number of waiting requests that are committed as two batches, half of them each, one
    /// beside the other.
    fn halves_from(&self) -> usize {
        usize::MAX
    }

    /// The engine's time, as far as it is known, in milliseconds: never ahead of it.
    fn now_ms(&self) -> u64;

    /// By how much moments of another server's clock, which showed `at_ms` before now, are to be
    /// moved to be moments of this server's clock, in milliseconds: never by too little. 0 where
    /// the engine has a clock for all servers.
    fn shift_ms(&self, _server: ServerId, _at_ms: u64) -> i64 {
        0
    }

    /// Highest value of the counter that is known; 0 where this server is alone.
    fn counter(&self) -> u64 {
        0
    }

    /// The records as they stand, in the order of the keys; with the counter.
    async fn read(&self, _keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        Err(alone())
    }

    /// The items of one record whose names come after `after`, at most `limit`.
    async fn items(
        &self,
        _key: &Key,
        _after: Option<&str>,
        _limit: usize,
    ) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
        Err(alone())
    }

    /// Number of items of a record.
    async fn item_count(&self, _key: &Key) -> Result<usize, StoreError> {
        Err(alone())
    }

    /// Commits each group whose reads are as they were, in order, and takes the tokens.
    ///
    /// # Errors
    /// As above, for the whole batch; [`StoreError::Exhausted`] where the tokens are used up.
    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError>;

    /// True if a grant has to be [confirmed](Self::confirm) before it is acknowledged.
    fn confirms(&self) -> bool {
        false
    }

    /// Waits until everything that was committed in `lineage` before this call is where the
    /// operator asked for it to be. Where that fails, a grant above [`Confirmed::token`] is rolled
    /// back.
    async fn confirm(&self, _lineage: Option<&str>) -> Confirmed {
        Confirmed::default()
    }

    /// Locks with a record, in the order of their names, and whether there are more.
    async fn locks(&self, _query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        Err(alone())
    }

    /// Sessions with a record, in the order of their ids, and whether there are more.
    async fn sessions(
        &self,
        _after: Option<SessionId>,
        _limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        Err(alone())
    }

    /// Lets the next token be above `mark`, which a guard has seen.
    async fn lift(&self, _mark: Token) -> Result<(), StoreError> {
        Err(alone())
    }

    /// Says that this server lives for another `ms` milliseconds, and returns every server that
    /// does.
    async fn beat(&self, _server: ServerId, _ms: u64) -> Result<Vec<ServerId>, StoreError> {
        Err(alone())
    }

    /// Notifications of other servers to this one, at most [`WAKEUPS_MAX`]. Called once.
    fn wakeups(&self, _server: ServerId) -> mpsc::Receiver<Wakeup> {
        mpsc::channel(1).1
    }
}

/// The answer of an engine with one server, which is not asked.
fn alone() -> StoreError {
    StoreError::Unavailable("this engine has one server, whose memory is read".to_owned())
}

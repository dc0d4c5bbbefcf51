//! Records in the memory of this process: the smallest engine, and the example of one.
//!
//! Clones are the same records, as several servers see them.

pub mod open;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fence_protocol::{LockName, SessionId, Token};
use service_kit::clock::Clock;
use tokio::sync::mpsc;

use super::contract::{
    Batch, Change, Committed, Group, ItemName, Key, RecordStore, ServerId, Snapshot, Version,
    WAKEUPS_MAX, Wakeup, Write,
};
use crate::store::{ListQuery, StoreError};

/// Records in memory.
#[derive(Clone, Debug)]
pub struct MemoryRecords {
    clock: Arc<dyn Clock>,
    is_alone: bool,
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Clone, Debug, Default)]
struct MemoryState {
    counter: u64,
    records: BTreeMap<Key, Record>,
    /// When which record may be forgotten.
    due: BTreeSet<(u64, Key)>,
    servers: BTreeMap<ServerId, (u64, Option<mpsc::Sender<Wakeup>>)>,
}

#[derive(Clone, Debug, Default)]
struct Record {
    version: Version,
    base: u64,
    value: Vec<u8>,
    items: BTreeMap<ItemName, Vec<u8>>,
    until_ms: Option<u64>,
}

impl Default for Version {
    fn default() -> Self {
        Self::ABSENT
    }
}

impl MemoryRecords {
    /// No records; the first token is above `counter`.
    pub fn new(clock: Arc<dyn Clock>, counter: u64) -> Self {
        let state = MemoryState { counter, ..MemoryState::default() };
        Self { clock, is_alone: false, state: Arc::new(Mutex::new(state)) }
    }

    /// Records of one server that keeps them itself: nothing is stored a second time.
    pub fn alone(clock: Arc<dyn Clock>) -> Self {
        Self { is_alone: true, ..Self::new(clock, 0) }
    }

    /// The same records as they are now, apart from these from now on: what a backup is.
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = Arc::new(Mutex::new(self.state().clone()));
        Self { clock: self.clock.clone(), is_alone: self.is_alone, state }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget_due(self.clock.monotonic_ms());
        state
    }
}

impl MemoryState {
    fn forget_due(&mut self, now_ms: u64) {
        while self.due.first().is_some_and(|(at_ms, _)| *at_ms <= now_ms) {
            let Some((_, key)) = self.due.pop_first() else { return };
            self.records.remove(&key);
        }
    }

    fn snapshot(&self, key: &Key) -> Snapshot {
        let Some(record) = self.records.get(key) else { return Snapshot::absent(key.clone()) };
        let items = match key {
            Key::Lock(_) => record.items.clone().into_iter().collect(),
            Key::Session(_) => Vec::new(),
        };
        let version = record.version;
        let base = record.base;
        let value = record.value.clone();
        Snapshot { key: key.clone(), version, base, value, items, shift_ms: 0 }
    }

    fn commit(&mut self, group: Group, base: u64, now_ms: u64) -> Result<(), Vec<Snapshot>> {
        let version = |key| self.records.get(key).map_or(Version::ABSENT, |record| record.version);
        let is_in_time = group.not_before_ms <= now_ms && now_ms < group.before_ms;
        if !is_in_time || group.reads.iter().any(|(key, read)| version(key) != *read) {
            return Err(group.reads.iter().map(|(key, _)| self.snapshot(key)).collect());
        }
        group.writes.into_iter().for_each(|write| self.write(write, base, now_ms));
        for (server, key) in group.notify {
            if let Some((_, Some(wakeups))) = self.servers.get(&server) {
                // A server that is gone needs no message.
                let _ = wakeups.try_send(Wakeup::Record(key));
            }
        }
        Ok(())
    }

    fn write(&mut self, write: Write, base: u64, now_ms: u64) {
        let mut record = self.records.remove(&write.key).unwrap_or_default();
        match write.change {
            Change::Keep if record.version == Version::ABSENT => return,
            Change::Keep => {}
            Change::Put { version, value, lives_ms } => {
                if let Some(until_ms) = record.until_ms {
                    self.due.remove(&(until_ms, write.key.clone()));
                }
                (record.version, record.base, record.value) = (version, base, value);
                record.until_ms = lives_ms.map(|lives_ms| now_ms.saturating_add(lives_ms));
                self.due.extend(record.until_ms.map(|until_ms| (until_ms, write.key.clone())));
            }
            Change::Remove => {
                if let Some(until_ms) = record.until_ms {
                    self.due.remove(&(until_ms, write.key));
                }
                return;
            }
        }
        for (name, value) in write.items {
            match value {
                Some(value) => record.items.insert(name, value),
                None => record.items.remove(&name),
            };
        }
        self.records.insert(write.key, record);
    }
}

#[async_trait]
impl RecordStore for MemoryRecords {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Tests and the simulation share records in memory: so few that most storms are of several
    /// slices.
    fn ends_max(&self) -> usize {
        if self.is_alone { 256 } else { 2 }
    }

    fn is_volatile(&self) -> bool {
        self.is_alone
    }

    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        let state = self.state();
        Ok((keys.iter().map(|key| state.snapshot(key)).collect(), state.counter))
    }

    async fn items(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(ItemName, Vec<u8>)>, StoreError> {
        let state = self.state();
        let Some(record) = state.records.get(key) else { return Ok(Vec::new()) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let items = record.items.range::<str, _>((from, Bound::Unbounded)).take(limit);
        Ok(items.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    async fn item_count(&self, key: &Key) -> Result<usize, StoreError> {
        Ok(self.state().records.get(key).map_or(0, |record| record.items.len()))
    }

    async fn commit(&self, batch: Batch) -> Result<Committed, StoreError> {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        let base = state.counter.max(batch.counter);
        if batch.tokens > Token::MAX.saturating_sub(base) {
            return Err(StoreError::Exhausted);
        }
        state.counter = base + batch.tokens;
        let groups = batch.groups.into_iter().map(|group| state.commit(group, base, now_ms));
        Ok(Committed { base, now_ms: Some(now_ms), lineage: None, groups: groups.collect() })
    }

    async fn locks(&self, query: &ListQuery) -> Result<(Vec<LockName>, bool), StoreError> {
        let state = self.state();
        let names = state.records.keys().filter_map(|key| match key {
            Key::Lock(lock) => Some(lock),
            Key::Session(_) => None,
        });
        let is_after = |lock: &&LockName| query.after.as_ref().is_none_or(|after| *lock > after);
        let mut found = names.filter(|lock| lock.as_str().starts_with(&query.prefix));
        let mut found = found.by_ref().filter(is_after).cloned();
        let page: Vec<LockName> = found.by_ref().take(query.limit).collect();
        Ok((page, found.next().is_some()))
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<(Vec<SessionId>, bool), StoreError> {
        let state = self.state();
        let ids = state.records.keys().filter_map(|key| match key {
            Key::Session(id) => Some(*id),
            Key::Lock(_) => None,
        });
        let mut found = ids.filter(|id| after.is_none_or(|after| *id > after));
        let page: Vec<SessionId> = found.by_ref().take(limit).collect();
        Ok((page, found.next().is_some()))
    }

    async fn lift(&self, mark: Token) -> Result<(), StoreError> {
        let mut state = self.state();
        state.counter = state.counter.max(mark.get());
        Ok(())
    }

    async fn beat(&self, server: ServerId, liveness_ms: u64) -> Result<Vec<ServerId>, StoreError> {
        let now_ms = self.clock.monotonic_ms();
        let mut state = self.state();
        state.servers.entry(server).or_default().0 = now_ms.saturating_add(liveness_ms);
        let alive = state.servers.iter().filter(|(_, (until_ms, _))| *until_ms > now_ms);
        Ok(alive.map(|(server, _)| *server).collect())
    }

    fn wakeups(&self, server: ServerId) -> mpsc::Receiver<Wakeup> {
        let (sender, receiver) = mpsc::channel(WAKEUPS_MAX);
        self.state().servers.entry(server).or_default().1 = Some(sender);
        receiver
    }
}

//! Records that nothing matters of any more.
//!
//! The server that wrote a record last removes it when its time is over. What a server leaves that is
//! gone, the first of those that live adopts: it reads every record, and counts the whole time of each
//! from then on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::commit::outlives;
use super::txn::{self, Range, branched};
use super::value::Header;
use super::wire::{Step, Txn};
use super::{Inner, locked, store_error};
use crate::store::StoreError;
use crate::store::records::{Batch, Change, Key, Snapshot, Version};

/// How often records are removed.
const EVERY: Duration = Duration::from_millis(500);
/// How much later than they may be, in milliseconds: their driver removes most of them itself.
const LATER_MS: u64 = 2_000;
/// How many records are removed at once.
const AT_ONCE: usize = 300;
/// How soon a removal is tried again, in milliseconds.
const AGAIN_MS: u64 = 2_000;
/// How many keys are read at once.
const PAGE: usize = 500;

/// The records that this server removes, and when.
#[derive(Debug, Default)]
pub(super) struct Due {
    at: BTreeSet<(u64, Key)>,
    records: HashMap<Key, (u64, Version)>,
}

impl Due {
    fn set(&mut self, key: &Key, version: Version, at_ms: u64) {
        self.forget(key);
        self.at.insert((at_ms, key.clone()));
        self.records.insert(key.clone(), (at_ms, version));
    }

    fn forget(&mut self, key: &Key) {
        if let Some((at_ms, _)) = self.records.remove(key) {
            self.at.remove(&(at_ms, key.clone()));
        }
    }

    fn take(&mut self, now_ms: u64) -> Vec<(Key, Version)> {
        let due = self.at.iter().take_while(|(at_ms, _)| *at_ms <= now_ms);
        let keys: Vec<Key> = due.take(AT_ONCE).map(|(_, key)| key.clone()).collect();
        let taken = keys.into_iter().filter_map(|key| {
            let (at_ms, version) = self.records.remove(&key)?;
            self.at.remove(&(at_ms, key.clone()));
            Some((key, version))
        });
        taken.collect()
    }
}

/// Removes what is due, until shutdown.
pub(super) async fn run(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(EVERY).await;
        loop {
            let due = locked(&inner.due).take(inner.now_ms());
            if due.is_empty() {
                break;
            }
            if let Err(error) = inner.remove(&due).await {
                tracing::debug!(%error, "records whose time is over are not removed yet");
                let at_ms = inner.now_ms() + AGAIN_MS;
                let mut later = locked(&inner.due);
                due.iter().for_each(|(key, version)| later.set(key, *version, at_ms));
                break;
            }
        }
    }
}

impl Inner {
    /// Notes what a batch has written.
    pub(super) fn note_due(&self, batch: &Batch, outcomes: &[Option<Result<(), Vec<Snapshot>>>]) {
        let now_ms = self.now_ms();
        let mut due = locked(&self.due);
        let done =
            batch.groups.iter().zip(outcomes).filter(|(_, done)| matches!(done, Some(Ok(()))));
        let mut clocks = locked(&self.clocks);
        for write in done.flat_map(|(group, _)| &group.writes) {
            clocks.forget(&write.key);
            match &write.change {
                Change::Put { version, lives_ms: Some(lives_ms), .. } => {
                    due.set(&write.key, *version, outlives(now_ms, *lives_ms) + LATER_MS);
                }
                Change::Put { .. } | Change::Remove => due.forget(&write.key),
                Change::Keep => {}
            }
        }
    }

    /// Removes records that have these versions still.
    async fn remove(&self, due: &[(Key, Version)]) -> Result<(), StoreError> {
        let steps: Vec<Step> = due
            .iter()
            .map(|(key, version)| {
                let compare = txn::has_version(&self.keys.record(key), *version);
                Txn { compare, success: self.removal(key), ..Txn::default() }.step()
            })
            .collect();
        let txn = Txn { success: branched(steps, super::commit::WIDTH), ..Txn::default() };
        self.client.commit(&txn).await.map(drop).map_err(store_error)
    }

    /// Reads every record, and notes when those of writers that are gone are to be removed; removes
    /// messages to servers that are gone.
    pub(super) async fn adopt(&self, writers: &[u32], servers: &[u32]) -> Result<(), StoreError> {
        for kind in ['l', 's'] {
            let mut range = self.keys.records(kind, "");
            while let Some(last) = self.adopt_page(&range, writers).await? {
                range.begin = format!("{last}\0");
            }
        }
        let inboxes = self.client.page(&self.keys.inboxes(), PAGE, true).await;
        let found = inboxes.map_err(store_error)?.kvs;
        let gone = found.iter().filter(|kv| {
            self.keys.server_of(&kv.name()).is_none_or(|server| !servers.contains(&server.0))
        });
        let steps: Vec<Step> = gone.map(|kv| txn::delete(&kv.name())).collect();
        if steps.is_empty() {
            return Ok(());
        }
        let txn = Txn { success: branched(steps, super::commit::WIDTH), ..Txn::default() };
        self.client.run(&txn).await.map(drop).map_err(store_error)
    }

    /// The last key of a page; `None` where no page follows.
    async fn adopt_page(
        &self,
        range: &Range,
        writers: &[u32],
    ) -> Result<Option<String>, StoreError> {
        let page = self.client.page(range, PAGE, false).await.map_err(store_error)?;
        let now_ms = self.now_ms();
        let mut due = locked(&self.due);
        for kv in &page.kvs {
            let (Some(key), Some((header, _))) =
                (self.keys.subject(&kv.name()), Header::read(&kv.value))
            else {
                continue;
            };
            let is_orphan = header.writer != self.writer && !writers.contains(&header.writer);
            if let Some(lives_ms) = header.lives_ms
                && is_orphan
                && self.keys.record(&key) == kv.name()
            {
                due.set(&key, header.version, outlives(now_ms, lives_ms) + LATER_MS);
            }
        }
        Ok(page.kvs.last().filter(|_| page.more).map(|last| last.name().into_owned()))
    }
}

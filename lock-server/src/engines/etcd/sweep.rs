//! Records that nothing matters of any more.
//!
//! The server that wrote a record last removes it when its time is over. What a server leaves that
//! is gone, the first of those that live adopts: it reads every record, and counts the whole time
//! of each from then on. It also removes messages to servers that are gone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::codec::Header;
use super::commit::{Done, outlives};
use super::txn::{self, Range, branched};
use super::wire::{KeyValue, Txn, TxnStep};
use super::{EtcdInner, locked, store_error};
use crate::engines::contract::{Batch, Change, Key, ServerId, Version};
use crate::store::StoreError;

/// Interval of removals.
const EVERY: Duration = Duration::from_millis(500);
/// Delay of removals, in milliseconds: the driver removes most records itself.
const LATER_MS: u64 = 2_000;
/// Most records that are removed at once.
const AT_ONCE: usize = 300;
/// Pause before a removal is retried, in milliseconds.
const AGAIN_MS: u64 = 2_000;
/// Most keys that are read at once.
const PAGE: usize = 500;

/// The records that this server removes, and when. Of a record with a write whose outcome is
/// unknown it has two versions; the removal of one that is not there changes nothing.
#[derive(Debug, Default)]
pub(super) struct Due {
    at: BTreeSet<(u64, Key, Version)>,
    records: HashMap<Key, Vec<(u64, Version)>>,
}

impl Due {
    /// A version that was written, or may be written yet. One that is known keeps its moment.
    fn add(&mut self, key: &Key, version: Version, at_ms: u64) {
        let known = self.records.entry(key.clone()).or_default();
        if known.iter().all(|(_, known)| *known != version) {
            known.push((at_ms, version));
            self.at.insert((at_ms, key.clone(), version));
        }
    }

    /// Forgets the versions of a record that are not to stay.
    fn retain(&mut self, key: &Key, stays: impl Fn(Version) -> bool) {
        let Some(known) = self.records.get_mut(key) else { return };
        known.retain(|(at_ms, version)| {
            let stays = stays(*version);
            if !stays {
                self.at.remove(&(*at_ms, key.clone(), *version));
            }
            stays
        });
        if known.is_empty() {
            self.records.remove(key);
        }
    }

    fn take(&mut self, now_ms: u64) -> Vec<(Key, Version)> {
        let due = self.at.iter().take_while(|(at_ms, ..)| *at_ms <= now_ms);
        let due = due.take(AT_ONCE).map(|(_, key, version)| (key.clone(), *version));
        let due: Vec<(Key, Version)> = due.collect();
        for (key, taken) in &due {
            self.retain(key, |version| version != *taken);
        }
        due
    }
}

/// Removes what is due, until shutdown.
pub(super) async fn run(inner: Arc<EtcdInner>) {
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
                due.iter().for_each(|(key, version)| later.add(key, *version, at_ms));
                break;
            }
        }
    }
}

impl EtcdInner {
    /// Notes what a batch will write, before it is sent: its outcome may never be known.
    pub(super) fn expect(&self, batch: &Batch) {
        let now_ms = self.now_ms();
        let mut due = locked(&self.due);
        for write in batch.groups.iter().flat_map(|group| &group.writes) {
            if let Change::Put { version, lives_ms: Some(lives_ms), .. } = &write.change {
                due.add(&write.key, *version, outlives(now_ms, *lives_ms) + LATER_MS);
            }
        }
    }

    /// Notes what a batch has written, and what it has not. Where that is unknown, records are
    /// removed by the version that they had or by the one that they were to have.
    pub(super) fn record(&self, batch: &Batch, done: Result<&Done, &StoreError>) {
        let outcomes = match done {
            Ok(done) => Some(&done.outcomes),
            Err(StoreError::Unknown(_)) => return,
            Err(_) => None,
        };
        let mut due = locked(&self.due);
        let mut clocks = locked(&self.clocks);
        for (at, group) in batch.groups.iter().enumerate() {
            let outcome = outcomes.and_then(|outcomes| outcomes.get(at)?.as_ref());
            let is_done = outcome.is_some_and(Result::is_ok);
            for write in &group.writes {
                if is_done {
                    clocks.forget(&write.key);
                }
                match &write.change {
                    Change::Put { version: new, lives_ms, .. } if is_done => {
                        due.retain(&write.key, |version| version == *new && lives_ms.is_some());
                    }
                    Change::Put { version: new, .. } => {
                        due.retain(&write.key, |version| version != *new);
                    }
                    Change::Remove if is_done => due.retain(&write.key, |_| false),
                    Change::Remove | Change::Keep => {}
                }
            }
        }
    }

    /// Removes records that have these versions still.
    async fn remove(&self, due: &[(Key, Version)]) -> Result<(), StoreError> {
        let steps: Vec<TxnStep> = due
            .iter()
            .map(|(key, version)| {
                let compare = txn::has_version(&self.keys.record(key), *version);
                Txn { compare, success: self.removal(key), ..Txn::default() }.step()
            })
            .collect();
        let txn = Txn { success: branched(steps, super::commit::WIDTH), ..Txn::default() };
        self.client.commit(&txn).await.map(drop).map_err(store_error)
    }

    /// Reads every record, and notes when those of writers that are gone are to be removed.
    pub(super) async fn adopt(&self, writers: &[u32]) -> Result<(), StoreError> {
        for kind in ['l', 's'] {
            let mut range = self.keys.records(kind, "");
            while let Some(last) = self.adopt_page(&range, writers).await? {
                range.begin = format!("{last}\0");
            }
        }
        Ok(())
    }

    /// Removes messages to servers that are gone. They may be written after the server is gone, by
    /// one that does not know it yet.
    pub(super) async fn sweep_messages(&self) -> Result<(), StoreError> {
        let mut range = self.keys.inboxes();
        while let Some(last) = self.sweep_page(&range).await? {
            range.begin = format!("{last}\0");
        }
        Ok(())
    }

    /// The last key of a page; `None` where no page follows.
    async fn sweep_page(&self, range: &Range) -> Result<Option<String>, StoreError> {
        // Both of one state: a server that has a message and no sign of life is not one that
        // starts.
        let servers = txn::get_all(&self.keys.servers());
        let success = vec![servers, txn::get_page(range, PAGE, true)];
        let reply = self.client.run(&Txn { success, ..Txn::default() }).await;
        let mut ranges = reply.map_err(store_error)?.ranges();
        let (servers, page) =
            (ranges.next().unwrap_or_default(), ranges.next().unwrap_or_default());
        let alive: HashSet<Option<ServerId>> =
            servers.kvs.iter().map(|kv| self.keys.server_of(&kv.name())).collect();
        let is_gone = |name: &str| !alive.contains(&self.keys.server_of(name));
        let names = page.kvs.iter().map(KeyValue::name);
        let steps: Vec<TxnStep> =
            names.filter(|name| is_gone(name)).map(|name| txn::delete(&name)).collect();
        if !steps.is_empty() {
            let success = branched(steps, super::commit::WIDTH);
            let removed = self.client.run(&Txn { success, ..Txn::default() }).await;
            removed.map_err(store_error)?;
        }
        Ok(page.kvs.last().filter(|_| page.more).map(|last| last.name().into_owned()))
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
                due.add(&key, header.version, outlives(now_ms, lives_ms) + LATER_MS);
            }
        }
        Ok(page.kvs.last().filter(|_| page.more).map(|last| last.name().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::LockName;

    use super::*;

    /// A write whose outcome is not known leaves the record's old version or its new one.
    #[test]
    fn both_versions_are_due_until_one_is_known() {
        let key = Key::Lock(LockName::new("a").unwrap());
        let mut due = Due::default();
        due.add(&key, Version(1), 10);
        due.add(&key, Version(2), 20);
        assert_eq!(due.take(10), [(key.clone(), Version(1))]);
        // The removal failed, and is tried again beside the other one.
        due.add(&key, Version(1), 30);
        assert_eq!(due.take(30), [(key.clone(), Version(2)), (key.clone(), Version(1))]);
        due.add(&key, Version(3), 40);
        due.add(&key, Version(4), 50);
        due.add(&key, Version(4), 90);
        due.retain(&key, |version| version == Version(4));
        assert_eq!(due.take(80), [(key.clone(), Version(4))]);
        assert!(due.records.is_empty() && due.at.is_empty());
    }
}

//! A batch as a transaction: its groups with their conditions and writes, and what is around them.

use std::collections::{BTreeMap, HashSet};

use super::parts::{LARGE, SMALL, WIDTH};
use super::{Draft, GroupOutcome};
use crate::engines::contract::{Change, Group, Key, Version, Write};
use crate::engines::etcd::codec::Header;
use crate::engines::etcd::txn::branched;
use crate::engines::etcd::wire::{Compare, Txn, TxnReply, TxnStep};
use crate::engines::etcd::{EtcdInner, txn};
use crate::store::StoreError;

impl EtcdInner {
    /// The transaction; `None` where a record that had to be read first has changed.
    pub(super) async fn txn_of(
        &self,
        draft: &Draft<'_>,
        marker: &str,
        lease: u64,
        now_ms: u64,
    ) -> Result<Option<Txn>, StoreError> {
        let keys = &self.keys;
        let offset = draft.known.meta.offset;
        let mut steps = Vec::with_capacity(draft.sent.len());
        for at in &draft.sent {
            let group = draft.groups[*at];
            let mut step = self.txn_of_group(group, offset, now_ms);
            if step.compare.len() > LARGE {
                let Some(compare) = self.compare_revisions(group).await? else { return Ok(None) };
                step.compare = compare;
            }
            if step.width() > LARGE {
                return Err(StoreError::Limit {
                    what: "records in one step on etcd",
                    limit: LARGE as u64,
                });
            }
            steps.push(step.step());
        }
        let marker_key = keys.marker(self.writer);
        let mut success = vec![txn::put_on(&marker_key, draft.next.as_bytes(), lease)];
        success.extend(draft.meta.as_ref().map(|meta| txn::put(&keys.meta(), &meta.bytes())));
        success.extend(branched(steps, WIDTH));
        Ok(Some(Txn {
            compare: vec![draft.known.compare(keys), txn::says(&marker_key, marker.as_bytes())],
            success,
            failure: vec![txn::get(&keys.meta()), txn::get(&marker_key)],
        }))
    }

    fn txn_of_group(&self, group: &Group, offset: u64, now_ms: u64) -> Txn {
        let keys = &self.keys;
        let compare = group.reads.iter();
        let compare =
            compare.flat_map(|(key, version)| txn::has_version(&keys.record(key), *version));
        let mut success = Vec::new();
        for write in &group.writes {
            let read = group.reads.iter().find(|(key, _)| *key == write.key);
            let is_absent = read.is_none_or(|(_, version)| *version == Version::ABSENT);
            self.steps_of(write, is_absent, (offset, now_ms), &mut success);
        }
        let notify: HashSet<String> =
            group.notify.iter().map(|(server, key)| keys.message(*server, key)).collect();
        success.extend(notify.iter().map(|message| txn::put(message, b"")));
        let failure = group.reads.iter().map(|(key, _)| self.get(key));
        let success = if success.len() > SMALL { branched(success, WIDTH) } else { success };
        Txn { compare: compare.collect(), success, failure: failure.collect() }
    }

    /// Reads a lock with its items, or a session without.
    pub(crate) fn get(&self, key: &Key) -> TxnStep {
        match key {
            Key::Lock(_) => txn::get_all(&self.keys.whole(key)),
            Key::Session(_) => txn::get(&self.keys.record(key)),
        }
    }

    fn steps_of(
        &self,
        write: &Write,
        is_absent: bool,
        (offset, at_ms): (u64, u64),
        steps: &mut Vec<TxnStep>,
    ) {
        let keys = &self.keys;
        let key = &write.key;
        match &write.change {
            // Items belong to a record.
            Change::Keep | Change::Remove if is_absent => return,
            Change::Keep => {}
            Change::Remove => return steps.extend(self.removal(key)),
            Change::Put { version, value, lives_ms } => {
                let version = *version;
                let writer = self.writer;
                let lives_ms = *lives_ms;
                let header = Header { version, offset, writer, at_ms, lives_ms };
                steps.push(txn::put(&keys.record(key), &header.with(value)));
            }
        }
        // The last word on an item counts; etcd takes one.
        let items: BTreeMap<&str, Option<&[u8]>> =
            write.items.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
        steps.extend(items.into_iter().map(|(name, value)| match value {
            Some(value) => txn::put(&keys.item(key, name), value),
            None => txn::delete(&keys.item(key, name)),
        }));
    }

    /// Removes a record with its items.
    pub(crate) fn removal(&self, key: &Key) -> Vec<TxnStep> {
        let keys = &self.keys;
        match key {
            Key::Lock(_) => vec![txn::delete_all(&keys.whole(key))],
            Key::Session(_) => {
                vec![txn::delete(&keys.record(key)), txn::delete_all(&keys.items(key))]
            }
        }
    }

    /// One condition a record in place of two, for a group with many: its records are read first.
    async fn compare_revisions(&self, group: &Group) -> Result<Option<Vec<Compare>>, StoreError> {
        let keys: Vec<Key> = group.reads.iter().map(|(key, _)| key.clone()).collect();
        let (found, _) = self.read_raw(&keys, 0).await?;
        let mut compare = Vec::with_capacity(keys.len());
        for ((key, version), kvs) in group.reads.iter().zip(&found) {
            if self.version_of(key, kvs) != *version {
                return Ok(None);
            }
            let name = self.keys.record(key);
            let kv = kvs.iter().find(|kv| kv.name() == name);
            compare.push(txn::written_by(&name, kv.map_or(0, |kv| kv.mod_revision)));
        }
        Ok(Some(compare))
    }

    pub(super) fn outcomes_of(
        &self,
        draft: &Draft<'_>,
        reply: TxnReply,
    ) -> Vec<Option<GroupOutcome>> {
        let now_ms = self.now_ms();
        let mut outcomes: Vec<Option<GroupOutcome>> = draft.groups.iter().map(|_| None).collect();
        let is_branched = draft.sent.len() > WIDTH;
        let mut replies: Vec<TxnReply> = reply.txns().collect();
        if is_branched {
            replies = replies.into_iter().flat_map(TxnReply::txns).collect();
        }
        for (at, reply) in draft.sent.iter().zip(replies) {
            outcomes[*at] = Some(if reply.succeeded {
                Ok(())
            } else {
                let reads = draft.groups[*at].reads.iter().zip(reply.ranges());
                Err(reads.map(|((key, _), range)| self.snapshot(key, range.kvs, now_ms)).collect())
            });
        }
        outcomes
    }
}

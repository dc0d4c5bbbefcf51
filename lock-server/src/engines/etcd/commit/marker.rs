//! This server's last commit, and by it the outcome of a commit whose reply was lost.

use std::sync::atomic::Ordering;

use super::{Done, Draft, GroupOutcome, LOST_MAX, half_done};
use crate::engines::contract::{Change, Group, Key, ServerId, Version};
use crate::engines::etcd::client::CallError;
use crate::engines::etcd::lineage::Occasion;
use crate::engines::etcd::offset::Doubt;
use crate::engines::etcd::wire::{Header, KeyValue, Txn, TxnReply};
use crate::engines::etcd::{EtcdInner, MARKER_TTL_S, offset, store_error, txn};
use crate::store::StoreError;

/// Marker of this server's last commit: a key that the next commit compares and replaces, so that a
/// commit is applied at most once.
#[derive(Debug, Default)]
pub(crate) struct CommitMarker {
    /// The stored value; `None` if it has to be written anew.
    value: Option<String>,
    /// The etcd lease of the key; 0 for none.
    pub(crate) lease: u64,
    pub(super) count: u64,
    /// Commits whose outcome is unknown: they may still be applied.
    lost: Vec<String>,
}

impl CommitMarker {
    /// The etcd lease is gone, and the key with it.
    pub(super) fn forget_lease(&mut self) {
        *self = Self { count: self.count, ..Self::default() };
    }
}

impl EtcdInner {
    /// Returns the stored value, which is written anew if it is not known.
    pub(super) async fn take_marker(
        &self,
        marker: &mut CommitMarker,
    ) -> Result<String, StoreError> {
        if let Some(value) = &marker.value {
            return Ok(value.clone());
        }
        if marker.lease == 0 || !self.is_kept(marker.lease).await? {
            marker.lease = self.new_lease(MARKER_TTL_S).await?;
        }
        marker.count += 1;
        let value = format!("{:08x}.{}", self.writer, marker.count);
        let put = txn::put_on(&self.keys.marker(self.writer), value.as_bytes(), marker.lease);
        let txn = Txn { success: vec![put], ..Txn::default() };
        self.client.run(&txn).await.map_err(store_error)?;
        // Earlier transactions compare the value that is overwritten now, and can never be carried
        // out.
        marker.lost.clear();
        marker.value = Some(value.clone());
        Ok(value)
    }

    /// Records a transaction that was committed by the revision of `header`: the counter before its
    /// tokens, and why those are suspect.
    pub(super) fn wrote(
        &self,
        marker: &mut CommitMarker,
        draft: &Draft<'_>,
        header: &Header,
    ) -> (u64, Option<Doubt>) {
        let base = offset::base(draft.known.meta.offset, header.revision);
        let doubt = match draft.tokens {
            0 => draft.seen.doubt_of_writing(header),
            _ => draft.seen.doubt_of_tokens(header, base),
        };
        self.lineage.saw(header);
        marker.value = Some(draft.next.clone());
        marker.lost.clear();
        if let Some(meta) = &draft.meta {
            self.lineage.wrote(meta.clone());
        }
        if doubt.is_some() && draft.tokens == 0 {
            self.lineage.forget();
            return (base, None);
        }
        (base, doubt)
    }

    /// A version that no other write has: those of the driver begin with another random number.
    pub(super) fn next_version(&self) -> Version {
        let count = self.versions.fetch_add(1, Ordering::Relaxed);
        Version::of_write(ServerId(self.writer), count)
    }

    /// Why nothing was committed: the counter was changed, or this server's last commit is another
    /// one. That is this very commit where an earlier member has done it and its answer was lost.
    pub(super) async fn refused(
        &self,
        marker: &mut CommitMarker,
        draft: &Draft<'_>,
        reply: TxnReply,
    ) -> Result<Option<Done>, StoreError> {
        self.lineage.saw(&reply.header);
        let cluster_id = reply.header.cluster_id;
        let mut found = reply.ranges().map(|range| range.kvs.into_iter().next());
        let meta = found.next().flatten();
        let last = found.next().flatten();
        if let Some(last) = &last
            && last.value == draft.next.as_bytes()
        {
            let header = Header { cluster_id, revision: last.mod_revision };
            return self.done_before(marker, draft, &header).await.map(Some);
        }
        if !draft.known.is(meta.as_ref()) {
            self.lineage.forget();
        }
        let last = last.and_then(|kv| String::from_utf8(kv.value).ok());
        if last == marker.value {
            return Ok(None);
        }
        marker.value = last.filter(|last| marker.lost.contains(last));
        if marker.value.is_none() {
            self.lineage.forget();
            self.lineage.verify(&self.client, Occasion::Forgotten).await?;
        }
        Ok(None)
    }

    /// Finds out whether a commit with an unknown outcome was done: this server's last commit shows
    /// it, unless it is done yet.
    pub(super) async fn find(
        &self,
        marker: &mut CommitMarker,
        draft: Draft<'_>,
        error: CallError,
    ) -> Result<Done, StoreError> {
        let get = txn::get(&self.keys.marker(self.writer));
        let txn = Txn { success: vec![get], ..Txn::default() };
        if let Ok(reply) = self.client.run(&txn).await {
            let cluster_id = reply.header.cluster_id;
            let last = reply.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let last = last.map(|kv| (kv.value, kv.mod_revision));
            match (last, error) {
                (Some((value, revision)), _) if value == draft.next.as_bytes() => {
                    let header = Header { cluster_id, revision };
                    return self.done_before(marker, &draft, &header).await;
                }
                (Some((value, _)), CallError::Full(reason))
                    if marker.value.as_ref().is_some_and(|known| value == known.as_bytes()) =>
                {
                    return Err(StoreError::Unavailable(reason));
                }
                (_, error) => return Err(Self::lose(marker, draft, error)),
            }
        }
        Err(Self::lose(marker, draft, error))
    }

    /// Remembers a commit that may be done yet.
    fn lose(marker: &mut CommitMarker, draft: Draft<'_>, error: CallError) -> StoreError {
        if marker.lost.len() >= LOST_MAX {
            *marker = CommitMarker {
                count: marker.count,
                lease: marker.lease,
                ..CommitMarker::default()
            };
        } else {
            marker.lost.push(draft.next);
        }
        store_error(error)
    }

    /// The outcome of a commit by the revision of `header` whose reply was lost, by the records as
    /// they were then: others may have changed them since. What was refused is read later, as it
    /// stands.
    async fn done_before(
        &self,
        marker: &mut CommitMarker,
        draft: &Draft<'_>,
        header: &Header,
    ) -> Result<Done, StoreError> {
        let (base, doubt) = self.wrote(marker, draft, header);
        let sent = draft.sent.iter().map(|at| draft.groups[*at]);
        let keys: Vec<Key> =
            sent.flat_map(|group| &group.reads).map(|(key, _)| key.clone()).collect();
        let found = self.read_raw(&keys, header.revision).await;
        let (found, _) = found.map_err(|error| half_done(&error))?;
        let mut found = found.into_iter();
        let mut outcomes: Vec<Option<GroupOutcome>> = draft.groups.iter().map(|_| None).collect();
        for at in &draft.sent {
            let group = draft.groups[*at];
            let records: Vec<Vec<KeyValue>> = found.by_ref().take(group.reads.len()).collect();
            let was_done = group.reads.iter().zip(&records).all(|((key, read), kvs)| {
                self.version_of(key, kvs) == written(group, key).unwrap_or(*read)
            });
            outcomes[*at] = was_done.then_some(Ok(()));
        }
        Ok(Done { base, outcomes, doubt })
    }
}

/// The version that a group gives a record; `None` where it keeps its version.
fn written(group: &Group, key: &Key) -> Option<Version> {
    let write = group.writes.iter().find(|write| write.key == *key)?;
    match write.change {
        Change::Put { version, .. } => Some(version),
        Change::Remove => Some(Version::ABSENT),
        Change::Keep => None,
    }
}

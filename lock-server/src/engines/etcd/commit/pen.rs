//! This server's last commit, and by it the outcome of a commit whose reply was lost.

use std::sync::atomic::Ordering;

use super::{Done, Draft, GroupOutcome, LOST_MAX, half_done};
use crate::engines::contract::{Change, Group, Key, ServerId, Version};
use crate::engines::etcd::client::CallError;
use crate::engines::etcd::lineage::Occasion;
use crate::engines::etcd::offset::Doubt;
use crate::engines::etcd::wire::{Header, KeyValue, Txn, TxnReply};
use crate::engines::etcd::{EtcdInner, PEN_LIVES_S, offset, store_error, txn};
use crate::store::StoreError;

/// The key that says what this server committed last.
#[derive(Debug, Default)]
pub(crate) struct Pen {
    /// As it is written; none where it has to be written anew.
    value: Option<String>,
    /// The etcd lease that the key hangs on; 0 for none.
    pub(crate) lease: u64,
    pub(super) count: u64,
    /// Commits that may be done yet.
    lost: Vec<String>,
}

impl Pen {
    /// The etcd lease is gone, and the key with it.
    pub(super) fn forget_lease(&mut self) {
        *self = Self { count: self.count, ..Self::default() };
    }
}

impl EtcdInner {
    /// The last commit of this server as it is written; written anew where it is not known.
    pub(super) async fn take_pen(&self, pen: &mut Pen) -> Result<String, StoreError> {
        if let Some(value) = &pen.value {
            return Ok(value.clone());
        }
        if pen.lease == 0 || !self.is_kept(pen.lease).await? {
            pen.lease = self.new_lease(PEN_LIVES_S).await?;
        }
        pen.count += 1;
        let value = format!("{:08x}.{}", self.writer, pen.count);
        let put = txn::put_on(&self.keys.pen(self.writer), value.as_bytes(), pen.lease);
        let txn = Txn { success: vec![put], ..Txn::default() };
        self.client.run(&txn).await.map_err(store_error)?;
        // Earlier transactions compare the value that is overwritten now, and can never be carried
        // out.
        pen.lost.clear();
        pen.value = Some(value.clone());
        Ok(value)
    }

    /// Records a transaction that was committed by the revision of `header`: the counter before its
    /// tokens, and why those are suspect.
    pub(super) fn wrote(
        &self,
        pen: &mut Pen,
        draft: &Draft<'_>,
        header: &Header,
    ) -> (u64, Option<Doubt>) {
        let base = offset::base(draft.known.meta.offset, header.revision);
        let doubt = match draft.tokens {
            0 => draft.seen.doubt_of_writing(header),
            _ => draft.seen.doubt_of_tokens(header, base),
        };
        self.lineage.saw(header);
        pen.value = Some(draft.next.clone());
        pen.lost.clear();
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
        pen: &mut Pen,
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
            return self.done_before(pen, draft, &header).await.map(Some);
        }
        if !draft.known.is(meta.as_ref()) {
            self.lineage.forget();
        }
        let last = last.and_then(|kv| String::from_utf8(kv.value).ok());
        if last == pen.value {
            return Ok(None);
        }
        pen.value = last.filter(|last| pen.lost.contains(last));
        if pen.value.is_none() {
            self.lineage.forget();
            self.lineage.verify(&self.client, Occasion::Forgotten).await?;
        }
        Ok(None)
    }

    /// Finds out whether a commit with an unknown outcome was done: this server's last commit shows
    /// it, unless it is done yet.
    pub(super) async fn find(
        &self,
        pen: &mut Pen,
        draft: Draft<'_>,
        error: CallError,
    ) -> Result<Done, StoreError> {
        let get = txn::get(&self.keys.pen(self.writer));
        let txn = Txn { success: vec![get], ..Txn::default() };
        if let Ok(reply) = self.client.run(&txn).await {
            let cluster_id = reply.header.cluster_id;
            let last = reply.ranges().next().and_then(|range| range.kvs.into_iter().next());
            let last = last.map(|kv| (kv.value, kv.mod_revision));
            match (last, error) {
                (Some((value, revision)), _) if value == draft.next.as_bytes() => {
                    let header = Header { cluster_id, revision };
                    return self.done_before(pen, &draft, &header).await;
                }
                (Some((value, _)), CallError::Full(reason))
                    if pen.value.as_ref().is_some_and(|known| value == known.as_bytes()) =>
                {
                    return Err(StoreError::Unavailable(reason));
                }
                (_, error) => return Err(Self::lose(pen, draft, error)),
            }
        }
        Err(Self::lose(pen, draft, error))
    }

    /// Remembers a commit that may be done yet.
    fn lose(pen: &mut Pen, draft: Draft<'_>, error: CallError) -> StoreError {
        if pen.lost.len() >= LOST_MAX {
            *pen = Pen { count: pen.count, lease: pen.lease, ..Pen::default() };
        } else {
            pen.lost.push(draft.next);
        }
        store_error(error)
    }

    /// The outcome of a commit by the revision of `header` whose reply was lost, by the records as
    /// they were then: others may have changed them since. What was refused is read later, as it
    /// stands.
    async fn done_before(
        &self,
        pen: &mut Pen,
        draft: &Draft<'_>,
        header: &Header,
    ) -> Result<Done, StoreError> {
        let (base, doubt) = self.wrote(pen, draft, header);
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

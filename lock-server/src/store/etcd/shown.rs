//! What people are told of locks.

use fence_protocol::LockName;
use fence_protocol::wire::lock::{
    HolderReply, LeaseMode, LockLine, LockPage, LockReply, LockState, WaiterReply,
};

use super::txn::{Op, Txn};
use super::values::{self, HeldAt, RecordAt, WaiterAt};
use super::wire::KeyValue;
use super::{EtcdStore, keys::Subject, store_error};
use crate::store::{ListQuery, StoreError};

/// How many waiters a reply lists.
const WAITERS_SHOWN: u64 = 100;
/// How many steps of a transaction etcd takes by default is 128.
const COUNTS_AT_ONCE: usize = 100;

impl EtcdStore {
    pub(super) async fn show_lock(&self, lock: &LockName) -> Result<LockReply, StoreError> {
        let keys = &self.inner.keys;
        let txn = Txn::reading(vec![
            Op::get(&keys.holder(lock)),
            Op::get(&keys.record(lock)),
            Op::oldest(&keys.queue(lock), WAITERS_SHOWN),
        ]);
        let reply = self.inner.gateway.read(&txn).await.map_err(store_error)?;
        let mut ranges = reply.ranges();
        let mut next = || ranges.next().unwrap_or_default();
        let held = next().kvs.first().map(values::held_at).transpose()?;
        let record = next().kvs.first().map(values::record_at).transpose()?.unwrap_or_default();
        let queue = next();
        let waiters = queue.kvs.iter().map(values::waiter_at);
        let waiters: Vec<WaiterAt> = waiters.collect::<Result<_, _>>()?;
        let holder = match &held {
            Some(at) => Some(self.holder_reply(lock, at).await?),
            None => None,
        };
        Ok(LockReply {
            lock: lock.clone(),
            state: if holder.is_some() { LockState::Held } else { LockState::Free },
            lease_count: usize::from(holder.is_some()),
            holder,
            also_held: Vec::new(),
            size: None,
            delayed_ms: None,
            queue_length: usize::try_from(queue.count).unwrap_or(usize::MAX),
            queue: waiters.iter().map(|waiter| self.waiter_reply(waiter)).collect(),
            history: self.history(held.as_ref(), &record),
        })
    }

    async fn holder_reply(&self, lock: &LockName, at: &HeldAt) -> Result<HolderReply, StoreError> {
        Ok(HolderReply {
            lease_id: at.held.lease_id,
            info: self.info(lock, at).await?,
            ttl_ms: at.held.ttl_ms,
            renewals: at.held.renewals,
            mode: LeaseMode::Exclusive,
            session_id: at.held.session,
            incarnation: at.held.incarnation.clone(),
            metadata: at.held.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        })
    }

    fn waiter_reply(&self, at: &WaiterAt) -> WaiterReply {
        WaiterReply {
            lease_id: at.waiter.lease_id,
            owner: at.waiter.owner.clone(),
            waiting_ms: self.wall_ms().saturating_sub(at.waiter.since_ms),
            mode: LeaseMode::Exclusive,
        }
    }

    fn history(
        &self,
        held: Option<&HeldAt>,
        at: &RecordAt,
    ) -> Vec<fence_protocol::wire::lock::EndedLease> {
        let granted = at.record.granted.as_ref();
        let live = held.map(|at| at.held.lease_id);
        // A lease that its etcd lease ended has no end in the record yet.
        let is_live = granted.is_none_or(|granted| Some(granted.lease_id) == live);
        let wall_ms = self.wall_ms();
        let record = if is_live { at.record.clone() } else { at.record.settled(wall_ms, "") };
        record.ended.iter().map(|ended| ended.shown(wall_ms)).collect()
    }

    pub(super) async fn list_locks(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        let range = self.inner.keys.holders_after(&query.prefix, query.after.as_ref());
        let page = self.inner.gateway.page(&range, query.limit.saturating_add(1)).await;
        let mut held = Vec::new();
        for kv in page.map_err(store_error)?.kvs {
            held.extend(self.named(&kv)?);
        }
        let has_more = held.len() > query.limit;
        held.truncate(query.limit);
        let mut locks = Vec::with_capacity(held.len());
        for some in held.chunks(COUNTS_AT_ONCE) {
            locks.extend(self.lines(some).await?);
        }
        let last = locks.last().map(|line: &LockLine| line.lock.clone());
        Ok(LockPage { locks, next_after: last.filter(|_| has_more) })
    }

    fn named(&self, kv: &KeyValue) -> Result<Option<(LockName, HeldAt)>, StoreError> {
        match self.inner.keys.subject(&kv.key) {
            Subject::Holder(lock) => Ok(Some((lock, values::held_at(kv)?))),
            _ => Ok(None),
        }
    }

    async fn lines(&self, held: &[(LockName, HeldAt)]) -> Result<Vec<LockLine>, StoreError> {
        let counts = held.iter().map(|(lock, _)| Op::count(&self.inner.keys.queue(lock)));
        let txn = Txn::reading(counts.collect());
        let infos = held.iter().map(|(lock, at)| self.info(lock, at));
        let (counts, infos) =
            tokio::join!(self.inner.gateway.read(&txn), futures_util::future::join_all(infos));
        let counts = counts.map_err(store_error)?.ranges().map(|range| range.count);
        let lines = held.iter().zip(infos).zip(counts).map(|(((lock, _), holder), count)| {
            let queue_length = usize::try_from(count).unwrap_or(usize::MAX);
            Ok(LockLine { lock: lock.clone(), holder: holder?, queue_length })
        });
        lines.collect()
    }
}

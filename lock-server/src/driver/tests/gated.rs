//! A store whose commits a test holds back or cuts off.

use tokio::sync::Semaphore;

use super::*;

/// Shared records, each of whose commits takes a permit of the gate; one ends without a reply.
#[derive(Debug)]
pub(super) struct Gated {
    pub(super) records: MemoryRecords,
    pub(super) gate: Semaphore,
    pub(super) is_cut: AtomicBool,
    /// Batches may be under way beside each other.
    pub(super) overlaps: bool,
    /// A commit writes the first of its groups, as etcd does with large ones.
    pub(super) commits_one: bool,
}

impl Gated {
    pub(super) fn new(kit: &Kit, permits: usize) -> Self {
        let records = MemoryRecords::new(kit.clock.clone(), 0);
        let gate = Semaphore::new(permits);
        Self { records, gate, is_cut: AtomicBool::new(false), overlaps: false, commits_one: false }
    }
}

#[async_trait]
impl RecordStore for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn overlap_min(&self, under_way: usize) -> Option<usize> {
        self.overlaps.then_some(under_way.max(1))
    }

    fn halves_from(&self) -> usize {
        8
    }

    fn ends_max(&self) -> usize {
        4
    }

    fn now_ms(&self) -> u64 {
        self.records.now_ms()
    }

    async fn read(&self, keys: &[Key]) -> Result<(Vec<Snapshot>, u64), StoreError> {
        self.records.read(keys).await
    }

    async fn commit(&self, mut batch: Batch) -> Result<Committed, StoreError> {
        self.gate.acquire().await.unwrap().forget();
        if self.is_cut.swap(false, Ordering::SeqCst) {
            return Err(StoreError::Unknown("the connection broke".to_owned()));
        }
        let put_off = if self.commits_one { batch.groups.split_off(1) } else { Vec::new() };
        let mut committed = self.records.commit(batch).await?;
        for group in put_off {
            let keys: Vec<Key> = group.reads.into_iter().map(|(key, _)| key).collect();
            committed.groups.push(Err(self.records.read(&keys).await?.0));
        }
        Ok(committed)
    }
}

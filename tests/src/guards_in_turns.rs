//! Two guards of one datastore as one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};
use fenced_store::stores::contract::{
    FenceList, FenceOutcome, FenceQuery, FenceStore, Fences, Once, Operation, StoreError,
};
use fenced_store::stores::report::StoreReport;
use fenced_store::verdict::{Fence, Mark};

/// A store whose calls go to two guards in turns.
#[derive(Debug)]
pub struct GuardsInTurns {
    guards: [Arc<dyn FenceStore>; 2],
    calls: AtomicUsize,
}

impl GuardsInTurns {
    /// Of these two.
    pub fn new(guards: [Arc<dyn FenceStore>; 2]) -> Self {
        Self { guards, calls: AtomicUsize::new(0) }
    }

    fn next(&self) -> &dyn FenceStore {
        &*self.guards[self.calls.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

#[async_trait]
impl Fences for GuardsInTurns {
    fn guarantee(&self) -> Guarantee {
        self.next().guarantee()
    }

    fn report(&self) -> StoreReport {
        self.next().report()
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.next().seal(fence).await
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        self.next().highest_mark().await
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        self.next().show(lock).await
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.next().list(query).await
    }
}

#[async_trait]
impl FenceStore for GuardsInTurns {
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        self.next().apply_once(fence, operation, once).await
    }
}

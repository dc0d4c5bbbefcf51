//! The store on a local disk: one redb file, marks and data in one write transaction.

use std::path::Path;

use async_trait::async_trait;
use fence_protocol::LockName;
use fence_protocol::wire::fence::Guarantee;
use service_kit::health::Health;

use super::{FenceList, FenceQuery, FenceStore, Fences, Operation, Outcome, StoreError};
use crate::commit::{Committer, FolderError, marks};
use crate::guard::{Fence, Mark};

mod step;
mod tables;

/// Marks and objects in one file. One process at a time may have it open.
///
/// A read whose token is the mark needs no commit: it sees a snapshot of what is durable, in which
/// mark and object belong together. So does a read that is stale: a mark never falls. Everything
/// else goes through the writer.
#[derive(Debug)]
pub struct EmbeddedStore {
    file: Committer,
}

impl EmbeddedStore {
    /// Opens `folder`, or makes it; tells `health` when the disk fails.
    ///
    /// # Errors
    /// [`FolderError`], naming the path and what to do.
    pub fn open(folder: &Path, health: &Health) -> Result<Self, FolderError> {
        let file = Committer::open(folder, "fenced-store.redb", health, tables::prepare)?;
        Ok(Self { file })
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    async fn step(
        &self,
        fence: Option<Fence>,
        operation: Option<Operation>,
    ) -> Result<Outcome, StoreError> {
        let bytes = match &operation {
            Some(Operation::Put { object, .. }) => object.body.len(),
            _ => 0,
        };
        self.file
            .submit(bytes, move |transaction| step::write(transaction, fence.as_ref(), operation))
            .await
    }
}

#[async_trait]
impl Fences for EmbeddedStore {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Atomic
    }

    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError> {
        self.step(Some(fence), None).await
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let lock = lock.clone();
        self.file.read(move |snapshot| marks::get(&snapshot.open_table(marks::MARKS)?, &lock)).await
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.file.read(move |snapshot| marks::list(snapshot, &query)).await
    }
}

#[async_trait]
impl FenceStore for EmbeddedStore {
    async fn apply(
        &self,
        fence: Option<Fence>,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        if let Operation::Get { key } = &operation {
            let (asked, key) = (fence.clone(), key.clone());
            let seen = self.file.read(move |snapshot| step::read(snapshot, asked.as_ref(), &key));
            if let Some(outcome) = seen.await? {
                // A commit that failed meanwhile may have left the snapshot's mark undecided.
                self.file.check()?;
                return Ok(outcome);
            }
        }
        self.step(fence, Some(operation)).await
    }
}

//! Store on a local disk: one redb file, marks and data in one write transaction.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};
use service_kit::Kit;
use service_kit::health::Health;

use super::commit::marks::Highest;
use super::commit::{Committer, FolderError, marks};
use super::contract::{
    FenceList, FenceOutcome, FenceQuery, FenceStore, Fences, Once, Operation, StoreError,
};
use super::probe;
use super::report::{Gaps, Shown, StoreReport};
use crate::verdict::{Fence, Mark};

mod names;
pub(crate) mod step;
mod tables;

/// Marks and objects in one file, which one process at a time may open.
///
/// A read whose token is the mark needs no commit: its snapshot of the durable state has mark and
/// object together. Nor does a stale read: a mark never falls. Everything else goes through the
/// writer.
#[derive(Debug)]
pub struct EmbeddedStore {
    file: Committer,
    highest: Highest,
    shown: Shown,
}

/// Folder, inside the data folder, of the probe's file, which is removed afterwards.
const PROBE: &str = "probe";

impl EmbeddedStore {
    /// Opens or creates `folder`; notifies `health` when the disk fails. Without a guarantee yet.
    ///
    /// # Errors
    /// [`FolderError`], with the path and the remedy.
    pub fn open(folder: &Path, health: &Health) -> Result<Self, FolderError> {
        let highest = Highest::default();
        let file = Committer::open(folder, "fenced-store.redb", health, |transaction| {
            tables::prepare(transaction)?;
            highest.read(transaction)
        })?;
        Ok(Self { file, highest, shown: Shown::default() })
    }

    /// Opens `folder`, and probes a second file in it, which is then removed: a step is atomic
    /// there, and is still known after the file was opened again.
    ///
    /// # Errors
    /// [`FolderError`], with the path and the remedy.
    pub async fn probed(folder: &Path, kit: &Kit) -> Result<Self, FolderError> {
        let mut store = Self::open(folder, &kit.health)?;
        let scratch = folder.join(PROBE);
        let failed = |error: String| FolderError::new(&scratch, error);
        // Any file there is left from an interrupted probe: this process owns the folder.
        let cleaned = || match std::fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error.to_string())),
            _ => Ok(()),
        };
        cleaned()?;
        let words = try_out(&scratch, kit).await.map_err(failed)?;
        cleaned()?;
        store.shown = Shown::atomic(words);
        Ok(store)
    }
}

async fn try_out(scratch: &Path, kit: &Kit) -> Result<String, String> {
    let open = || EmbeddedStore::open(scratch, &Health::new()).map_err(|error| error.to_string());
    let store: Arc<dyn FenceStore> = Arc::new(open()?);
    let words = probe::probe(&[store], kit).await?;
    probe::remembers(&open()?).await?;
    Ok(format!("{words}; the marks were still there after the file was opened again"))
}

#[async_trait]
impl Fences for EmbeddedStore {
    fn guarantee(&self) -> Guarantee {
        self.shown.guarantee()
    }

    fn report(&self) -> StoreReport {
        StoreReport {
            kind: "embedded",
            target: self.file.path().display().to_string(),
            guarantee: self.guarantee(),
            probe: self.shown.words(),
            gaps: Gaps::inherent([
                "An older copy of the folder restores older marks with the older data: a client that \
                 was refused before may write again.",
                "A disk that acknowledges writes and loses them loses marks and data together.",
            ]),
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        self.file.check()?;
        Ok(self.highest.get())
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        step::submit(&self.file, &self.highest, Some(fence), None, None).await
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
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError> {
        if let Operation::Get { key } = &operation {
            let asked = fence.clone();
            let key = key.clone();
            let seen = self.file.read(move |snapshot| step::read(snapshot, asked.as_ref(), &key));
            if let Some(outcome) = seen.await? {
                // A commit that failed meanwhile may have made the snapshot's mark uncertain.
                self.file.check()?;
                return Ok(outcome);
            }
        }
        step::submit(&self.file, &self.highest, fence, Some(operation), once).await
    }
}

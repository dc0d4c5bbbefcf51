//! The store on a local disk: one redb file, marks and data in one write transaction.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};
use redb::WriteTransaction;
use service_kit::Kit;
use service_kit::health::Health;

use super::report::{Shown, StoreReport};
use super::{
    FenceList, FenceQuery, FenceStore, Fences, Once, Operation, Outcome, StoreError, probe,
};
use crate::store::commit::marks::Highest;
use crate::store::commit::{Committer, FolderError, marks};
use crate::verdict::{Fence, Mark};

mod names;
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
    highest: Highest,
    shown: Shown,
}

/// The folder, inside the data folder, of the file that the probe makes and throws away.
const PROBE: &str = "probe";

impl EmbeddedStore {
    /// Opens `folder`, or makes it; tells `health` when the disk fails. It promises nothing yet.
    ///
    /// # Errors
    /// [`FolderError`], naming the path and what to do.
    pub fn open(folder: &Path, health: &Health) -> Result<Self, FolderError> {
        let highest = Highest::default();
        let file = Committer::open(folder, "fenced-store.redb", health, |transaction| {
            tables::prepare(transaction)?;
            highest.read(transaction)
        })?;
        Ok(Self { file, highest, shown: Shown::default() })
    }

    /// Opens `folder` as above, and shows on a second file in it, which is thrown away, that a step
    /// is atomic there and is still known when the file is opened again.
    ///
    /// # Errors
    /// [`FolderError`], naming the path and what to do.
    pub async fn probed(folder: &Path, kit: &Kit) -> Result<Self, FolderError> {
        let mut store = Self::open(folder, &kit.health)?;
        let scratch = folder.join(PROBE);
        let failed = |error: String| FolderError::new(&scratch, error);
        // Whatever is there is what a probe left that was cut off: this process has the folder.
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

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    async fn step(
        &self,
        fence: Option<Fence>,
        operation: Option<Operation>,
        once: Option<Once>,
    ) -> Result<Outcome, StoreError> {
        let bytes = match &operation {
            Some(Operation::Put { object, .. }) => object.body.len(),
            _ => 0,
        };
        let highest = self.highest.clone();
        let work = move |transaction: &WriteTransaction| {
            let done = step::write(transaction, fence.as_ref(), operation, once.as_ref())?;
            if let Some(mark) = done.answer.mark() {
                highest.note(mark);
            }
            Ok(done)
        };
        self.file.submit(bytes, work).await
    }
}

async fn try_out(scratch: &Path, kit: &Kit) -> Result<String, String> {
    let open = || EmbeddedStore::open(scratch, &Health::new()).map_err(|error| error.to_string());
    let store: Arc<dyn FenceStore> = Arc::new(open()?);
    let words = probe::probe(&store, kit).await?;
    drop(store);
    probe::remembers(&open()?).await?;
    Ok(format!("{words}; the marks were there when the file was opened again"))
}

#[async_trait]
impl Fences for EmbeddedStore {
    fn guarantee(&self) -> Guarantee {
        self.shown.guarantee()
    }

    fn report(&self) -> StoreReport {
        StoreReport {
            kind: "embedded",
            target: self.path().display().to_string(),
            guarantee: self.guarantee(),
            probe: self.shown.words(),
            gaps: vec![
                "An older copy of the folder brings older marks back with the older data: whoever \
                 was refused before may write again."
                    .to_owned(),
                "A disk that says it has written and has not loses marks and data together."
                    .to_owned(),
            ],
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        self.file.check()?;
        Ok(self.highest.get())
    }

    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError> {
        self.step(Some(fence), None, None).await
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
        self.step(fence, Some(operation), once).await
    }
}

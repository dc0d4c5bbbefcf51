//! Durable state of the lanes: marks, and the intents of writes that may be at the upstream.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fence_protocol::{LockName, Token};
use redb::{ReadableTable as _, TableDefinition, WriteTransaction};
use service_kit::Kit;
use service_kit::tasks::Tasks;

use super::lane::OpId;
use crate::store::commit::marks::{self, Highest, MARKS};
use crate::store::commit::{Cause, Committer, Done, FolderError};
use crate::store::{Effect, FenceList, FenceOutcome, FenceQuery, StoreError};
use crate::verdict::{Fence, Mark, Verdict, judge};

/// Operation → (lock, token).
const INTENTS: TableDefinition<'_, u64, (&str, u64)> = TableDefinition::new("intents");

/// Time that a resolved intent may stay in the file. A crash within it costs a needless quarantine;
/// a commit for each would cost every write twice.
const FORGET_AFTER: Duration = Duration::from_millis(50);

/// The file of the state folder. All clones share it.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    file: Arc<Committer>,
    highest: Highest,
    /// Resolved intents that are still in the file.
    resolved: Arc<Mutex<Vec<OpId>>>,
    tasks: Tasks,
}

/// An intent found at start.
#[derive(Clone, Debug)]
pub(super) struct Intent {
    pub(super) op: OpId,
    pub(super) lock: LockName,
    pub(super) token: Token,
}

impl Journal {
    pub(super) fn open(folder: &Path, kit: &Kit) -> Result<Self, FolderError> {
        let highest = Highest::default();
        let file = Committer::open(folder, "lanes.redb", &kit.health, |transaction| {
            transaction.open_table(MARKS)?;
            transaction.open_table(INTENTS)?;
            highest.read(transaction)
        })?;
        let file = Arc::new(file);
        let resolved = Arc::default();
        Ok(Self { file, highest, resolved, tasks: kit.tasks.clone() })
    }

    /// Fails once the file cannot be trusted.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.file.check()
    }

    /// Returns every unresolved intent.
    pub(super) async fn intents(&self) -> Result<Vec<Intent>, StoreError> {
        self.file
            .read(|snapshot| {
                let mut found = Vec::new();
                for row in snapshot.open_table(INTENTS)?.iter()? {
                    let (op, row) = row?;
                    let (lock, token) = row.value();
                    let lock = LockName::new(lock)?;
                    let token = Token::new(token)?;
                    found.push(Intent { op: op.value(), lock, token });
                }
                Ok(found)
            })
            .await
    }

    pub(super) async fn mark(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let lock = lock.clone();
        self.file.read(move |snapshot| marks::get(&snapshot.open_table(MARKS)?, &lock)).await
    }

    pub(super) async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.file.read(move |snapshot| marks::list(snapshot, &query)).await
    }

    /// Returns the highest mark of all lanes, or a higher number.
    pub(super) fn highest(&self) -> Option<Token> {
        self.highest.get()
    }

    /// Returns the file's path, for messages.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Compares a token with the mark and raises the mark, in one step. A lane in memory does not
    /// learn of it: for observe mode, which has no lanes.
    pub(super) async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        let applied =
            FenceOutcome::Applied { effect: Effect::Sealed, mark: Some(fence.presented.token) };
        match judge(self.mark(&fence.lock).await?, fence.presented) {
            Verdict::Admit => return Ok(applied),
            Verdict::Stale { mark } => return Ok(FenceOutcome::Stale { mark }),
            Verdict::Collision { mark } => return Ok(FenceOutcome::Collision { mark }),
            Verdict::Raise => {}
        }
        let highest = self.highest.clone();
        let write = move |transaction: &WriteTransaction| {
            let mut table = transaction.open_table(MARKS)?;
            let mark = marks::get(&table, &fence.lock)?;
            Ok(match judge(mark, fence.presented) {
                Verdict::Stale { mark } => Done::unchanged(FenceOutcome::Stale { mark }),
                Verdict::Collision { mark } => Done::unchanged(FenceOutcome::Collision { mark }),
                Verdict::Admit => Done::unchanged(applied),
                Verdict::Raise => {
                    highest.record(fence.presented.token);
                    marks::set(&mut table, &fence.lock, fence.presented)?;
                    Done { answer: applied, changed: true }
                }
            })
        };
        self.file.submit(0, write).await
    }

    /// Makes a mark and an intent durable, in one step.
    pub(super) async fn persist(
        &self,
        lock: LockName,
        mark: Option<Mark>,
        intent: Option<(OpId, Token)>,
    ) -> Result<(), StoreError> {
        let resolved = Arc::clone(&self.resolved);
        let highest = self.highest.clone();
        let write = move |transaction: &WriteTransaction| {
            if let Some(mark) = mark {
                highest.record(mark.token);
                marks::set(&mut transaction.open_table(MARKS)?, &lock, mark)?;
            }
            remove(transaction, &resolved)?;
            if let Some((op, token)) = intent {
                transaction.open_table(INTENTS)?.insert(op, (lock.as_str(), token.get()))?;
            }
            Ok(Done { answer: (), changed: true })
        };
        self.file.submit(0, write).await
    }

    /// Removes an intent, within 50 ms.
    pub(super) fn forget(&self, op: OpId) {
        let is_first = {
            let mut resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
            resolved.push(op);
            resolved.len() == 1
        };
        if !is_first {
            return;
        }
        let journal = self.clone();
        let stop = self.tasks.shutdown_token();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(FORGET_AFTER) => {}
            }
            let resolved = Arc::clone(&journal.resolved);
            let write = move |transaction: &WriteTransaction| {
                let changed = remove(transaction, &resolved)?;
                Ok(Done { answer: (), changed })
            };
            if let Err(error) = journal.file.submit(0, write).await {
                tracing::debug!(%error, "resolved intents stay in the file");
            }
        });
    }
}

fn remove(transaction: &WriteTransaction, resolved: &Mutex<Vec<OpId>>) -> Result<bool, Cause> {
    let resolved = std::mem::take(&mut *resolved.lock().unwrap_or_else(PoisonError::into_inner));
    if resolved.is_empty() {
        return Ok(false);
    }
    let mut intents = transaction.open_table(INTENTS)?;
    for op in resolved {
        intents.remove(op)?;
    }
    Ok(true)
}

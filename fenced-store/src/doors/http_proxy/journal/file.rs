//! Journal in a file: one guard.

use std::path::Path;
use std::sync::Arc;

use fence_protocol::{LockName, Token};
use redb::{ReadableTable as _, TableDefinition, TableHandle as _, WriteTransaction};
use service_kit::Kit;

use super::{Changes, OpenLane};
use crate::stores::commit::marks::{Highest, MARKS};
use crate::stores::commit::{Cause, Committer, Done, FolderError, marks};
use crate::stores::contract::{Effect, FenceList, FenceOutcome, FenceQuery, StoreError};
use crate::stores::embedded::step;
use crate::stores::lanes::Opening;
use crate::verdict::{Fence, Mark, Verdict, judge};

/// Bit of an open lane whose writes are all conditional. It is no part of a token: a version
/// without conditions refuses the row, and does not take the writes for its own.
const CONDITIONAL: u64 = 1 << 63;

/// Open lane → lowest token whose writes may be at the upstream, and [`CONDITIONAL`].
const OPEN: TableDefinition<'_, &str, u64> = TableDefinition::new("open");

/// Operation → (lock, token), one for each write: the form of version 0.1.
const INTENTS: TableDefinition<'_, u64, (&str, u64)> = TableDefinition::new("intents");

/// The file of the state folder. All clones share it.
#[derive(Clone, Debug)]
pub(crate) struct FileJournal {
    file: Arc<Committer>,
    highest: Highest,
}

impl FileJournal {
    pub(crate) fn open(folder: &Path, kit: &Kit) -> Result<Self, FolderError> {
        let highest = Highest::default();
        let file = Committer::open(folder, "lanes.redb", &kit.health, |transaction| {
            transaction.open_table(MARKS)?;
            transaction.open_table(OPEN)?;
            replace_intents(transaction)?;
            highest.read(transaction)
        })?;
        Ok(Self { file: Arc::new(file), highest })
    }

    /// Fails once the file cannot be trusted.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.file.check()
    }

    /// Returns every open lane: its lock and mark, and how it is open.
    pub(crate) async fn open_lanes(&self) -> Result<Vec<OpenLane>, StoreError> {
        self.file
            .read(|snapshot| {
                let marks = snapshot.open_table(MARKS)?;
                let mut found = Vec::new();
                for row in snapshot.open_table(OPEN)?.iter()? {
                    let (lock, opening) = row?;
                    let lock = LockName::new(lock.value())?;
                    let mark = marks::get(&marks, &lock)?;
                    let token = Token::new(opening.value() & !CONDITIONAL)?;
                    let is_conditional = opening.value() & CONDITIONAL != 0;
                    found.push((lock, mark, Opening { token, is_conditional }));
                }
                Ok(found)
            })
            .await
    }

    pub(crate) async fn mark(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        let lock = lock.clone();
        self.file.read(move |snapshot| marks::get(&snapshot.open_table(MARKS)?, &lock)).await
    }

    pub(crate) async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.file.read(move |snapshot| marks::list(snapshot, &query)).await
    }

    /// Returns the highest mark of all lanes, or a higher number.
    pub(crate) fn highest(&self) -> Option<Token> {
        self.highest.get()
    }

    /// Returns the file's path, for messages.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Compares a token with the mark and raises the mark, in one step. A lane in memory does not
    /// learn of it: for observe mode, which has no lanes.
    pub(crate) async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        let applied =
            FenceOutcome::Applied { effect: Effect::Sealed, mark: Some(fence.presented.token) };
        match judge(self.mark(&fence.lock).await?, fence.presented) {
            Verdict::Admit => return Ok(applied),
            Verdict::Stale { mark } => return Ok(FenceOutcome::Stale { mark }),
            Verdict::Collision { mark } => return Ok(FenceOutcome::Collision { mark }),
            Verdict::Raise => {}
        }
        step::submit(&self.file, &self.highest, Some(fence), None, None).await
    }

    /// Makes changes durable, in one step.
    ///
    /// # Errors
    /// [`StoreError`], which is final: the file cannot be trusted any more.
    pub(crate) async fn commit(&self, changes: Arc<Changes>) -> Result<(), StoreError> {
        let highest = self.highest.clone();
        let write = move |transaction: &WriteTransaction| {
            let mut marks = transaction.open_table(MARKS)?;
            let mut opened = transaction.open_table(OPEN)?;
            for (lock, change) in changes.iter() {
                if let Some(mark) = change.mark {
                    highest.record(mark.token);
                    marks::set(&mut marks, lock, mark)?;
                }
                match change.open {
                    Some(Opening { token, is_conditional }) => {
                        let bit = if is_conditional { CONDITIONAL } else { 0 };
                        opened.insert(lock.as_str(), token.get() | bit)?
                    }
                    None => opened.remove(lock.as_str())?,
                };
            }
            Ok(Done { answer: (), changed: true })
        };
        self.file.submit(0, write).await
    }
}

/// Opens the lanes of unresolved intents that version 0.1 left, and drops their table.
fn replace_intents(transaction: &WriteTransaction) -> Result<(), Cause> {
    if !transaction.list_tables()?.any(|table| table.name() == INTENTS.name()) {
        return Ok(());
    }
    let mut opened = transaction.open_table(OPEN)?;
    for row in transaction.open_table(INTENTS)?.iter()? {
        let (_, row) = row?;
        let (lock, token) = row.value();
        let earlier = opened.get(lock)?.map(|token| token.value());
        opened.insert(lock, earlier.map_or(token, |earlier| earlier.min(token)))?;
    }
    transaction.delete_table(INTENTS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 0.1 left an intent for each write whose outcome it did not know.
    #[tokio::test]
    async fn unresolved_intents_of_the_version_before_are_open_lanes() {
        let kit = Kit::new("test");
        let folder = tempfile::tempdir().unwrap();
        let database = redb::Database::create(folder.path().join("lanes.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        let mut intents = transaction.open_table(INTENTS).unwrap();
        for (op, row) in [(1, ("a", 34)), (2, ("b", 7)), (3, ("a", 33))] {
            intents.insert(op, row).unwrap();
        }
        drop(intents);
        transaction.commit().unwrap();
        drop(database);
        // The second start finds what the first has written.
        for _ in 0..2 {
            let journal = FileJournal::open(folder.path(), &kit).unwrap();
            let found = journal.open_lanes().await.unwrap();
            let found: Vec<_> = found
                .iter()
                .map(|(lock, _, open)| (lock.as_str(), open.token.get(), open.is_conditional))
                .collect();
            assert_eq!(found, [("a", 33, false), ("b", 7, false)]);
        }
    }
}

//! Table of marks, in the objects' file and in the lanes' journal.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fence_protocol::{LockName, Token};
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::Cause;
use crate::stores::contract::{FenceList, FenceQuery};
use crate::verdict::Mark;

/// Lock → (token, lease). Rows are never removed (invariant G4).
pub(crate) const MARKS: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("marks");

/// Returns the mark of `lock`.
pub(crate) fn get(
    marks: &impl ReadableTable<&'static str, (u64, &'static str)>,
    lock: &LockName,
) -> Result<Option<Mark>, Cause> {
    let Some(row) = marks.get(lock.as_str())? else { return Ok(None) };
    parse(row.value()).map(Some)
}

/// Writes the mark of `lock`. A lower mark is an error: a second check, independent of the one that
/// decided.
pub(crate) fn set(
    marks: &mut Table<'_, &'static str, (u64, &'static str)>,
    lock: &LockName,
    mark: Mark,
) -> Result<(), Cause> {
    if let Some(before) = get(marks, lock)?.filter(|before| before.token >= mark.token) {
        let before = before.token;
        let mark = mark.token;
        return Err(format!("refusing to lower the mark of {lock} from {before} to {mark}").into());
    }
    marks.insert(lock.as_str(), (mark.token.get(), mark.lease.to_string().as_str()))?;
    Ok(())
}

/// Parses a stored mark. One that cannot be parsed is damage: nothing may be admitted then.
fn parse((token, lease): (u64, &str)) -> Result<Mark, Cause> {
    Ok(Mark { token: Token::new(token)?, lease: lease.parse()? })
}

/// Highest mark of a file, in memory: read once, raised with every mark from then on. All clones
/// share it.
///
/// It may be above the file's highest after a failed commit, which is harmless: callers need a
/// number that no mark exceeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Highest(Arc<AtomicU64>);

impl Highest {
    /// Reads all stored marks.
    pub(crate) fn read(&self, transaction: &WriteTransaction) -> Result<(), Cause> {
        for row in transaction.open_table(MARKS)?.iter()? {
            self.0.fetch_max(row?.1.value().0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records a raised mark.
    pub(crate) fn record(&self, token: Token) {
        self.0.fetch_max(token.get(), Ordering::Relaxed);
    }

    /// Returns the highest mark; `None` if there is none.
    pub(crate) fn get(&self) -> Option<Token> {
        Token::new(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// Returns a page of marks.
pub(crate) fn list(snapshot: &ReadTransaction, query: &FenceQuery) -> Result<FenceList, Cause> {
    let marks = snapshot.open_table(MARKS)?;
    let from = match &query.after {
        Some(after) if after.as_str() >= query.prefix.as_str() => Bound::Excluded(after.as_str()),
        _ => Bound::Included(query.prefix.as_str()),
    };
    let mut page = FenceList::default();
    for row in marks.range::<&str>((from, Bound::Unbounded))? {
        let (lock, mark) = row?;
        if !lock.value().starts_with(&query.prefix) {
            break;
        }
        if page.fences.len() == query.limit {
            page.more = true;
            break;
        }
        page.fences.push((LockName::new(lock.value())?, parse(mark.value())?));
    }
    Ok(page)
}

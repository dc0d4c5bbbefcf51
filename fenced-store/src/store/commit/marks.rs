//! The table of marks; the objects' file and the lanes' journal both have one.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fence_protocol::{LockName, Token};
use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::Cause;
use crate::store::{FenceList, FenceQuery};
use crate::verdict::Mark;

/// Lock → (token, lease). Rows are never removed (invariant G4).
pub(crate) const MARKS: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("marks");

/// The mark of `lock`.
pub(crate) fn get(
    marks: &impl ReadableTable<&'static str, (u64, &'static str)>,
    lock: &LockName,
) -> Result<Option<Mark>, Cause> {
    let Some(row) = marks.get(lock.as_str())? else { return Ok(None) };
    parse(row.value()).map(Some)
}

/// Writes the mark of `lock`, which must not fall; that it does not is checked here once more, on
/// a path that does not depend on who decided.
pub(crate) fn set(
    marks: &mut Table<'_, &'static str, (u64, &'static str)>,
    lock: &LockName,
    mark: Mark,
) -> Result<(), Cause> {
    if let Some(before) = get(marks, lock)?.filter(|before| before.token >= mark.token) {
        let (before, mark) = (before.token, mark.token);
        return Err(format!("refusing to lower the mark of {lock} from {before} to {mark}").into());
    }
    marks.insert(lock.as_str(), (mark.token.get(), mark.lease.to_string().as_str()))?;
    Ok(())
}

/// A mark as it was stored. One that cannot be read is damage: nothing may be admitted then.
fn parse((token, lease): (u64, &str)) -> Result<Mark, Cause> {
    Ok(Mark { token: Token::new(token)?, lease: lease.parse()? })
}

/// The highest mark of a file, kept in memory: read once, raised with every mark from then on. Cheap
/// to clone; all clones are the same.
///
/// It may be above what is in the file, where a commit failed: for whoever has to be above every
/// mark that is no harm.
#[derive(Clone, Debug, Default)]
pub(crate) struct Highest(Arc<AtomicU64>);

impl Highest {
    /// Reads every mark that is there.
    pub(crate) fn read(&self, transaction: &WriteTransaction) -> Result<(), Cause> {
        for row in transaction.open_table(MARKS)?.iter()? {
            self.0.fetch_max(row?.1.value().0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A mark was raised to this.
    pub(crate) fn note(&self, token: Token) {
        self.0.fetch_max(token.get(), Ordering::Relaxed);
    }

    /// The highest; `None` where there is no mark.
    pub(crate) fn get(&self) -> Option<Token> {
        Token::new(self.0.load(Ordering::Relaxed)).ok()
    }
}

/// A page of marks.
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

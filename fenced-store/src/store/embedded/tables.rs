//! What is in the file.

use std::ops::Bound;

use fence_protocol::{LockName, Token};
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use crate::commit::Cause;
use crate::guard::Mark;
use crate::store::{FenceList, FenceQuery};

/// Lock → (token, lease). Rows are never removed (invariant G4).
pub(super) const MARKS: TableDefinition<'_, &str, (u64, &str)> = TableDefinition::new("marks");
/// Key → (entity tag, content type).
pub(super) const OBJECTS: TableDefinition<'_, &str, (&str, &str)> =
    TableDefinition::new("objects");
/// Key → bytes. Apart from the above, so that judging a condition does not load them.
pub(super) const BODIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("bodies");

/// Makes the tables of a new file.
pub(super) fn prepare(transaction: &WriteTransaction) -> Result<(), Cause> {
    transaction.open_table(MARKS)?;
    transaction.open_table(OBJECTS)?;
    transaction.open_table(BODIES)?;
    Ok(())
}

/// The mark of `lock`.
pub(super) fn mark(
    marks: &impl ReadableTable<&'static str, (u64, &'static str)>,
    lock: &LockName,
) -> Result<Option<Mark>, Cause> {
    let Some(row) = marks.get(lock.as_str())? else { return Ok(None) };
    read_mark(row.value()).map(Some)
}

/// A mark as it was stored. One that cannot be read is damage: nothing may be admitted then.
fn read_mark((token, lease): (u64, &str)) -> Result<Mark, Cause> {
    Ok(Mark { token: Token::new(token)?, lease: lease.parse()? })
}

/// A page of marks.
pub(super) fn list(snapshot: &ReadTransaction, query: &FenceQuery) -> Result<FenceList, Cause> {
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
        page.fences.push((LockName::new(lock.value())?, read_mark(mark.value())?));
    }
    Ok(page)
}

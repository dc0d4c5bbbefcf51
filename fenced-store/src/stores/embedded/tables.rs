//! Tables of the file beside the marks.

use redb::{TableDefinition, WriteTransaction};

use crate::stores::commit::Cause;
use crate::stores::commit::marks::MARKS;

/// Key → (entity tag, content type).
pub(super) const OBJECTS: TableDefinition<'_, &str, (&str, &str)> = TableDefinition::new("objects");
/// Key → bytes. A table of its own, so that checking a condition does not load them.
pub(super) const BODIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("bodies");

/// (Lock, name of an operation) → its stored outcome.
pub(super) const NAMES: TableDefinition<'_, (&str, &str), &str> = TableDefinition::new("names");
/// (Lock, number that rises) → name of an operation.
pub(super) const NAMES_IN_ORDER: TableDefinition<'_, (&str, u64), &str> =
    TableDefinition::new("names-in-order");

/// Makes the tables of a new file.
pub(super) fn prepare(transaction: &WriteTransaction) -> Result<(), Cause> {
    transaction.open_table(MARKS)?;
    transaction.open_table(OBJECTS)?;
    transaction.open_table(BODIES)?;
    transaction.open_table(NAMES)?;
    transaction.open_table(NAMES_IN_ORDER)?;
    Ok(())
}

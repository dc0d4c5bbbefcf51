//! Names of the last operations of each lock, in the transaction that applies them.

use redb::{ReadableTable as _, WriteTransaction};

use super::tables::{NAMES, NAMES_IN_ORDER};
use crate::stores::commit::Cause;
use crate::stores::contract::{First, Once};
use crate::stores::once::EarlierOperation;

/// Returns the earlier operation of this name.
pub(super) fn known(
    transaction: &WriteTransaction,
    once: &Once,
) -> Result<Option<EarlierOperation>, Cause> {
    let names = transaction.open_table(NAMES)?;
    let Some(record) = names.get((once.scope(), once.id()))? else { return Ok(None) };
    let known = once.compare(record.value());
    known.map(Some).ok_or_else(|| {
        let id = once.id();
        let scope = once.scope();
        format!("the stored outcome of operation \"{id}\" of lock \"{scope}\" cannot be read")
            .into()
    })
}

/// Stores the outcome, and drops the oldest of its scope above the maximum.
pub(super) fn remember(
    transaction: &WriteTransaction,
    once: &Once,
    first: &First,
) -> Result<(), Cause> {
    let mut names = transaction.open_table(NAMES)?;
    let mut order = transaction.open_table(NAMES_IN_ORDER)?;
    let scope = once.scope();
    let place = {
        let mut last = order.range((scope, 0)..=(scope, u64::MAX))?;
        match last.next_back() {
            Some(row) => row?.0.value().1 + 1,
            None => 0,
        }
    };
    order.insert((scope, place), once.id())?;
    names.insert((scope, once.id()), once.record(first).as_str())?;
    let Some(oldest) = place.checked_sub(once.capacity() as u64) else { return Ok(()) };
    if let Some(id) = order.remove((scope, oldest))? {
        names.remove((scope, id.value()))?;
    }
    Ok(())
}

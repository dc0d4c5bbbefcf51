//! Groups that an engine refused without returning their records: these are read afterwards.
//!
//! What is read is as old as the commit or newer, so the groups can be decided again on it. It may
//! be of another moment for each record: the next commit compares the versions.

use crate::engines::contract::{Group, Key, Snapshot};
use crate::store::StoreError;

/// Outcome of a group, as in [`Committed::groups`](crate::engines::contract::Committed::groups).
pub(crate) type GroupOutcome = Result<(), Vec<Snapshot>>;

/// Adds the records as they stand to the groups that have no outcome.
///
/// # Errors
/// [`StoreError::Unknown`] if they cannot be read and a group was committed.
pub(crate) async fn read_refused(
    groups: &[Group],
    outcomes: Vec<Option<GroupOutcome>>,
    read: impl AsyncFnOnce(&[Key]) -> Result<Vec<Snapshot>, StoreError>,
) -> Result<Vec<GroupOutcome>, StoreError> {
    let refused = groups.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
    let keys: Vec<Key> =
        refused.flat_map(|(group, _)| &group.reads).map(|(key, _)| key.clone()).collect();
    let found = if keys.is_empty() { Ok(Vec::new()) } else { read(&keys).await };
    let mut found = match found {
        Ok(found) => found.into_iter(),
        // Nothing was done where everything was refused so.
        Err(error) if outcomes.iter().all(Option::is_none) => return Err(error),
        Err(error) => return Err(half_done(&error)),
    };
    let outcomes = groups.iter().zip(outcomes).map(|(group, outcome)| match outcome {
        Some(outcome) => outcome,
        None => Err(found.by_ref().take(group.reads.len()).collect()),
    });
    Ok(outcomes.collect())
}

/// A part of a batch was done, and the rest was not, or is not known.
pub(crate) fn half_done(error: &StoreError) -> StoreError {
    StoreError::Unknown(format!(
        "a part of it may be done ({error}); repeat it with the same lease_id"
    ))
}

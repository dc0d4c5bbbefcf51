//! One operation inside a transaction.

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, WriteTransaction};

use super::names;
use super::tables::{BODIES, OBJECTS};
use crate::etag::ETag;
use crate::key::ObjectKey;
use crate::stores::commit::marks::{Highest, MARKS};
use crate::stores::commit::{Cause, Committer, Done, marks};
use crate::stores::contract::{Effect, FenceOutcome, First, Object, Once, Operation, StoreError};
use crate::stores::decide::{Decision, decide};
use crate::stores::once::EarlierOperation;
use crate::verdict::{Fence, Verdict, judge};

/// Applies `operation` (`None`: a seal) in a transaction with others; returns once it is durable.
///
/// # Errors
/// [`StoreError`].
///
/// # Cancel safety
/// Dropping the future cancels nothing once the operation is queued.
pub(crate) async fn submit(
    file: &Committer,
    highest: &Highest,
    fence: Option<Fence>,
    operation: Option<Operation>,
    once: Option<Once>,
) -> Result<FenceOutcome, StoreError> {
    let bytes = operation.as_ref().map_or(0, Operation::bytes);
    let highest = highest.clone();
    let work = move |transaction: &WriteTransaction| {
        let done = write(transaction, fence.as_ref(), operation, once.as_ref())?;
        if let Some(mark) = done.answer.mark() {
            highest.record(mark);
        }
        Ok(done)
    };
    file.submit(bytes, work).await
}

fn write(
    transaction: &WriteTransaction,
    fence: Option<&Fence>,
    operation: Option<Operation>,
    once: Option<&Once>,
) -> Result<Done<FenceOutcome>, Cause> {
    let known = match once {
        Some(once) => names::known(transaction, once)?,
        None => None,
    };
    let named = match (&operation, once) {
        (Some(operation), Some(once)) if known.is_none() => Some((operation.clone(), once)),
        _ => None,
    };
    let mut done = decided(transaction, fence, operation, known)?;
    if let Some((operation, once)) = named
        && let Some(first) = First::from_outcome(&operation, &done.answer)
    {
        names::remember(transaction, once, &first)?;
        done.changed = true;
    }
    Ok(done)
}

fn decided(
    transaction: &WriteTransaction,
    fence: Option<&Fence>,
    operation: Option<Operation>,
    known: Option<EarlierOperation>,
) -> Result<Done<FenceOutcome>, Cause> {
    let mut table = transaction.open_table(MARKS)?;
    let mark = match fence {
        Some(fence) => marks::get(&table, &fence.lock)?,
        None => None,
    };
    let etag = match &operation {
        Some(operation) => etag(&transaction.open_table(OBJECTS)?, operation.key())?,
        None => None,
    };
    let (raise, failed) = match decide(fence, mark, operation.as_ref(), etag.as_ref(), known) {
        Decision::Refuse(outcome) => return Ok(Done::unchanged(outcome)),
        Decision::Fail { raise, outcome } => (raise, Some(outcome)),
        Decision::Proceed { raise } => (raise, None),
    };
    if let (Some(fence), Some(mark)) = (fence, raise) {
        marks::set(&mut table, &fence.lock, mark)?;
    }
    if let Some(answer) = failed {
        return Ok(Done { answer, changed: raise.is_some() });
    }
    let (effect, wrote) = effect(transaction, operation, etag.is_none())?;
    let mark = fence.map(|fence| fence.presented.token);
    Ok(Done { answer: FenceOutcome::Applied { effect, mark }, changed: raise.is_some() || wrote })
}

fn effect(
    transaction: &WriteTransaction,
    operation: Option<Operation>,
    is_absent: bool,
) -> Result<(Effect, bool), Cause> {
    match operation {
        None => Ok((Effect::Sealed, false)),
        Some(Operation::Get { key }) => {
            let objects = transaction.open_table(OBJECTS)?;
            let bodies = transaction.open_table(BODIES)?;
            Ok((find(&objects, &bodies, &key)?, false))
        }
        Some(Operation::Put { key, object, .. }) => {
            let row = (object.etag.as_str(), object.content_type.as_str());
            transaction.open_table(OBJECTS)?.insert(key.as_str(), row)?;
            transaction.open_table(BODIES)?.insert(key.as_str(), &object.body[..])?;
            Ok((Effect::Stored { created: is_absent }, true))
        }
        Some(Operation::Delete { .. }) if is_absent => Ok((Effect::Absent, false)),
        Some(Operation::Delete { key, .. }) => {
            transaction.open_table(OBJECTS)?.remove(key.as_str())?;
            transaction.open_table(BODIES)?.remove(key.as_str())?;
            Ok((Effect::Deleted, true))
        }
    }
}

/// Serves a read from a snapshot if no mark has to be raised; `None` otherwise.
pub(super) fn read(
    snapshot: &ReadTransaction,
    fence: Option<&Fence>,
    key: &ObjectKey,
) -> Result<Option<FenceOutcome>, Cause> {
    if let Some(fence) = fence {
        let mark = marks::get(&snapshot.open_table(MARKS)?, &fence.lock)?;
        match judge(mark, fence.presented) {
            Verdict::Admit => {}
            Verdict::Raise => return Ok(None),
            Verdict::Stale { mark } => return Ok(Some(FenceOutcome::Stale { mark })),
            Verdict::Collision { mark } => return Ok(Some(FenceOutcome::Collision { mark })),
        }
    }
    let effect = find(&snapshot.open_table(OBJECTS)?, &snapshot.open_table(BODIES)?, key)?;
    let mark = fence.map(|fence| fence.presented.token);
    Ok(Some(FenceOutcome::Applied { effect, mark }))
}

fn etag(
    objects: &impl ReadableTable<&'static str, (&'static str, &'static str)>,
    key: &ObjectKey,
) -> Result<Option<ETag>, Cause> {
    Ok(objects.get(key.as_str())?.map(|row| ETag::from_stored(row.value().0)))
}

fn find(
    objects: &impl ReadableTable<&'static str, (&'static str, &'static str)>,
    bodies: &impl ReadableTable<&'static str, &'static [u8]>,
    key: &ObjectKey,
) -> Result<Effect, Cause> {
    let (Some(row), Some(body)) = (objects.get(key.as_str())?, bodies.get(key.as_str())?) else {
        return Ok(Effect::Absent);
    };
    let (etag, content_type) = row.value();
    Ok(Effect::Found(Object {
        etag: ETag::from_stored(etag),
        content_type: content_type.to_owned(),
        body: Bytes::copy_from_slice(body.value()),
    }))
}

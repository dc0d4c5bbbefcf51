//! What the scripts answer, read back.

use bytes::Bytes;
use fence_protocol::{LockName, Token};
use redis::Value;

use crate::etag::ETag;
use crate::guard::{Fence, Mark};
use crate::store::{Effect, FenceList, Object, Outcome, StoreError};

/// The outcome of an operation.
///
/// # Errors
/// `Unknown` where the reply is none of ours: the operation was run, but what it did cannot be
/// said.
pub(super) fn outcome(value: Value, fence: Option<&Fence>) -> Result<Outcome, StoreError> {
    read(value, fence)
        .ok_or_else(|| StoreError::Unknown("Redis answered what no script of ours does".to_owned()))
}

fn read(value: Value, fence: Option<&Fence>) -> Option<Outcome> {
    let mut fields = strings(value)?.into_iter();
    let word = fields.next()?;
    let mark = fence.map(|fence| fence.presented.token);
    let effect = match word.as_slice() {
        b"stale" => return Some(Outcome::Stale { mark: pair(fields.next()?, fields.next()?)? }),
        b"collision" => {
            return Some(Outcome::Collision { mark: pair(fields.next()?, fields.next()?)? });
        }
        b"precondition-failed" => {
            let etag = Some(text(fields.next()?)?).filter(|tag| !tag.is_empty());
            return Some(Outcome::PreconditionFailed { etag: etag.map(ETag::from_stored), mark });
        }
        b"stored" => Effect::Stored { created: fields.next()? == b"1" },
        b"deleted" => Effect::Deleted,
        b"absent" => Effect::Absent,
        b"sealed" => Effect::Sealed,
        b"found" => Effect::Found(Object {
            etag: ETag::from_stored(text(fields.next()?)?),
            content_type: text(fields.next()?)?,
            body: Bytes::from(fields.next()?),
        }),
        _ => return None,
    };
    Some(Outcome::Applied { effect, mark })
}

/// A mark as the hash keeps it.
pub(super) fn mark(value: Value) -> Result<Option<Mark>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => stored(&bytes).map(Some).ok_or_else(unreadable),
        _ => Err(unreadable()),
    }
}

/// A page of marks, one line longer than asked for where there are more.
pub(super) fn page(value: Value, limit: usize) -> Result<FenceList, StoreError> {
    let fields = strings(value).ok_or_else(unreadable)?;
    let mut page = FenceList::default();
    for row in fields.chunks_exact(2) {
        let line = std::str::from_utf8(&row[0]).ok().and_then(|lock| LockName::new(lock).ok());
        let line = line.zip(stored(&row[1])).ok_or_else(unreadable)?;
        page.fences.push(line);
    }
    page.more = page.fences.len() > limit;
    page.fences.truncate(limit);
    Ok(page)
}

fn unreadable() -> StoreError {
    StoreError::Unavailable(
        "a mark in Redis cannot be read; did somebody else write it?".to_owned(),
    )
}

fn stored(bytes: &[u8]) -> Option<Mark> {
    let (token, lease) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some(Mark { token: token.parse::<Token>().ok()?, lease: lease.parse().ok()? })
}

fn pair(token: Vec<u8>, lease: Vec<u8>) -> Option<Mark> {
    Some(Mark { token: text(token)?.parse().ok()?, lease: text(lease)?.parse().ok()? })
}

fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

fn strings(value: Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(items) = value else { return None };
    items
        .into_iter()
        .map(|item| match item {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        })
        .collect()
}

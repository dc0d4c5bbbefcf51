//! What the scripts answer, read back.

use bytes::Bytes;
use fence_protocol::{LockName, Token};
use redis::Value;

use crate::etag::ETag;
use crate::store::{Effect, FenceList, First, Object, Outcome, StoreError};
use crate::verdict::{Fence, Mark};

/// What a fenced script answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It did what it is for, or refused.
    Done(Outcome),
    /// The mark is what was presented; lower connections have to be ended before anything is
    /// admitted.
    Sealing,
    /// The guard's state in this Redis is not the one that was verified. Nothing was written.
    Unverified,
}

/// The answer of a fenced script.
///
/// # Errors
/// `Unknown` where the reply is none of ours: the operation was run, but what it did cannot be
/// said.
pub(crate) fn step(value: Value, fence: Option<&Fence>) -> Result<Step, StoreError> {
    if let Value::Array(items) = &value
        && let [Value::BulkString(word)] = items.as_slice()
    {
        match word.as_slice() {
            b"sealing" => return Ok(Step::Sealing),
            b"unverified" => return Ok(Step::Unverified),
            _ => {}
        }
    }
    read(value, fence)
        .map(Step::Done)
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
        b"repeated" => {
            let first = First::parse(&text(fields.next()?)?)?;
            return Some(Outcome::Repeated { first, mark });
        }
        b"stale-repeat" => {
            let mark = pair(fields.next()?, fields.next()?)?;
            let first = First::parse(&text(fields.next()?)?)?;
            return Some(Outcome::StaleRepeat { mark, first });
        }
        b"name-taken" => return Some(Outcome::NameTaken { mark }),
        b"stored" => Effect::Stored { created: fields.next()? == b"1" },
        b"deleted" => Effect::Deleted,
        b"absent" => Effect::Absent,
        b"sealed" | b"registered" => Effect::Sealed,
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

/// The highest of some tokens; 0 and what is missing count for nothing.
pub(super) fn highest(value: Value) -> Result<Option<Token>, StoreError> {
    let Value::Array(items) = value else { return Err(unreadable()) };
    let mut highest = 0;
    for item in items {
        let token = match item {
            Value::Nil => 0,
            Value::BulkString(bytes) => {
                text(bytes).and_then(|text| text.parse::<u64>().ok()).ok_or_else(unreadable)?
            }
            _ => return Err(unreadable()),
        };
        highest = highest.max(token);
    }
    Ok(Token::new(highest).ok())
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

/// `token lease`, and perhaps a flag that is of no interest here.
fn stored(bytes: &[u8]) -> Option<Mark> {
    let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
    let (token, lease) = (words.next()?, words.next()?);
    Some(Mark { token: token.parse::<Token>().ok()?, lease: lease.parse().ok()? })
}

fn pair(token: Vec<u8>, lease: Vec<u8>) -> Option<Mark> {
    Some(Mark { token: text(token)?.parse().ok()?, lease: text(lease)?.parse().ok()? })
}

fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

pub(super) fn strings(value: Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(items) = value else { return None };
    items
        .into_iter()
        .map(|item| match item {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        })
        .collect()
}

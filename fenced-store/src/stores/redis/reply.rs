//! Parsing of the scripts' replies.

use bytes::Bytes;
use fence_protocol::{LockName, Token};
use redis::Value;

use crate::etag::ETag;
use crate::stores::contract::{Effect, FenceList, FenceOutcome, First, Object, StoreError};
use crate::verdict::{Fence, Mark};

/// Reply of a fenced script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptReply {
    /// The script was applied, or refused.
    Done(FenceOutcome),
    /// The mark is the presented token; lower connections have to be ended before any command is
    /// admitted.
    Sealing,
    /// The guard's state in this Redis is not the verified one. Nothing was written.
    Unverified,
}

/// Parses the reply of a fenced script.
///
/// # Errors
/// `Unknown` for a reply that is none of our scripts': the operation was run with an unknown
/// outcome.
pub(crate) fn parse(value: Value, fence: Option<&Fence>) -> Result<ScriptReply, StoreError> {
    if let Value::Array(items) = &value
        && let [Value::BulkString(word)] = items.as_slice()
    {
        match word.as_slice() {
            b"sealing" => return Ok(ScriptReply::Sealing),
            b"unverified" => return Ok(ScriptReply::Unverified),
            _ => {}
        }
    }
    read(value, fence).map(ScriptReply::Done).ok_or_else(|| {
        StoreError::Unknown("Redis sent a reply that is none of our scripts'".to_owned())
    })
}

fn read(value: Value, fence: Option<&Fence>) -> Option<FenceOutcome> {
    let mut fields = strings(value)?.into_iter();
    let word = fields.next()?;
    let mark = fence.map(|fence| fence.presented.token);
    let effect = match word.as_slice() {
        b"stale" => {
            return Some(FenceOutcome::Stale { mark: pair(fields.next()?, fields.next()?)? });
        }
        b"collision" => {
            return Some(FenceOutcome::Collision { mark: pair(fields.next()?, fields.next()?)? });
        }
        b"precondition-failed" => {
            let etag = Some(text(fields.next()?)?).filter(|tag| !tag.is_empty());
            return Some(FenceOutcome::PreconditionFailed {
                etag: etag.map(ETag::from_stored),
                mark,
            });
        }
        b"repeated" => {
            let first = First::parse(&text(fields.next()?)?)?;
            return Some(FenceOutcome::Repeated { first, mark });
        }
        b"stale-repeat" => {
            let mark = pair(fields.next()?, fields.next()?)?;
            let first = First::parse(&text(fields.next()?)?)?;
            return Some(FenceOutcome::StaleRepeat { mark, first });
        }
        b"name-taken" => return Some(FenceOutcome::NameTaken { mark }),
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
    Some(FenceOutcome::Applied { effect, mark })
}

/// Parses a mark from the hash.
pub(super) fn mark(value: Value) -> Result<Option<Mark>, StoreError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => stored(&bytes).map(Some).ok_or_else(unreadable),
        _ => Err(unreadable()),
    }
}

/// Returns the highest of some tokens; 0 and missing ones are skipped.
pub(super) fn highest(value: Value) -> Result<Option<Token>, StoreError> {
    let tokens = numbers(value).ok_or_else(unreadable)?;
    Ok(tokens.into_iter().max().and_then(|highest| Token::new(highest).ok()))
}

/// Parses numbers; a missing one is 0.
pub(super) fn numbers(value: Value) -> Option<Vec<u64>> {
    let Value::Array(items) = value else { return None };
    let number = |item| match item {
        Value::Nil => Some(0),
        Value::BulkString(bytes) => text(bytes)?.parse().ok(),
        _ => None,
    };
    items.into_iter().map(number).collect()
}

/// Parses a page of marks, which has one more than `limit` if more follow.
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
        "a mark in Redis cannot be parsed; did another program write it?".to_owned(),
    )
}

/// Parses a floor and its lease into the highest mark below it; `None` without a floor.
pub(super) fn below_floor(value: Value) -> Result<Option<Mark>, StoreError> {
    let Value::Array(items) = value else { return Err(unreadable()) };
    let [Value::BulkString(floor), Value::BulkString(lease)] = items.as_slice() else {
        return Ok(None);
    };
    let floor: u64 =
        text(floor.clone()).and_then(|text| text.parse().ok()).ok_or_else(unreadable)?;
    let lease = text(lease.clone()).and_then(|text| text.parse().ok()).ok_or_else(unreadable)?;
    Ok(Token::new(floor.saturating_sub(1)).ok().map(|token| Mark { token, lease }))
}

/// Parses `token lease`, optionally with a flag, which is ignored.
pub(super) fn stored(bytes: &[u8]) -> Option<Mark> {
    let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
    let token = words.next()?;
    let lease = words.next()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_number_is_zero_and_what_is_no_number_is_refused() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(numbers(Value::Array(vec![Value::Nil, bulk("34")])), Some(vec![0, 34]));
        for bad in [Value::Array(vec![bulk("x")]), Value::Array(vec![Value::Int(1)]), Value::Nil] {
            assert_eq!(numbers(bad), None);
        }
        let tokens = Value::Array(vec![bulk("33"), Value::Nil, bulk("34")]);
        assert_eq!(highest(tokens), Ok(Token::new(34).ok()));
        assert_eq!(highest(Value::Array(vec![Value::Nil])), Ok(None));
    }
}

//! Parts of a request that every handler reads.

use fence_protocol::{IDEMPOTENCY_KEY, Invalid, LockName};
use http::{HeaderMap, Uri};
use service_kit::problem::Reject;

use crate::doors::http::headers::owner;
use crate::guard::{Guard, RequestSummary};
use crate::key::{ObjectKey, lock_from_path};
use crate::rules::Intent;

const OBJECTS: &str = "/v1/objects/";
const STATES: &str = "/v1/terraform-states/";
const FENCES: &str = "/v1/fences/";
const LANES: &str = "/v1/lanes/";
const MAX_NAME_BYTES: usize = 128;

/// Returns the key, from the raw path: the router's own decoding is not used.
pub(super) fn key(uri: &Uri) -> Result<ObjectKey, Invalid> {
    let path = uri.path();
    let key = path.strip_prefix(OBJECTS).or_else(|| path.strip_prefix(STATES));
    ObjectKey::from_path(key.unwrap_or_default())
}

/// Returns the lock, from the raw path without `verb` at its end.
pub(super) fn lock(uri: &Uri, verb: &str) -> Result<Option<LockName>, Invalid> {
    lock_below(FENCES, uri, verb)
}

/// Returns the lock of a lane, as [`lock`] does.
pub(super) fn lane(uri: &Uri, verb: &str) -> Result<Option<LockName>, Invalid> {
    lock_below(LANES, uri, verb)
}

fn lock_below(root: &str, uri: &Uri, verb: &str) -> Result<Option<LockName>, Invalid> {
    let rest = uri.path().strip_prefix(root).unwrap_or_default();
    rest.strip_suffix(verb).map(lock_from_path).transpose()
}

/// Checks the token for an operation on `key`, and summarises the request.
pub(super) fn summary(
    guard: &Guard,
    key: &ObjectKey,
    headers: &HeaderMap,
    kind: &'static str,
    method: &str,
) -> Result<RequestSummary, Reject> {
    let intent = if kind == "get" { Intent::Read } else { Intent::Write };
    let fence = guard.fence(key, headers, intent)?;
    Ok(RequestSummary { fence, kind, text: format!("{method} {key}"), owner: owner(headers)? })
}

/// Parses `Idempotency-Key`: the sender's name for the operation, a string of RFC 9651 or a bare
/// word.
pub(super) fn name(headers: &HeaderMap) -> Result<Option<String>, Invalid> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or("…").trim();
    let refuse = |rule: &str| Invalid::new("Idempotency-Key", text, rule);
    if values.next().is_some() {
        return Err(refuse("is given more than once"));
    }
    let name = match text.strip_prefix('"') {
        Some(rest) => quoted(rest),
        None => text.bytes().all(is_of_a_word).then(|| text.to_owned()),
    };
    let name = name.ok_or_else(|| {
        refuse("must be a string in double quotes, or a word of A-Z a-z 0-9 . _ : -")
    })?;
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(Some(name)),
        _ => Err(refuse("must have 1 to 128 bytes")),
    }
}

fn is_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)
}

/// Parses the rest of a string of RFC 9651, behind its first quote: printable ASCII, with a
/// backslash before a quote or a backslash.
fn quoted(rest: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = rest.chars();
    loop {
        match rest.next()? {
            '"' => return rest.next().is_none().then_some(text),
            '\\' => text.push(rest.next().filter(|c| matches!(c, '"' | '\\'))?),
            c @ ' '..='~' => text.push(c),
            _ => return None,
        }
    }
}

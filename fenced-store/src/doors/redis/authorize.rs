//! Authorisation of a command's keys by the tokens of its connection.

use fence_protocol::Code;

use super::commands::{KeyAccess, KeyUse, Plan, Touches, data_patterns};
use super::refusal::{Refusal, denied_key, no_token, quoted};
use super::resp::request::Command;
use super::tokens::HeldTokens;
use crate::guard::Guard;
use crate::rules::Protects;

/// Reason why a command may not be sent.
#[derive(Debug)]
pub(super) struct Denied {
    /// Code of the refusal.
    code: Code,
    /// Index of the refused key's argument.
    arg: Option<usize>,
    /// Error line for the client.
    line: String,
}

/// Checks that a connection with `tokens` may send `command`. One that may not is counted, and
/// passes in observe mode.
///
/// # Errors
/// The refusal.
pub(super) fn authorize(
    guard: &Guard,
    tokens: &HeldTokens,
    command: Command<'_>,
    plan: Plan,
    keys: &[KeyUse],
    scratch: &mut String,
) -> Result<(), Refusal> {
    let checked = check(guard, tokens, command, plan, keys, scratch);
    let Err(Denied { code, arg, line }) = checked else { return Ok(()) };
    let key = arg.map_or(&b""[..], |arg| command.arg(arg));
    match guard.observer.passes(code, guard.fencing.rules.label(key), &line) {
        true => Ok(()),
        false => Err(Refusal::Line(line)),
    }
}

/// Checks a command as [`authorize`] does, and counts nothing.
///
/// # Errors
/// [`Denied`].
pub(super) fn check(
    guard: &Guard,
    tokens: &HeldTokens,
    command: Command<'_>,
    plan: Plan,
    keys: &[KeyUse],
    scratch: &mut String,
) -> Result<(), Denied> {
    match plan.touches {
        Touches::Nothing => Ok(()),
        Touches::Keyspace if tokens.is_empty() && guard.fencing.protects_reads() => {
            let line = "NOTOKEN the names of all keys can be read only with a token, of any \
                        lock; or start the guard with --allow-unfenced-reads";
            Err(Denied { code: Code::TokenRequired, arg: None, line: line.to_owned() })
        }
        Touches::Keyspace => Ok(()),
        Touches::Everything => everything(guard, tokens),
        Touches::Keys | Touches::NamedByData => {
            keys.iter().try_for_each(|key| {
                one(guard, tokens, command.arg(key.arg), key.access, scratch)
                    .map_err(|(code, line)| Denied { code, arg: Some(key.arg), line })
            })?;
            match plan.touches {
                Touches::NamedByData => named_by_data(guard, tokens, command),
                _ => Ok(()),
            }
        }
    }
}

/// Checks FLUSHDB and FLUSHALL: every rule has to be open, or of a held lock.
fn everything(guard: &Guard, tokens: &HeldTokens) -> Result<(), Denied> {
    let denied = |code, line: String| Err(Denied { code, arg: None, line });
    match guard.fencing.rules.locks_of_everything() {
        Ok(locks) => match locks.iter().find(|lock| !tokens.holds(lock)) {
            None => Ok(()),
            Some(lock) => denied(
                Code::TokenRequired,
                format!(
                    "NOTOKEN it deletes the keys of every lock, and this connection has no token of \
                     lock {lock}; FENCE SET one of each"
                ),
            ),
        },
        Err(rule) => denied(
            Code::Forbidden,
            format!(
                "DENIED it deletes the keys of every lock, and by {rule} they belong to more locks than \
                 a connection can hold; delete keys by name, or let an operator run it on Redis \
                 itself"
            ),
        ),
    }
}

/// Checks SORT with BY or GET: every key that can be named must be readable.
fn named_by_data(guard: &Guard, tokens: &HeldTokens, command: Command<'_>) -> Result<(), Denied> {
    let fencing = &guard.fencing;
    let locks: Vec<&str> = tokens.fences().iter().map(|fence| fence.lock.as_str()).collect();
    let patterns = fencing.rules.key_patterns(&locks, fencing.allow_unfenced_reads);
    match data_patterns(command).find(|lead| !patterns.cover_all_behind(lead)) {
        None => Ok(()),
        Some(lead) => {
            let line = format!(
                "DENIED BY and GET with {}* read keys that are named by data, and this connection may \
                 not read all that begin so; sort in the client, or use BY nosort and GET #",
                quoted(lead)
            );
            Err(Denied { code: Code::TokenRequired, arg: None, line })
        }
    }
}

fn one(
    guard: &Guard,
    tokens: &HeldTokens,
    key: &[u8],
    access: KeyAccess,
    scratch: &mut String,
) -> Result<(), (Code, String)> {
    let resolved = guard
        .fencing
        .rules
        .resolve(key, scratch)
        .map_err(|error| (Code::Forbidden, denied_key(key, &error.to_string())))?;
    let may_read = resolved.unfenced_reads || guard.fencing.allow_unfenced_reads;
    match resolved.protection {
        Protects::Open => Ok(()),
        Protects::Deny => {
            let reason = "the guard's rules deny it to every client";
            Err((Code::Forbidden, denied_key(key, reason)))
        }
        Protects::Lock(lock) if tokens.holds(lock) => Ok(()),
        Protects::Lock(_) if access == KeyAccess::Read && may_read => Ok(()),
        Protects::Lock(lock) => Err((Code::TokenRequired, no_token(key, lock, tokens.listed()))),
    }
}

//! Holds the keys of a command against the tokens of the connection that sent it.

use fence_protocol::Code;

use super::commands::{KeyAccess, KeyUse, Plan, Touches};
use super::refusal::{Refusal, denied_key, no_token};
use super::resp::request::Command;
use super::tokens::HeldTokens;
use crate::rules::Protects;
use crate::service::Guard;

/// Why a command may not be sent.
#[derive(Debug)]
pub(super) struct Denied {
    /// What kind of refusal it is.
    pub(super) code: Code,
    /// Which argument is the key that it is about.
    pub(super) arg: Option<usize>,
    /// The line to be answered.
    pub(super) line: String,
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        Self::Line(denied.line)
    }
}

/// Whether a connection with `tokens` may send `command`.
///
/// # Errors
/// [`Denied`].
pub(super) fn authorize(
    guard: &Guard,
    tokens: &HeldTokens,
    command: Command<'_>,
    plan: Plan,
    keys: &[KeyUse],
    scratch: &mut String,
) -> Result<(), Denied> {
    match plan.touches {
        Touches::Nothing => Ok(()),
        Touches::Keyspace if tokens.is_empty() && guard.access.protects_reads() => {
            let line = "NOTOKEN the names of all keys are read with a token only, of whichever \
                        lock; or start the guard with --allow-unfenced-reads";
            Err(Denied { code: Code::TokenRequired, arg: None, line: line.to_owned() })
        }
        Touches::Keyspace => Ok(()),
        Touches::Keys => keys.iter().try_for_each(|key| {
            one(guard, tokens, command.arg(key.arg), key.access, scratch)
                .map_err(|(code, line)| Denied { code, arg: Some(key.arg), line })
        }),
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
        .access
        .rules
        .resolve(key, scratch)
        .map_err(|error| (Code::Forbidden, denied_key(key, &error.to_string())))?;
    let may_read = resolved.unfenced_reads || guard.access.allow_unfenced_reads;
    match resolved.protection {
        Protects::Open => Ok(()),
        Protects::Deny => {
            let reason = "the guard's rules deny it to everybody";
            Err((Code::Forbidden, denied_key(key, reason)))
        }
        Protects::Lock(lock) if tokens.holds(lock) => Ok(()),
        Protects::Lock(_) if access == KeyAccess::Read && may_read => Ok(()),
        Protects::Lock(lock) => Err((Code::TokenRequired, no_token(key, lock, tokens.listed()))),
    }
}

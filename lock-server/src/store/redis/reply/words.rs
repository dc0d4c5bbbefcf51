//! Words and small things that the scripts' answers and calls are made of.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Invalid, LockName, Owner};

use super::{PLACEHOLDER, number};
use crate::store::{Grant, Kind, Mode, NoTakeover, Takeover};

/// What the scripts call a mode.
pub(in super::super) fn mode_word(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "x".to_owned(),
        Mode::Shared => "s".to_owned(),
        Mode::Permit { size } => format!("p{size}"),
    }
}

/// What `acquire.lua` is told of a takeover.
pub(in super::super) fn takeover_word(takeover: Takeover) -> String {
    match takeover {
        Takeover::Never => String::new(),
        Takeover::EarlierSelf => "self".to_owned(),
        Takeover::Of(lease_id) => lease_id.to_string(),
    }
}

/// Names with commas between them, which no name has.
pub(in super::super) fn locks(names: &str) -> Vec<LockName> {
    names.split(',').filter_map(|name| LockName::new(name).ok()).collect()
}

pub(super) fn mode(word: &str) -> Result<Mode, Invalid> {
    match word {
        "x" => Ok(Mode::Exclusive),
        "s" => Ok(Mode::Shared),
        word => Ok(Mode::Permit { size: size(word)? }),
    }
}

pub(super) fn kind(word: &str) -> Result<Kind, Invalid> {
    if word == "l" { Ok(Kind::Lock) } else { Ok(Kind::Semaphore { size: size(word)? }) }
}

fn size(word: &str) -> Result<u32, Invalid> {
    let size = word.strip_prefix('p').and_then(|size| size.parse().ok());
    size.filter(|size| *size > 0).ok_or_else(|| Invalid::new("mode", word, "is not known"))
}

pub(super) fn grant(fields: &[&str]) -> Result<Grant, Invalid> {
    let [token, remaining, owner, word] = fields else {
        return Err(Invalid::new("grant", fields.join(" "), "does not have four fields"));
    };
    Ok(Grant {
        lease_id: PLACEHOLDER,
        token: token.parse()?,
        owner: owner.parse()?,
        remaining_ms: number(remaining)?,
        waited_ms: 0,
        mode: mode(word)?,
    })
}

pub(super) fn no_takeover(word: &str) -> Result<NoTakeover, Invalid> {
    let found = NoTakeover::ALL.into_iter().find(|why| why.as_str() == word);
    found.ok_or_else(|| Invalid::new("refusal", word, "is not known"))
}

pub(super) fn end_reason(word: &str) -> Result<EndReason, Invalid> {
    EndReason::from_word(word).ok_or_else(|| Invalid::new("reason", word, "is not known"))
}

/// A text that may be missing.
pub(super) fn said(text: &str) -> Result<Option<Owner>, Invalid> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some) }
}

//! Channels of commands: clients may not use Fencepost's own, and notifications of keys reveal key
//! names.
//!
//! Lock servers notify each other on channels that begin with `{fence:`; lock names and lease ids
//! are in the messages. Redis itself publishes changes of keys on `__keyspace@DB__:KEY` and
//! `__keyevent@DB__:EVENT`, if an operator has enabled it.

use super::Touches;
use super::refused::Refused;
use crate::doors::redis::resp::request::Command;
use crate::key::is_own_name;

/// Arguments of a command that are channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    /// All: SUBSCRIBE.
    All,
    /// All, as patterns: PSUBSCRIBE.
    Patterns,
    /// The first: PUBLISH.
    First,
    /// All behind a subcommand: PUBSUB NUMSUB.
    Listed,
    /// A pattern behind a subcommand: PUBSUB CHANNELS.
    Matching,
}

/// Fencepost's own channels, and the notifications with its key names: `*` is any text, `#` digits.
const OWN: [&[u8]; 2] = [b"{fence:*", b"__keyspace@#__:{fence:*"];
/// Notifications with names of any keys.
const KEY_EVENTS: &[u8] = b"__keyevent@#__:*";

/// Returns the scope of the channels of `command`.
///
/// # Errors
/// [`Refused`] for one of Fencepost's own channels, and for a pattern that can match one.
pub(super) fn check(channels: Channels, command: Command<'_>) -> Result<Touches, Refused> {
    let (from, to, is_pattern) = match channels {
        Channels::All => (1, command.len(), false),
        Channels::Patterns => (1, command.len(), true),
        Channels::First => (1, 2, false),
        Channels::Listed => (2, command.len(), false),
        Channels::Matching => (2, command.len(), true),
    };
    let mut touches = Touches::Nothing;
    for channel in (from..to.min(command.len())).map(|at| command.arg(at)) {
        let reaches = |own: &[u8]| can_match(channel, is_pattern, own);
        let is_own = || is_own_name(channel) || OWN.iter().any(|own| reaches(own));
        // Own names are removed from listings (`names`).
        if channels != Channels::Matching && is_own() {
            return Err(Refused::own_channel(channel));
        }
        if reaches(KEY_EVENTS) {
            touches = Touches::Keyspace;
        }
    }
    Ok(touches)
}

/// Unit of a channel's name or pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Any text.
    Text,
    /// Any byte, or one of a class, whose content is ignored.
    Byte,
    /// This byte.
    Is(u8),
}

/// Returns `true` if a channel, or one that a pattern matches, is one of `own`: literal bytes, `*`
/// and `#`, at most 63 of them. A class (`[a-z]`) counts as any byte, so the result errs towards
/// `true`.
///
/// `places` has a bit for each position in `own` that the pattern can have reached.
fn can_match(channel: &[u8], is_pattern: bool, own: &[u8]) -> bool {
    let past_texts = |mut places: u64| {
        for (at, byte) in own.iter().enumerate() {
            if matches!(byte, b'*' | b'#') && places & (1 << at) != 0 {
                places |= 1 << (at + 1);
            }
        }
        places
    };
    let mut places = past_texts(1);
    let mut rest = channel;
    while let Some((unit, behind)) = next_unit(rest, is_pattern) {
        rest = behind;
        let mut next = 0;
        for (at, byte) in own.iter().enumerate().filter(|(at, _)| places & (1 << at) != 0) {
            let can_be = |fits: fn(&u8) -> bool| match unit {
                Unit::Is(byte) => fits(&byte),
                Unit::Byte | Unit::Text => true,
            };
            match byte {
                b'*' => next |= 1 << at,
                b'#' if can_be(u8::is_ascii_digit) => next |= 1 << at,
                b'#' => {}
                _ if unit == Unit::Byte || unit == Unit::Is(*byte) => next |= 1 << (at + 1),
                _ => {}
            }
        }
        if unit == Unit::Text {
            // Any text reaches every position from the first on.
            next = u64::MAX << places.trailing_zeros().min(63);
        }
        places = past_texts(next);
        if places == 0 {
            return false;
        }
    }
    places & (1 << own.len()) != 0
}

/// Returns the first unit of a pattern, as Redis reads it, and the rest.
fn next_unit(pattern: &[u8], is_pattern: bool) -> Option<(Unit, &[u8])> {
    let (first, rest) = pattern.split_first()?;
    Some(match first {
        b'*' if is_pattern => (Unit::Text, rest),
        b'?' if is_pattern => (Unit::Byte, rest),
        b'\\' if is_pattern && !rest.is_empty() => (Unit::Is(rest[0]), &rest[1..]),
        b'[' if is_pattern => {
            let mut at = 0;
            while at < rest.len() && rest[at] != b']' {
                at += if rest[at] == b'\\' { 2 } else { 1 };
            }
            (Unit::Byte, rest.get(at + 1..).unwrap_or_default())
        }
        byte => (Unit::Is(*byte), rest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaches_own(pattern: &str) -> bool {
        OWN.iter().any(|own| can_match(pattern.as_bytes(), true, own))
    }

    #[test]
    fn patterns_that_can_match_an_own_channel_are_found() {
        for pattern in [
            "*",
            "?*",
            "{*",
            "{fence:*",
            "{fence:default}:c:*",
            "{f?nce:*",
            "*c:*",
            "[{]fence:*",
            "[^a]fence:x",
            "\\{fence:*",
            "{fen*",
            "**",
            "*{fence:default}:c:1",
            "?fence:a",
            "__keyspace@*",
            "__key*",
            "__keyspace@0__:*",
            "__keyspace@0__:{fence:*",
            "_*",
            "[_{]*",
            "*:*",
            "*}*",
            "[",
        ] {
            // A class without an end includes everything that follows.
            let expected = pattern != "[";
            assert_eq!(reaches_own(pattern), expected, "{pattern}");
        }
        for pattern in [
            "",
            "news.*",
            "fence:*",
            "{fences}:*",
            "{orders}*",
            "?ews",
            "n*",
            "\\*",
            "{fence",
            "__keyspace@0__:orders:*",
            "__keyspace@0__:[a-z]rders:*",
            "__keyevent@0__:expired",
            "{fenc[a]s*",
            "{fence",
            "}*",
        ] {
            assert!(!reaches_own(pattern), "{pattern}");
        }
    }

    #[test]
    fn events_of_all_keys_are_found() {
        let finds = |pattern: &str| can_match(pattern.as_bytes(), true, KEY_EVENTS);
        assert!(finds("__keyevent@0__:expired") && finds("__keyevent@*__:*") && finds("*"));
        assert!(!finds("__keyspace@0__:a") && !finds("news"));
    }

    #[test]
    fn a_name_is_read_as_it_stands() {
        let is_own = |name: &[u8]| OWN.iter().any(|own| can_match(name, false, own));
        assert!(is_own(b"{fence:default}:c:1") && is_own(b"__keyspace@3__:{fence:x}:token"));
        assert!(!is_own(b"*") && !is_own(b"{fence") && !is_own(b"\\{fence:x"));
    }
}

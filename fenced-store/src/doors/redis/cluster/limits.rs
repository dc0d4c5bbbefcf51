//! Limits of a command that runs inside a script.

use super::super::resp::request::Command;

/// The most arguments of a command: Lua's stack holds about 8000 values, the tokens among them.
const ARGS_MAX: usize = 7000;
/// The widest integer that BITFIELD may be asked for: Lua's numbers are exact up to 2^53.
const BITFIELD_WIDTH_MAX: u32 = 53;

/// Refuses what a script cannot pass on unchanged.
///
/// # Errors
/// The line to be answered.
pub(super) fn check(command: Command<'_>, fences: usize) -> Result<(), String> {
    if command.len() + 2 * fences > ARGS_MAX {
        return Err(format!(
            "DENIED before a cluster a command has at most {ARGS_MAX} arguments, and this one has \
             {}; split it",
            command.len()
        ));
    }
    let is_bitfield = command.begins(&["bitfield"]) || command.begins(&["bitfield_ro"]);
    if is_bitfield && command.iter().skip(2).any(is_wide) {
        return Err(format!(
            "DENIED before a cluster BITFIELD has integers of at most {BITFIELD_WIDTH_MAX} bits, \
             because wider ones are not exact in a script; use narrower ones"
        ));
    }
    Ok(())
}

/// `true` if the argument is a type such as `i64` that is too wide.
fn is_wide(arg: &[u8]) -> bool {
    let [b'i' | b'I' | b'u' | b'U', width @ ..] = arg else { return false };
    let width = std::str::from_utf8(width).ok().and_then(|width| width.parse::<u32>().ok());
    width.is_some_and(|width| width > BITFIELD_WIDTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::redis::cluster::shape::tests::with_command;

    #[test]
    fn wide_integers_and_long_commands_are_refused() {
        let refused = |words: &[&str]| with_command(words, |command| check(command, 1).is_err());
        assert!(!refused(&["BITFIELD", "i64", "GET", "i53", "0"]), "a key may be called i64");
        assert!(refused(&["bitfield", "k", "GET", "i8", "0", "GET", "u63", "0"]));
        let long = |args: usize| refused(&vec!["a"; args]);
        assert!(!long(ARGS_MAX - 2));
        assert!(long(ARGS_MAX - 1));
    }
}

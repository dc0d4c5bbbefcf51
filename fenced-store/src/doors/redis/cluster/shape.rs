//! Conversion of replies that passed through a script to the replies that the command would have
//! given.
//!
//! Lua knows neither RESP2's two kinds of nil nor RESP3's null inside of an array (the array would
//! end there). So a command runs under RESP2 inside of the script, where every reply survives but
//! for the kind of a nil, and this table says what to make of it. Only where scores or nested pairs
//! would be lost, and no null can be inside, does it run under RESP3 ("native").

use super::super::resp::Protocol;
use super::super::resp::request::Command;

/// Treatment of a command's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// `true` if the command runs under RESP3 inside of the script.
    pub(super) is_native: bool,
    /// Conversion of the reply.
    pub(super) convert: Convert,
}

/// Conversion of a reply of RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convert {
    /// No conversion.
    Plain,
    /// An integer that came as text, because Lua's numbers cannot represent it.
    Counter,
    /// RESP2: every nil is the nil of an array.
    NullArray,
    /// RESP2: a nil at the end is the nil of an array.
    NullLast,
    /// RESP3: names and values in turn are a map.
    Map,
    /// RESP3: the elements are a set.
    Set,
    /// RESP3: pairs are a map.
    Pairs,
    /// RESP3: every text is a double, also in arrays inside.
    Doubles,
    /// RESP3: XINFO STREAM, a map, in which lists of groups and consumers are lists of maps.
    Info,
    /// RESP3: XINFO GROUPS and CONSUMERS, a list of maps.
    InfoList,
}

/// Commands with scores, distances or nested pairs, and no null inside of their reply.
const NATIVE: &[&str] = &[
    "geodist",
    "georadius",
    "georadius_ro",
    "georadiusbymember",
    "georadiusbymember_ro",
    "geosearch",
    "hrandfield",
    "zadd",
    "zdiff",
    "zincrby",
    "zinter",
    "zmpop",
    "zpopmax",
    "zpopmin",
    "zrandmember",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrevrange",
    "zrevrangebyscore",
    "zrevrank",
    "zscore",
    "zunion",
];

const COUNTERS: &[&str] = &["decr", "decrby", "hincrby", "incr", "incrby"];
const SETS: &[&str] = &["sdiff", "sinter", "smembers", "spop", "sunion"];

/// Longer than the name of any command with a treatment of its own.
const NAME_BYTES_MAX: usize = 24;

impl Shape {
    /// Treatment of the reply to `command` for a client of `protocol`.
    pub(super) fn from_command(command: Command<'_>, protocol: Protocol) -> Self {
        let mut lower = [0; NAME_BYTES_MAX];
        let name = command.arg(0);
        let Some(lower) = lower.get_mut(..name.len()) else {
            return Self { is_native: false, convert: Convert::Plain };
        };
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let name = std::str::from_utf8(lower).unwrap_or_default();
        if COUNTERS.contains(&name) {
            return Self { is_native: false, convert: Convert::Counter };
        }
        match protocol {
            Protocol::Resp2 => Self { is_native: false, convert: resp2(name, command) },
            Protocol::Resp3 if NATIVE.contains(&name) => {
                Self { is_native: true, convert: Convert::Plain }
            }
            Protocol::Resp3 => Self { is_native: false, convert: resp3(name, command) },
        }
    }
}

fn resp2(name: &str, command: Command<'_>) -> Convert {
    match name {
        "lpop" | "rpop" if command.len() > 2 => Convert::NullArray,
        "geopos" | "lmpop" | "zmpop" | "xread" | "xreadgroup" => Convert::NullArray,
        "zrank" | "zrevrank" if command.len() > 3 => Convert::NullArray,
        "xpending" => Convert::NullLast,
        _ => Convert::Plain,
    }
}

fn resp3(name: &str, command: Command<'_>) -> Convert {
    match name {
        "hgetall" | "lcs" => Convert::Map,
        "xread" | "xreadgroup" => Convert::Pairs,
        "zmscore" | "geopos" => Convert::Doubles,
        "xinfo" if command.arg(1).eq_ignore_ascii_case(b"stream") => Convert::Info,
        "xinfo" => Convert::InfoList,
        set if SETS.contains(&set) => Convert::Set,
        _ => Convert::Plain,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Calls `f` with a command of these words.
    pub(crate) fn with_command<T>(words: &[&str], f: impl FnOnce(Command<'_>) -> T) -> T {
        let mut buf = Vec::new();
        let ranges: Vec<_> = words
            .iter()
            .map(|word| {
                let begin = buf.len();
                buf.extend_from_slice(word.as_bytes());
                begin..buf.len()
            })
            .collect();
        f(Command::from_parts(&buf, &ranges))
    }

    #[test]
    fn names_are_known_in_any_case() {
        let of =
            |words: &[&str], protocol| with_command(words, |c| Shape::from_command(c, protocol));
        let convert = |words: &[&str], protocol| of(words, protocol).convert;
        assert_eq!(convert(&["INCR", "k"], Protocol::Resp2), Convert::Counter);
        assert_eq!(convert(&["lpop", "k"], Protocol::Resp2), Convert::Plain);
        assert_eq!(convert(&["LPop", "k", "2"], Protocol::Resp2), Convert::NullArray);
        assert_eq!(convert(&["HGETALL", "k"], Protocol::Resp2), Convert::Plain);
        assert_eq!(convert(&["HGETALL", "k"], Protocol::Resp3), Convert::Map);
        assert_eq!(convert(&["xinfo", "STREAM", "k"], Protocol::Resp3), Convert::Info);
        assert!(of(&["ZSCORE", "k", "m"], Protocol::Resp3).is_native);
        assert!(!of(&["ZSCORE", "k", "m"], Protocol::Resp2).is_native);
        assert_eq!(convert(&[&"x".repeat(99), "k"], Protocol::Resp3), Convert::Plain);
    }
}

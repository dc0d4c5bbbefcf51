//! Redis' key specs: where the keys of a command are, seen from an index.

use super::refused::Refused;
use super::{KeyAccess, KeyUse};
use crate::doors::redis::resp::request::Command;

/// Where keys are, and what happens to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// What happens to them.
    pub(super) access: KeyAccess,
    /// The argument from which the search goes.
    pub(super) index: usize,
    /// The search.
    pub(super) find: Find,
}

/// How keys are found from an index on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// Every `step`th argument.
    Range {
        /// From 0: how far behind the index the last key is at most. Below 0: how far from the end
        /// of the command it is; -1 is its last argument.
        last: i64,
        /// From key to key.
        step: usize,
        /// With `last` -1: only the first 1/limit of the arguments are keys; 0 and 1 for all.
        limit: usize,
    },
    /// As many as a number among the arguments says.
    KeyNum {
        /// Where the number is, from the index.
        number: usize,
        /// Where the first key is, from the index.
        first: usize,
        /// From key to key.
        step: usize,
    },
}

/// How the number of keys is judged, and in which words a bad one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// Scripts: none is fine.
    OfScript,
    /// ZUNION and its like.
    OfSortedSets,
    /// All others.
    Positive,
}

impl Spec {
    /// Adds the keys of `command`.
    pub(super) fn push(
        &self,
        name: &str,
        number_rule: Number,
        command: Command<'_>,
        keys: &mut Vec<KeyUse>,
    ) -> Result<(), Refused> {
        let (first, end, step) = match self.find {
            Find::Range { last, step, limit } => {
                (self.index, range_end(self.index, last, limit, command.len()), step)
            }
            Find::KeyNum { number, first, step } => {
                let number = command.arg(self.index + number);
                let number = number_rule.read(name, number)?;
                let first = self.index + first;
                let room = command.len().saturating_sub(first).div_ceil(step);
                if number > room {
                    return Err(number_rule.too_many());
                }
                (first, (first + number * step).min(command.len()), step)
            }
        };
        let access = self.access;
        keys.extend((first..end).step_by(step).map(|arg| KeyUse { arg, access }));
        Ok(())
    }
}

/// One behind the last argument that can be a key.
fn range_end(index: usize, last: i64, limit: usize, len: usize) -> usize {
    let distance = usize::try_from(last.unsigned_abs()).unwrap_or(usize::MAX);
    let end = if last >= 0 {
        index.saturating_add(distance).saturating_add(1)
    } else if limit > 1 {
        index + len.saturating_sub(index) / limit
    } else {
        (len + 1).saturating_sub(distance)
    };
    end.min(len)
}

impl Number {
    fn read(self, name: &str, text: &[u8]) -> Result<usize, Refused> {
        const POSITIVE: &str = "numkeys should be greater than 0";
        let refuse = |text: &str| Err(Refused::error(text));
        let number = strict_integer(text);
        match (self, number) {
            (Self::OfScript, Some(0)) => Ok(0),
            (Self::OfScript, Some(..0)) => refuse("Number of keys can't be negative"),
            (Self::OfSortedSets, Some(..=0)) => {
                refuse(&format!("at least 1 input key is needed for '{name}' command"))
            }
            (Self::Positive, None | Some(..=0)) => refuse(POSITIVE),
            (_, None) => refuse("value is not an integer or out of range"),
            (_, Some(number)) => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
        }
    }

    fn too_many(self) -> Refused {
        match self {
            Self::OfScript => Refused::error("Number of keys can't be greater than number of args"),
            _ => Refused::syntax(),
        }
    }
}

/// A number as Redis reads it: no sign but `-`, no leading zeros, no blanks. A number that the guard
/// took and Redis did not, or the other way round, would have them see different keys.
fn strict_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if text != b"0" && !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        for (text, number) in [("0", 0), ("7", 7), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(strict_integer(text.as_bytes()), Some(number), "{text}");
        }
        assert_eq!(strict_integer(b"-9223372036854775808"), Some(i64::MIN));
        for text in ["", "+1", "01", " 1", "1 ", "1.0", "0x1", "-0", "1\0", "9223372036854775808"] {
            assert_eq!(strict_integer(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn ranges_end_where_redis_ends_them() {
        for ((index, last, limit, len), end) in [
            ((1, 0, 0, 3), 2),
            ((1, -1, 0, 4), 4),
            ((1, -2, 0, 4), 3),
            ((1, 1, 0, 4), 3),
            ((2, -1, 2, 6), 4),
            ((2, -1, 0, 2), 2),
            ((3, 5, 0, 4), 4),
            ((1, -9, 0, 4), 0),
        ] {
            assert_eq!(range_end(index, last, limit, len), end, "{index} {last} {limit} {len}");
        }
    }
}

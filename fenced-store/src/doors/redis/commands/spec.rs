//! Key specs of Redis: key positions of a command, counted from an index.

use super::refused::Refused;
use super::{KeyAccess, KeyUse};
use crate::doors::redis::resp::request::Command;

/// Positions and access of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// Access to the keys.
    pub(super) access: KeyAccess,
    /// Argument at which the search begins.
    pub(super) index: usize,
    /// Search.
    pub(super) find: Find,
}

/// Search for keys from an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// Every `step`th argument.
    Range {
        /// 0 or more: distance of the last possible key from the index. Below 0: position from the
        /// end of the command; -1 is its last argument.
        last: i64,
        /// Distance between keys.
        step: usize,
        /// With `last` -1: only the first 1/limit of the arguments are keys; 0 and 1 for all.
        limit: usize,
    },
    /// As many keys as an argument states.
    KeyNum {
        /// Position of the number, from the index.
        number: usize,
        /// Position of the first key, from the index.
        first: usize,
        /// Distance between keys.
        step: usize,
    },
}

/// Check of the number of keys, and the words of its error.
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
    /// Returns the index of the last argument that a command must have for this spec to find keys.
    pub(super) fn needed(&self) -> usize {
        match self.find {
            Find::Range { .. } => self.index,
            Find::KeyNum { number, first, .. } => self.index + number.max(first),
        }
    }

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

/// Returns the index behind the last argument that can be a key.
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

/// Parses a number as Redis does: no sign but `-`, no leading zeros, no blanks. If guard and Redis
/// disagreed on a number, they would see different keys.
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

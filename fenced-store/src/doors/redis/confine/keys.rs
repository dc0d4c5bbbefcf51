//! Keys that were checked for a connection, beyond those of its patterns.

use std::collections::BTreeMap;

use super::super::commands::KeyAccess;
use super::super::refusal::{Refusal, quoted};
use crate::rules::{escaped, is_expressible};

/// Maximum number of keys that a user can be confined to beyond its patterns; Redis compares every
/// key with each of them.
const KEYS_MAX: usize = 256;
/// Maximum total length of their names, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// A key of a command, and its access.
pub(crate) type Wanted<'k> = (&'k [u8], KeyAccess);

/// Keys that were checked for reading or writing, as many as a user can be confined to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckedKeys {
    keys: BTreeMap<Vec<u8>, KeyAccess>,
    bytes: usize,
    /// There were more keys.
    exceeds: bool,
}

impl CheckedKeys {
    /// Adds a key while there is room.
    pub(crate) fn add(&mut self, (key, access): Wanted<'_>) {
        let has_room = self.keys.len() < KEYS_MAX && self.bytes + key.len() <= BYTES_MAX;
        match self.keys.get_mut(key) {
            Some(known) if access == KeyAccess::Write => *known = access,
            Some(_) => {}
            None if has_room => {
                self.bytes += key.len();
                self.keys.insert(key.to_vec(), access);
            }
            None => self.exceeds = true,
        }
    }

    /// Returns `true` if this access was checked.
    pub(super) fn have(&self, (key, access): Wanted<'_>) -> bool {
        self.keys.get(key).is_some_and(|known| *known == KeyAccess::Write || *known == access)
    }

    /// Returns `true` if a key can only be read.
    pub(super) fn has_reads(&self) -> bool {
        self.keys.values().any(|access| *access == KeyAccess::Read)
    }

    /// Returns the keys as arguments of ACL SETUSER.
    ///
    /// # Errors
    /// The error line, if there were too many keys, or one cannot be expressed.
    pub(super) fn acl_rules(&self) -> Result<Vec<Vec<u8>>, Refusal> {
        if self.exceeds {
            return Err(Refusal::Line(format!(
                "DENIED a script (or a transaction with one) can have at most {KEYS_MAX} keys, of \
                 {BYTES_MAX} bytes together, beside those that the rules let it reach by pattern; \
                 see redis-commands.md, Scripts"
            )));
        }
        self.keys.iter().map(|(key, access)| acl_rule(key, *access)).collect()
    }
}

/// Makes the ACL rule for one key.
fn acl_rule(key: &[u8], access: KeyAccess) -> Result<Vec<u8>, Refusal> {
    if !key.iter().all(|byte| is_expressible(*byte)) {
        return Err(Refusal::Line(format!(
            "DENIED key {} has white space or a zero byte, which Redis' ACL cannot express, and no \
             pattern of the rules covers it, so a script cannot be confined to it",
            quoted(key)
        )));
    }
    let sign: &[u8] = match access {
        KeyAccess::Read => b"%R~",
        KeyAccess::Write => b"~",
    };
    Ok([sign, &escaped(key)].concat())
}

#[cfg(test)]
mod tests {
    use super::KeyAccess::{Read, Write};
    use super::*;

    #[test]
    fn a_key_becomes_a_pattern_of_itself() {
        let written = |key| acl_rule(key, Write);
        assert_eq!(written(b"orders:42").unwrap(), b"~orders:42");
        assert_eq!(written(b"a*b?[c]\\").unwrap(), b"~a\\*b\\?\\[c\\]\\\\");
        assert_eq!(acl_rule(b"a", Read).unwrap(), b"%R~a");
        for bad in [&b"a b"[..], b"a\tb", b"a\0b"] {
            assert!(written(bad).is_err());
        }
    }

    #[test]
    fn what_was_checked_for_reading_is_read_only() {
        let mut keys = CheckedKeys::default();
        for (key, access) in
            [(b"a", Read), (b"b", Write), (b"b", Read), (b"c", Read), (b"c", Write)]
        {
            keys.add((key, access));
        }
        assert!(keys.have((b"a", Read)) && !keys.have((b"a", Write)));
        assert!(keys.have((b"b", Write)) && keys.have((b"c", Write)) && keys.have((b"c", Read)));
        assert!(!keys.have((b"d", Read)) && keys.has_reads());
    }

    #[test]
    fn too_many_keys_are_kept_in_part() {
        let mut many = CheckedKeys::default();
        for number in 0..100_000_u32 {
            many.add((&number.to_be_bytes(), Write));
        }
        assert!(many.keys.len() == KEYS_MAX && many.acl_rules().is_err());
        let mut long = CheckedKeys::default();
        let key = vec![b'x'; BYTES_MAX];
        long.add((&key, Read));
        long.add((&key, Write));
        assert_eq!(long.acl_rules().unwrap().len(), 1);
        long.add((b"y", Read));
        assert!(long.keys.len() == 1 && long.acl_rules().is_err());
    }
}

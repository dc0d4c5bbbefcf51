//! The key of an object, and the one place where a request path becomes one.

use std::borrow::Borrow;
use std::fmt;

use fence_protocol::{Invalid, LockName};
use percent_encoding::percent_decode_str;

/// The key of an object.
///
/// Same grammar as a lock name (1 to 256 bytes of `[A-Za-z0-9._:/-]`, no empty, `.` or `..`
/// segment), so that the default rule, "the key itself is the lock", always works and every key
/// has exactly one spelling. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(LockName);

impl ObjectKey {
    /// Makes a key from its canonical text.
    ///
    /// # Errors
    /// [`Invalid`] if the text breaks the grammar.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        LockName::new(text).map(Self).map_err(|_| Invalid::new("object key", text, RULE))
    }

    /// Makes a key from the still encoded rest of a request path. It is decoded once, here, and
    /// only the result is used.
    ///
    /// # Errors
    /// [`Invalid`] for a text that is no key, and for an encoded dot: no client needs to write
    /// `%2e`, except to make two readers of the path disagree.
    pub fn from_path(encoded: &str) -> Result<Self, Invalid> {
        Self::new(&decode_once("object key", encoded)?)
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the lock of the default rule: the key itself.
    pub fn as_lock(&self) -> &LockName {
        &self.0
    }
}

const RULE: &str = "must be 1 to 256 characters of A-Z a-z 0-9 . _ : / - without an empty, \".\" \
                    or \"..\" segment";

/// Makes a lock name from the still encoded rest of a request path, with the same care.
///
/// # Errors
/// [`Invalid`] if the decoded text is not a lock name, or for an encoded dot.
pub fn lock_from_path(encoded: &str) -> Result<LockName, Invalid> {
    LockName::new(&decode_once("lock name", encoded)?)
}

fn decode_once(what: &'static str, encoded: &str) -> Result<String, Invalid> {
    if encoded.to_ascii_lowercase().contains("%2e") {
        return Err(Invalid::new(what, encoded, "has an encoded dot (%2e); write a plain dot"));
    }
    let decoded = percent_decode_str(encoded)
        .decode_utf8()
        .map_err(|_| Invalid::new(what, encoded, "is not UTF-8 after percent-decoding"))?;
    Ok(decoded.into_owned())
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Prefix of the names that the guard and the lock server reserve.
pub(crate) const OWN_NAMES: &[u8] = b"{fence:";

/// Returns `true` for a key or channel of the guard or the lock server: its first brace begins
/// `{fence:`. The text before the brace is the lock server's `--key-prefix`.
pub(crate) fn is_own_name(name: &[u8]) -> bool {
    let brace = name.iter().position(|byte| *byte == b'{');
    brace.is_some_and(|at| name[at..].starts_with(OWN_NAMES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_is_decoded_once() {
        assert_eq!(ObjectKey::from_path("orders%2F42").unwrap().as_str(), "orders/42");
        assert_eq!(ObjectKey::from_path("cron%3anightly").unwrap().as_str(), "cron:nightly");
        for bad in [
            "",
            "a//b",
            "a/",
            "/a",
            "a/../b",
            "a/%2e%2e/b",
            "a/%2E./b",
            "a%2eb",
            "a%252eb",
            "a%00",
            "a%ff",
            "a%",
            "a%2",
            "a b",
            "a?b",
            "a%2F%2Fb",
            "a%2F",
            "a\\b",
        ] {
            assert!(ObjectKey::from_path(bad).is_err(), "{bad}");
        }
        assert!(ObjectKey::from_path(&"a".repeat(257)).is_err());
        assert_eq!(lock_from_path("orders%2F42").unwrap().as_str(), "orders/42");
    }

    proptest! {
        /// No two accepted spellings of a key are different keys for another reader, which decodes
        /// once more.
        #[test]
        fn decoding_again_changes_nothing(path in "[a-c/.%25eE2F:]{0,12}") {
            if let Ok(key) = ObjectKey::from_path(&path) {
                prop_assert_eq!(ObjectKey::from_path(key.as_str()).unwrap(), key);
            }
        }
    }
}

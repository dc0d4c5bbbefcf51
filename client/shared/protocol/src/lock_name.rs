//! The name of a lock.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::Invalid;
use crate::text::serde_as_text;

/// The name of a lock: 1 to 256 bytes of `[A-Za-z0-9._:/-]` with no empty, `.` or `..` segment
/// between slashes.
///
/// There is one canonical form, so two names are the same lock exactly when their bytes are the
/// same. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

serde_as_text!(LockName, |name| name.as_str());

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 256;

    /// A name from text.
    ///
    /// # Errors
    /// [`Invalid`], naming the first rule that the text breaks.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        check(text).map_err(|rule| Invalid::new("lock name", text, rule))?;
        Ok(Self(text.into()))
    }

    /// `true` if these bytes are a valid name; like [`LockName::new`], without an allocation.
    pub fn is_valid(bytes: &[u8]) -> bool {
        (1..=Self::MAX_BYTES).contains(&bytes.len())
            && bytes.iter().all(|byte| is_allowed(char::from(*byte)))
            && bytes.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    if text.len() > LockName::MAX_BYTES {
        return Err(format!(
            "has {} bytes; at most {} are allowed",
            text.len(),
            LockName::MAX_BYTES
        ));
    }
    if let Some(bad) = text.chars().find(|c| !is_allowed(*c)) {
        return Err(format!("contains {bad:?}; only A-Z a-z 0-9 . _ : / - are allowed"));
    }
    match text.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
        Some("") => Err("has an empty segment (a slash at an end, or two in a row)".to_owned()),
        Some(dots) => Err(format!("has a segment \"{dots}\"")),
        None => Ok(()),
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '-')
}

impl TryFrom<String> for LockName {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::new(&text)
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> String {
        name.as_str().to_owned()
    }
}

impl FromStr for LockName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_is_not_canonical() {
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a b", "a\0", "ä", "a%2fb"]
        {
            assert!(LockName::new(bad).is_err(), "{bad:?}");
            assert!(!LockName::is_valid(bad.as_bytes()), "{bad:?}");
        }
        assert!(LockName::new(&"a".repeat(257)).is_err());
        assert!(!LockName::is_valid(&[b'a'; 257]));
    }

    #[test]
    fn accepts_the_usual() {
        for good in ["a", "orders/42", "a.b", "...", "cron:nightly", "A_-/x..y"] {
            assert_eq!(LockName::new(good).unwrap().as_str(), good);
        }
        assert!(LockName::new(&"a".repeat(256)).is_ok());
        assert!(LockName::is_valid(&[b'a'; 256]));
    }

    proptest! {
        #[test]
        fn the_two_checks_agree(
            text in "[a./]{0,6}|[a./:]{0,40}|([a./]|\\PC){0,4}",
            tail in prop::option::weighted(0.1, any::<u8>()),
        ) {
            let bytes: Vec<u8> = text.bytes().chain(tail).collect();
            let text = std::str::from_utf8(&bytes);
            let expected = text.is_ok_and(|text| LockName::new(text).is_ok());
            prop_assert_eq!(LockName::is_valid(&bytes), expected);
        }

        #[test]
        fn whatever_is_accepted_keeps_the_rules(text in "[A-Za-z0-9._:/ %\\x00-]{0,12}") {
            if let Ok(name) = LockName::new(&text) {
                prop_assert_eq!(name.as_str(), text.as_str());
                prop_assert!(text.chars().all(is_allowed));
                prop_assert!(text.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
            }
        }
    }
}

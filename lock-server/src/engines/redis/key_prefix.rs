//! Prefix of the keys of a namespace.

use std::fmt;
use std::str::FromStr;

use fence_protocol::Namespace;

/// The longest, in bytes.
const BYTES_MAX: usize = 64;

/// Text before `{fence:NAMESPACE}:`, for a Redis whose users are confined to keys that begin with a
/// text of their own. May be empty.
///
/// It has no brace, so that the namespace alone decides the hash slot, and nothing that the pattern
/// of an ACL would read as special.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPrefix(String);

impl KeyPrefix {
    /// The prefix of every key of a namespace; the braces keep them in one hash slot.
    pub fn for_namespace(&self, namespace: &Namespace) -> String {
        format!("{}{{fence:{namespace}}}:", self.0)
    }

    /// True where no text goes before.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for KeyPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"{}[]*?^\\\"'".contains(&byte);
        match text {
            "" => Err("it is empty; leave it out, or write as in app1:".to_owned()),
            text if text.len() > BYTES_MAX => {
                Err(format!("it has {} bytes, and at most {BYTES_MAX} are taken", text.len()))
            }
            text if text.bytes().all(is_plain) => Ok(Self(text.to_owned())),
            _ => Err(format!(
                "{text:?} is no key prefix; write letters, digits and signs such as : . _ - / \
                 without blanks, braces, quotes or any of [ ] * ? ^ \\"
            )),
        }
    }
}

impl fmt::Display for KeyPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_before_the_namespace_and_leaves_the_slot() {
        let namespace = Namespace::default();
        let slot = |key: &str| redis_link::slot_of(key.as_bytes());
        let plain = KeyPrefix::default().for_namespace(&namespace);
        assert_eq!(plain, "{fence:default}:");
        let prefixed = "app1:".parse::<KeyPrefix>().unwrap().for_namespace(&namespace);
        assert_eq!(prefixed, "app1:{fence:default}:");
        assert_eq!(slot(&plain), slot(&prefixed));
    }

    #[test]
    fn what_would_be_read_otherwise_is_refused() {
        for good in ["a", "app1:", "team/a.b_c-", &"x".repeat(64)] {
            assert!(good.parse::<KeyPrefix>().is_ok(), "{good}");
        }
        for bad in ["", "a b", "{a}", "a}", "a*", "a?", "[a]", "a\\", "ä", "a\n", &"x".repeat(65)]
        {
            assert!(bad.parse::<KeyPrefix>().is_err(), "{bad}");
        }
    }
}

//! Entity tags, and the conditions of RFC 9110 section 13 over them.

use std::fmt;

use fence_protocol::Invalid;
use sha2::{Digest, Sha256};

/// The strong tag of one stored version of an object: `"<32 hex of SHA-256>-<nonce>"`.
///
/// The hash lets a reader check what it got. The nonce, 64 fresh random bits a write, makes the tag
/// unique: writing the same bytes again, or deleting and writing them again, gives another tag, so
/// a condition can never mistake a later version for an earlier one (the ABA trap of stores whose
/// tag is the content's hash alone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ETag(String);

impl ETag {
    /// Makes the tag of `body`. `nonce` must never be used twice:
    /// `service_kit::ids::random_hex(8)`.
    pub fn from_body(body: &[u8], nonce: &str) -> Self {
        use std::fmt::Write as _;
        let mut tag = String::with_capacity(52);
        for byte in &Sha256::digest(body)[..16] {
            let _ = write!(tag, "{byte:02x}");
        }
        let _ = write!(tag, "-{nonce}");
        Self(tag)
    }

    /// Makes a tag from its stored form.
    pub fn from_stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Parses the `ETag` field of another server. `None` for a weak or malformed tag, and for one
    /// above [`MAX_FOREIGN_BYTES`](Self::MAX_FOREIGN_BYTES).
    pub fn parse_strong(field: &str) -> Option<Self> {
        if field.len() > Self::MAX_FOREIGN_BYTES {
            return None;
        }
        unquoted(field).map(|tag| Self(tag.to_owned()))
    }

    /// Longest tag of another server, in bytes with its quotes.
    pub const MAX_FOREIGN_BYTES: usize = 256;

    /// Returns the tag without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ETag {
    /// Writes the tag as in headers: in quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// Condition of `If-Match` or `If-None-Match` on the current object. Checked after the fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// No condition.
    #[default]
    None,
    /// `If-Match: *`: there is an object.
    Exists,
    /// `If-None-Match: *`: there is none.
    Absent,
    /// `If-Match: "a", "b"`: there is one with one of these tags.
    AnyOf(Vec<ETag>),
    /// `If-None-Match: "a", "b"`: there is none with one of these tags.
    NoneOf(Vec<ETag>),
}

impl Condition {
    /// Maximum number of tags in one header.
    pub const MAX_TAGS: usize = 16;

    /// Parses the values of the two headers.
    ///
    /// # Errors
    /// [`Invalid`] if both are given, or one is neither `*` nor a list of strong tags in quotes.
    pub fn parse(if_match: Option<&str>, if_none_match: Option<&str>) -> Result<Self, Invalid> {
        match (if_match.map(str::trim), if_none_match.map(str::trim)) {
            (None, None) => Ok(Self::None),
            (Some("*"), None) => Ok(Self::Exists),
            (None, Some("*")) => Ok(Self::Absent),
            (Some(list), None) => tags("If-Match", list).map(Self::AnyOf),
            (None, Some(list)) => tags("If-None-Match", list).map(Self::NoneOf),
            (Some(value), Some(_)) => {
                Err(Invalid::new("If-Match", value, "cannot be combined with If-None-Match"))
            }
        }
    }

    /// Returns the kind as one word, and the tags.
    pub(crate) fn parts(&self) -> (&'static str, &[ETag]) {
        match self {
            Self::None => ("none", &[]),
            Self::Exists => ("exists", &[]),
            Self::Absent => ("absent", &[]),
            Self::AnyOf(tags) => ("any-of", tags),
            Self::NoneOf(tags) => ("none-of", tags),
        }
    }

    /// Returns `true` if it holds for an object with this tag (`None`: no object).
    pub fn holds(&self, current: Option<&ETag>) -> bool {
        match self {
            Self::None => true,
            Self::Exists => current.is_some(),
            Self::Absent => current.is_none(),
            Self::AnyOf(tags) => current.is_some_and(|tag| tags.contains(tag)),
            Self::NoneOf(tags) => current.is_none_or(|tag| !tags.contains(tag)),
        }
    }
}

fn tags(header: &'static str, list: &str) -> Result<Vec<ETag>, Invalid> {
    let refuse = |rule: &str| Invalid::new(header, list, rule);
    let mut tags = Vec::new();
    for item in list.split(',').map(str::trim) {
        if item.starts_with("W/") {
            return Err(refuse("has a weak tag; only strong ones are compared"));
        }
        let tag = unquoted(item).ok_or_else(|| refuse("must be * or tags in double quotes"))?;
        tags.push(ETag(tag.to_owned()));
    }
    if tags.len() > Condition::MAX_TAGS {
        return Err(refuse("has more than 16 tags"));
    }
    Ok(tags)
}

/// Returns a strong tag without its quotes.
fn unquoted(item: &str) -> Option<&str> {
    let tag = item.strip_prefix('"')?.strip_suffix('"')?;
    (!tag.is_empty() && !tag.contains('"')).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_get_different_tags() {
        let one = ETag::from_body(b"x", "aa");
        let two = ETag::from_body(b"x", "ab");
        assert_ne!(one, two);
        assert_eq!(one.to_string(), "\"2d711642b726b04401627ca9fbac32f5-aa\"");
    }

    #[test]
    fn conditions_follow_the_rfc() {
        let tag = ETag::from_stored("a-1");
        let parse = |m, n| Condition::parse(m, n).unwrap();
        for (condition, present, absent) in [
            (parse(None, None), true, true),
            (parse(Some("*"), None), true, false),
            (parse(None, Some("*")), false, true),
            (parse(Some("\"a-1\""), None), true, false),
            (parse(Some("\"b-1\", \"a-1\""), None), true, false),
            (parse(Some("\"b-1\""), None), false, false),
            (parse(None, Some("\"a-1\"")), false, true),
            (parse(None, Some("\"b-1\"")), true, true),
        ] {
            assert_eq!(condition.holds(Some(&tag)), present, "{condition:?}");
            assert_eq!(condition.holds(None), absent, "{condition:?}");
        }
    }

    #[test]
    fn tags_of_other_servers_must_be_strong() {
        assert_eq!(ETag::parse_strong("\"1-a\"").unwrap().as_str(), "1-a");
        let long = format!("\"{}\"", "a".repeat(255));
        for bad in ["", "1-a", "W/\"1-a\"", "\"\"", "\"a\"b\"", long.as_str()] {
            assert_eq!(ETag::parse_strong(bad), None, "{bad}");
        }
    }

    #[test]
    fn malformed_conditions_are_refused() {
        for bad in ["", "abc", "\"a", "\"a\"b\"", "W/\"a\"", "\"a\",,\"b\"", "\"\""] {
            assert!(Condition::parse(Some(bad), None).is_err(), "{bad}");
        }
        assert!(Condition::parse(Some("*"), Some("*")).is_err());
        let many = vec!["\"a\""; 17].join(",");
        assert!(Condition::parse(None, Some(&many)).is_err());
    }
}

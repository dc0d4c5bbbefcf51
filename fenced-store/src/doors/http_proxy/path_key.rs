//! The name of a resource at the proxy: the path of a request, decoded once.

use std::fmt;
use std::sync::Arc;

use fence_protocol::Invalid;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Longest key in bytes, as object stores have it.
const BYTES_MAX: usize = 1024;

/// Bytes that are forwarded as they are (RFC 3986 section 2.3), beside the separators of segments
/// and of names. Every other byte is encoded, so that a key has one spelling.
const ENCODED: AsciiSet =
    NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

/// The key of a resource: any text that two readers of a path take for the same. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathKey {
    bytes: Arc<[u8]>,
    encoded: Arc<str>,
}

impl PathKey {
    /// Makes a key from the still encoded path of a request, without its first slash. Rules see
    /// what is decoded here, and the upstream gets its canonical spelling.
    ///
    /// # Errors
    /// [`Invalid`] for a path that is empty, has an empty, `.` or `..` segment, or is longer than
    /// 1024 bytes, and for what upstreams read in different ways: encoded dots and slashes,
    /// backslashes, what begins parameters, queries and fragments (`;`, `?`, `#`), also encoded,
    /// blanks at the end of a segment, control characters, what is not UTF-8, and an escape that is
    /// left after decoding once.
    pub fn from_path(encoded: &str) -> Result<Self, Invalid> {
        let refuse = |why: &'static str| Err(Invalid::new("object key", encoded, why));
        let lower = encoded.to_ascii_lowercase();
        if lower.contains("%2e") {
            return refuse("has an encoded dot (%2e); write a plain dot");
        } else if lower.contains("%2f") {
            return refuse("has an encoded slash (%2f), which some servers take for a separator");
        }
        let bytes: Vec<u8> = percent_decode_str(encoded).collect();
        if !(1..=BYTES_MAX).contains(&bytes.len()) {
            return refuse("must have 1 to 1024 bytes");
        }
        if bytes.split(|byte| *byte == b'/').any(|part| matches!(part, b"" | b"." | b"..")) {
            return refuse("has an empty, \".\" or \"..\" segment");
        }
        if std::str::from_utf8(&bytes).is_err() {
            return refuse("is not UTF-8 after percent-decoding");
        }
        if bytes.iter().any(|byte| byte.is_ascii_control() || b"\\;?#".contains(byte)) {
            return refuse("has a backslash, a \";\", \"?\" or \"#\", or a control character");
        }
        if bytes.split(|byte| *byte == b'/').any(|part| part.ends_with(b" ")) {
            return refuse("has a segment with a blank at its end");
        }
        if percent_encoding::percent_decode(&bytes).ne(bytes.iter().copied()) {
            return refuse("has an escape (% and two hexadecimal digits) behind an encoded %");
        }
        let encoded = percent_encode(&bytes, &ENCODED).to_string();
        Ok(Self { bytes: bytes.into(), encoded: encoded.into() })
    }

    /// The key as rules see it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The key as the upstream gets it.
    pub fn encoded(&self) -> &str {
        &self.encoded
    }
}

/// Encoded, so that it is one line of ASCII.
impl fmt::Display for PathKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_has_one_spelling() {
        for (path, encoded) in [
            ("orders/42", "orders/42"),
            ("cron%3anightly", "cron:nightly"),
            ("a=b", "a%3Db"),
            ("a%3db", "a%3Db"),
            ("a+b", "a%2Bb"),
            ("a%20b", "a%20b"),
            ("year=2026/part@1~", "year%3D2026/part%401~"),
            ("100%25", "100%25"),
            ("a/%c3%a9", "a/%C3%A9"),
        ] {
            assert_eq!(PathKey::from_path(path).unwrap().encoded(), encoded, "{path}");
        }
        for bad in [
            "",
            "a//b",
            "a/",
            "/a",
            "a/../b",
            "a/%2e%2e/b",
            "a%2eb",
            "a%252eb",
            "a%2525",
            "a%00",
            "a%0a",
            "a%2Fb",
            "a\\b",
            "a%5cb",
            "a;b",
            "a%3Bb",
            "a%3Fb",
            "a%23b",
            "a?b",
            "a%20",
            "a%20/b",
            "a%ff",
            "%c0%ae%c0%ae/a",
        ] {
            assert!(PathKey::from_path(bad).is_err(), "{bad}");
        }
        assert!(PathKey::from_path(&"a".repeat(1024)).is_ok());
        assert!(PathKey::from_path(&"a".repeat(1025)).is_err());
    }

    proptest! {
        /// A reader that decodes once, twice or not at all finds the same name, and as many
        /// segments.
        #[test]
        fn all_readers_find_the_same_name(path in "[a-c/.%25eE2FfA3;?#+ =]{0,14}") {
            if let Ok(key) = PathKey::from_path(&path) {
                prop_assert_eq!(&PathKey::from_path(key.encoded()).unwrap(), &key);
                let once: Vec<u8> = percent_decode_str(key.encoded()).collect();
                let twice: Vec<u8> = percent_encoding::percent_decode(&once).collect();
                prop_assert_eq!(&once, key.bytes());
                prop_assert_eq!(twice, once);
                let segments = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
                prop_assert_eq!(segments(key.encoded().as_bytes()), segments(key.bytes()));
            }
        }
    }
}

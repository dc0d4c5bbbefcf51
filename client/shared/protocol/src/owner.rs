//! Short texts that name people, processes, tenants and keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::Invalid;
use crate::text::serde_as_text;

macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $allowed:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        serde_as_text!($name, |value| value.as_str());

        impl $name {
            /// The longest value, in bytes.
            pub const MAX_BYTES: usize = $max;

            /// A value from text.
            ///
            /// # Errors
            /// [`Invalid`] where the text is empty, too long or has a character that is not
            /// allowed.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Invalid> {
                let text = text.as_ref();
                let allowed: fn(char) -> bool = $allowed;
                if (1..=$max).contains(&text.len()) && text.chars().all(allowed) {
                    Ok(Self(text.into()))
                } else {
                    Err(Invalid::new($what, text, $rule))
                }
            }

            /// The value as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked_text!(
    /// Owner of a lease, for people to read: 1 to 256 bytes without control characters.
    Owner,
    "owner",
    256,
    |c| !c.is_control(),
    "must be 1 to 256 bytes without control characters"
);

checked_text!(
    /// A tenant's key space: 1 to 64 bytes of `[A-Za-z0-9._-]`.
    Namespace,
    "namespace",
    64,
    |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'),
    "must be 1 to 64 characters of A-Z a-z 0-9 . _ -"
);

checked_text!(
    /// The name of a signing key: 1 to 32 bytes of `[A-Za-z0-9._-]`.
    KeyId,
    "key id",
    32,
    |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'),
    "must be 1 to 32 characters of A-Z a-z 0-9 . _ -"
);

impl Default for Namespace {
    /// The namespace `default`.
    fn default() -> Self {
        Self("default".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_characters() {
        assert!(Owner::new("Zoë on web-1 (pid 42)").is_ok());
        assert!(Owner::new("").is_err());
        assert!(Owner::new("a\nb").is_err());
        assert!(Owner::new("x".repeat(257)).is_err());
        assert!(Namespace::new("default").is_ok());
        assert!(Namespace::new("a/b").is_err());
        assert!(Namespace::new("{a}").is_err());
        assert!(KeyId::new("k1").is_ok());
        assert!(KeyId::new("k:1").is_err());
    }
}

//! Identifiers that a client may choose.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::Invalid;
use crate::text::serde_as_text;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        ///
        /// Its text is the hyphenated lower-case UUID; other spellings of the same UUID parse to
        /// the same id. The nil UUID is refused: it is what an unset variable looks like.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        serde_as_text!($name, |id| id.0.hyphenated().encode_lower(&mut [0; 36]));

        impl $name {
            /// The largest id, for bounds; no random UUID is ever equal to it.
            pub const MAX: Self = Self(Uuid::max());

            /// An id from a UUID.
            ///
            /// # Errors
            /// [`Invalid`] for the nil UUID.
            pub fn new(id: Uuid) -> Result<Self, Invalid> {
                if id.is_nil() {
                    return Err(Invalid::new($what, id.to_string(), "must not be the nil UUID"));
                }
                Ok(Self(id))
            }

            /// The id, in the `uuid` crate's type.
            pub fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                let id = Uuid::try_parse(text)
                    .map_err(|_| Invalid::new($what, text, "is not a UUID"))?;
                Self::new(id)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    };
}

uuid_id!(
    /// One grant of a lock. The client may choose it, so that a repeated request is recognised.
    LeaseId,
    "lease_id"
);
uuid_id!(
    /// A client process's heartbeat.
    SessionId,
    "session_id"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_canonical_whatever_came_in() {
        let upper = "67E55044-10B1-426F-9247-BB680E5FE0C8".parse::<LeaseId>().unwrap();
        assert_eq!(upper.to_string(), "67e55044-10b1-426f-9247-bb680e5fe0c8");
    }

    #[test]
    fn refuses_what_is_no_uuid() {
        for bad in ["", "nope", "00000000-0000-0000-0000-000000000000", "67e55044-10b1"] {
            assert!(bad.parse::<LeaseId>().is_err(), "{bad:?}");
        }
        let error = "nope".parse::<SessionId>().unwrap_err();
        assert_eq!(error.to_string(), "session_id \"nope\" is not a UUID");
    }
}

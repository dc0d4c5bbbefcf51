//! Identifiers that a client may choose.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::Invalid;
use crate::text::Parse;

/// Reads the 16 bytes of an id.
struct FromBytes<T>(PhantomData<T>);

impl<T: TryFrom<[u8; 16], Error = Invalid>> Visitor<'_> for FromBytes<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the 16 bytes of a UUID")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        let bytes = bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))?;
        T::try_from(bytes).map_err(E::custom)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        ///
        /// Its text is the hyphenated lower-case UUID; other spellings of the same UUID parse to
        /// the same id. The nil UUID is refused: it is what an unset variable looks like.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        /// Its text, or its 16 bytes in a form that is not for people.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.serialize_str(self.0.hyphenated().encode_lower(&mut [0; 36]))
                } else {
                    serializer.serialize_bytes(self.0.as_bytes())
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                if from.is_human_readable() {
                    // Not `deserialize_str`: axum repeats a whole path in the error of that.
                    from.deserialize_string(Parse::default())
                } else {
                    from.deserialize_bytes(FromBytes(PhantomData))
                }
            }
        }

        impl TryFrom<[u8; 16]> for $name {
            type Error = Invalid;

            fn try_from(bytes: [u8; 16]) -> Result<Self, Invalid> {
                Self::new(Uuid::from_bytes(bytes))
            }
        }

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

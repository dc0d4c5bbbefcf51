//! Types that travel as a string, read and written without a copy of it.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Visitor};

use crate::Invalid;

/// Implements `Serialize` and `Deserialize` of a type by its text and by `FromStr`.
macro_rules! serde_as_text {
    ($name:ident, |$value:ident| $text:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $value = self;
                serializer.serialize_str($text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                // Not `deserialize_str`: axum repeats a path's whole value in the error of that.
                from.deserialize_string($crate::text::Parse::default())
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Declares an enum whose variants are words: each word is written once, for JSON and for text.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$of_variant:meta])* $variant:ident = $word:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name {
            $($(#[$of_variant])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every variant, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word on the wire, in headers and in settings.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The variant that a word names.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word)
            }
        }
    };
}
pub(crate) use words;

/// Parses a string where it lies.
pub(crate) struct Parse<T>(PhantomData<T>);

impl<T> Default for Parse<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: FromStr<Err = Invalid>> Visitor<'_> for Parse<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

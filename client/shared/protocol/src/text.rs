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

//! Methods that a rule names.

use http::Method;

/// Methods that the reverse proxy forwards. WebDAV's methods with a second resource (COPY, MOVE,
/// BIND, REBIND, MERGE, …) are missing, and so are unknown methods.
pub(crate) const METHODS: [&str; 12] = [
    "GET",
    "HEAD",
    "OPTIONS",
    "PUT",
    "POST",
    "PATCH",
    "DELETE",
    "MKCOL",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
];

/// Methods that may be declared to change nothing.
const MAY_READ: [&str; 5] = ["GET", "HEAD", "OPTIONS", "POST", "PROPFIND"];

/// A set of [`METHODS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Methods(u16);

impl Methods {
    /// Parses names with commas between them.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut methods = Self(0);
        for name in text.split(',') {
            let bit = bit(name).ok_or_else(|| {
                format!(
                    "has \"{name}\" before a space, where methods stand; there are {} (in a \
                     pattern write a space as %20)",
                    METHODS.join(", ")
                )
            })?;
            if methods.0 & bit != 0 {
                return Err(format!("names method {name} twice"));
            }
            methods.0 |= bit;
        }
        Ok(methods)
    }

    /// Returns `true` for letters and commas: other text before a space is part of a pattern.
    pub(super) fn may_be(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b',')
    }

    pub(super) fn contains(self, name: &str) -> bool {
        bit(name).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Returns the first method that always changes something.
    pub(super) fn changing(self) -> Option<&'static str> {
        METHODS.into_iter().find(|name| self.contains(name) && !MAY_READ.contains(name))
    }
}

fn bit(name: &str) -> Option<u16> {
    METHODS.iter().position(|known| *known == name).map(|index| 1 << index)
}

/// Returns `true` for methods that change nothing (RFC 9110).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

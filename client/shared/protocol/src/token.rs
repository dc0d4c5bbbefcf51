//! The fencing token.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// A fencing token: 1 ..= 999 999 999 999 999.
///
/// Fifteen digits are exact in the doubles of Lua and JavaScript and are the limit of an RFC 9651
/// integer. Zero means "no token" on the wire and is therefore no `Token`. Tokens are compared,
/// never computed with: only a lock store makes the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(NonZeroU64);

impl Token {
    /// The largest token.
    pub const MAX: u64 = 999_999_999_999_999;

    /// A token from a number.
    ///
    /// # Errors
    /// [`Invalid`] for 0 and for more than 15 digits.
    pub fn new(value: u64) -> Result<Self, Invalid> {
        match NonZeroU64::new(value) {
            Some(token) if value <= Self::MAX => Ok(Self(token)),
            _ => Err(Invalid::new("token", value.to_string(), RULE)),
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// 2025-01-01T00:00:00Z in milliseconds since 1970.
pub const EPOCH_2025_MS: u64 = 1_735_689_600_000;
/// Tokens a millisecond that the clock floor leaves room for: a million a second.
pub const TOKENS_PER_MS: u64 = 1_000;

/// A number above every token that a namespace can have issued until `wall_ms`, as long as it
/// issued fewer than a million a second since 2025 and the wall clock has not gone back.
pub fn clock_floor(wall_ms: u64) -> u64 {
    wall_ms.saturating_sub(EPOCH_2025_MS).saturating_mul(TOKENS_PER_MS)
}

const RULE: &str = "must be an integer from 1 to 999999999999999";

impl TryFrom<u64> for Token {
    type Error = Invalid;

    fn try_from(value: u64) -> Result<Self, Invalid> {
        Self::new(value)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.get()
    }
}

impl FromStr for Token {
    type Err = Invalid;

    /// Parses plain decimal digits: no sign, no leading zero, at most 15 digits.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let plain = (1..=15).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && !text.starts_with('0');
        let number = if plain { text.parse().ok() } else { None };
        Self::new(number.ok_or_else(|| Invalid::new("token", text, RULE))?)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds() {
        assert!(Token::new(0).is_err());
        assert!(Token::new(1).is_ok());
        assert!(Token::new(Token::MAX).is_ok());
        assert!(Token::new(Token::MAX + 1).is_err());
    }

    #[test]
    fn text_is_canonical() {
        for bad in ["", "0", "01", "+1", "-1", "1.0", " 1", "1e3", "1000000000000000", "٣"] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn json_refuses_zero_and_sixteen_digits() {
        assert!(serde_json::from_str::<Token>("0").is_err());
        assert!(serde_json::from_str::<Token>("1000000000000000").is_err());
        assert!(serde_json::from_str::<Token>("-1").is_err());
        assert_eq!(serde_json::from_str::<Token>("34").unwrap().get(), 34);
    }

    proptest! {
        #[test]
        fn round_trips(value in 1..=Token::MAX) {
            let token = Token::new(value).unwrap();
            prop_assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
            let json = serde_json::to_string(&token).unwrap();
            prop_assert_eq!(serde_json::from_str::<Token>(&json).unwrap(), token);
        }
    }
}

//! Time to live of a lease.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The time to live of a lease: 1 ms to 24 h, in whole milliseconds.
///
/// A server may be configured to a narrower range; this is the widest that the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Ttl(u32);

impl Ttl {
    /// The longest time to live, in milliseconds: one day.
    pub const MAX_MS: u64 = 86_400_000;
    /// The time to live of a lease whose client did not ask for one: 15 s.
    pub const DEFAULT: Self = Self(15_000);

    /// A time to live from milliseconds.
    ///
    /// # Errors
    /// [`Invalid`] for 0 and for more than a day.
    pub fn from_ms(ms: u64) -> Result<Self, Invalid> {
        match u32::try_from(ms) {
            Ok(small) if small > 0 && ms <= Self::MAX_MS => Ok(Self(small)),
            _ => Err(Invalid::new("ttl_ms", ms.to_string(), "must be from 1 to 86400000 (a day)")),
        }
    }

    /// In milliseconds.
    pub fn ms(self) -> u64 {
        u64::from(self.0)
    }

    /// Part of a time to live for which a holder trusts its lease: 0.8 of `ttl_ms`, rounded down.
    pub fn trusted_ms(ttl_ms: u64) -> u64 {
        ttl_ms / 5 * 4 + ttl_ms % 5 * 4 / 5
    }

    /// Converts it for timers.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.ms())
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u64> for Ttl {
    type Error = Invalid;

    fn try_from(ms: u64) -> Result<Self, Invalid> {
        Self::from_ms(ms)
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = Invalid;

    /// Rounds down to whole milliseconds, so that a lease is never longer than was asked.
    fn try_from(duration: Duration) -> Result<Self, Invalid> {
        Self::from_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Ttl> for u64 {
    fn from(ttl: Ttl) -> u64 {
        ttl.ms()
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        assert!(Ttl::from_ms(0).is_err());
        assert!(Ttl::from_ms(1).is_ok());
        assert!(Ttl::from_ms(Ttl::MAX_MS).is_ok());
        assert!(Ttl::from_ms(Ttl::MAX_MS + 1).is_err());
        assert!(Ttl::from_ms(u64::MAX).is_err());
        assert!(Ttl::try_from(Duration::from_micros(999)).is_err());
        assert!(Ttl::try_from(Duration::MAX).is_err());
    }
}

//! The value of `--lock-delay`.

use std::str::FromStr;
use std::time::Duration;

use fence_protocol::duration;

/// The longest lock-delay.
const LOCK_DELAY_MAX: Duration = Duration::from_secs(5 * 60);

/// A lock-delay in milliseconds; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockDelay(u64);

impl LockDelay {
    /// In milliseconds.
    pub(super) fn ms(self) -> u64 {
        self.0
    }
}

impl FromStr for LockDelay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let delay = duration::parse(text).map_err(|error| error.to_string())?;
        match u64::try_from(delay.as_millis()) {
            Ok(ms) if delay <= LOCK_DELAY_MAX => Ok(Self(ms)),
            _ => Err(format!("lock-delay {text:?} is out of range: at most 5m")),
        }
    }
}

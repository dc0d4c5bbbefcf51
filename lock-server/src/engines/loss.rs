//! Reaction to leases that may have been lost, or cut short by a jump of the clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The value of `--after-loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// No lock is granted for as long as a lost lease may live.
    #[default]
    Wait,
    /// Locks are granted at once; a former holder may still consider its lease live.
    Grant,
}

impl FromStr for AfterLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "wait" => Ok(Self::Wait),
            "grant" => Ok(Self::Grant),
            _ => Err(format!("{text:?} is none of wait and grant")),
        }
    }
}

impl fmt::Display for AfterLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait",
            Self::Grant => "grant",
        })
    }
}

/// Options for grants after leases may have been lost or cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossOptions {
    /// After a loss of memory.
    pub after_loss: AfterLoss,
    /// Limit above which a move of the store's clock against this server's monotonic clock counts
    /// as a jump.
    pub clock_jump_limit: Duration,
    /// Pause grants when the clock jumped forward.
    pub clock_pause: bool,
}

impl Default for LossOptions {
    fn default() -> Self {
        Self {
            after_loss: AfterLoss::Wait,
            clock_jump_limit: Duration::from_secs(1),
            clock_pause: true,
        }
    }
}

//! What a store does about leases that it may have lost, or that a jump of its clock may have cut
//! short.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The value of `--after-loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// Nobody is granted a lock for as long as a lost lease may live.
    #[default]
    Wait,
    /// Locks are granted at once; whoever held one may believe so still.
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

/// What becomes of grants when leases may have been lost or cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossOptions {
    /// After a loss of memory.
    pub after_loss: AfterLoss,
    /// By how much the store's clock may move against this server's monotonic clock before that counts
    /// as a jump.
    pub clock_jump_limit: Duration,
    /// Whether grants pause when the clock jumped forward.
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

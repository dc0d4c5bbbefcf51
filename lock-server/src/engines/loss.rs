//! Reaction to leases that may have been lost, or cut short by a jump of the clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fence_protocol::duration;

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

/// Handling of grants after leases may have been lost or cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct LossOptions {
    /// When Redis may have lost leases, grants wait, or grant at once. wait: no lock is granted
    /// until every lease that may be lost is over, by the times to live that are known to be in
    /// use. grant: at once, beside a holder that may still rely on its lease.
    #[arg(long, value_name = "WHAT", default_value_t = AfterLoss::Wait)]
    pub after_loss: AfterLoss,
    /// Movement of Redis' clock against this server's that counts as a jump. The server's clock is
    /// the monotonic one.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse_positive)]
    pub clock_jump_limit: Duration,
    /// on or off: grants wait after a forward jump of Redis' clock. They wait for as long as it
    /// jumped, at most as long as a lease may live.
    #[arg(long, value_name = "WHAT", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub clock_pause: bool,
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is none of on and off")),
    }
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

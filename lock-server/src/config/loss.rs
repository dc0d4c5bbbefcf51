//! Flags about leases that may be lost or cut short.

use std::time::Duration;

use fence_protocol::duration;

use crate::store::{AfterLoss, LossOptions};

/// Handling of grants after Redis lost data or its clock jumped.
#[derive(Clone, Debug, clap::Args)]
pub struct LossFlags {
    /// Redis only: handling of grants when Redis may have lost leases. wait: grant no lock until every
    /// lease that may be lost has expired, by the times to live known to be in use. grant: grant at
    /// once, beside a holder that may still believe that it holds the lock.
    #[arg(long, value_name = "WHAT", default_value_t = AfterLoss::Wait)]
    pub after_loss: AfterLoss,
    /// Redis only: movement of the clock of Redis against the monotonic clock of this server that
    /// counts as a jump.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse_positive)]
    pub clock_jump_limit: Duration,
    /// Redis only: on or off: pause grants when the clock of Redis jumped forward, for as long as it
    /// jumped and at most as long as a lease may live.
    #[arg(long, value_name = "WHAT", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub clock_pause: bool,
}

impl LossFlags {
    pub(super) fn options(&self) -> LossOptions {
        LossOptions {
            after_loss: self.after_loss,
            clock_jump_limit: self.clock_jump_limit,
            clock_pause: self.clock_pause,
        }
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is none of on and off")),
    }
}

//! Flags about leases that may be lost or cut short.

use std::time::Duration;

use fence_protocol::duration;

use crate::engines::loss::{AfterLoss, LossOptions};

/// Handling of grants after Redis lost data or its clock jumped.
#[derive(Clone, Debug, clap::Args)]
pub struct LossFlags {
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

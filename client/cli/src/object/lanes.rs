//! `fence object lanes`, `resolve` and `extend`: lanes before an HTTP datastore.

use std::time::Duration;

use fence_protocol::wire::lane::{LaneLine, LanePage, Quarantine, QuarantineRequest};
use fence_protocol::{LockName, Owner};
use fence_terminal::exit::Failure;
use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, or_dash, paged_listing};

use crate::connect::CallOptions;
use crate::value;

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence object resolve orders/42 --quarantine 5f0c9d2e8a14-3 \\
      --none-can-take-effect --reason 'the upstream was restarted'

If a write takes effect afterwards, the fence did not hold. `fence object lanes` shows the id;
another one has no effect.")]
pub(super) struct Resolve {
    #[command(flatten)]
    of: Of,
    /// States that no write with an unknown outcome can take effect any more
    #[arg(long)]
    none_can_take_effect: bool,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence object extend orders/42 --quarantine 5f0c9d2e8a14-3 --by 10m --reason 'it hangs'")]
pub(super) struct Extend {
    #[command(flatten)]
    of: Of,
    /// Added time, at most 24h
    #[arg(long, value_parser = fence_protocol::duration::parse_positive, value_name = "DURATION")]
    by: Duration,
    #[command(flatten)]
    call: CallOptions,
}

/// The quarantine.
#[derive(Clone, Debug, clap::Args)]
struct Of {
    /// Lock of the lane
    lock: LockName,
    /// Id of the quarantine
    #[arg(long, value_name = "ID")]
    quarantine: String,
    /// The reason, for the audit log
    #[arg(long, value_name = "TEXT", value_parser = value::reason)]
    reason: Owner,
}

impl Resolve {
    pub(super) async fn run(self) -> Result<u8, Failure> {
        if !self.none_can_take_effect {
            return Err(Failure::usage(
                "a quarantine ends early only if none of its writes can take effect any more; \
                 state that with --none-can-take-effect",
            ));
        }
        let Of { lock, quarantine, reason } = self.of;
        let request = QuarantineRequest::Resolve { quarantine, none_can_take_effect: true, reason };
        change(&self.call, &lock, request).await
    }
}

impl Extend {
    pub(super) async fn run(self) -> Result<u8, Failure> {
        let Of { lock, quarantine, reason } = self.of;
        let extend_ms = u64::try_from(self.by.as_millis()).unwrap_or(u64::MAX);
        let request = QuarantineRequest::Extend { quarantine, extend_ms, reason };
        change(&self.call, &lock, request).await
    }
}

async fn change(
    call: &CallOptions,
    lock: &LockName,
    request: QuarantineRequest,
) -> Result<u8, Failure> {
    let line = call.client()?.objects().change_quarantine(lock, &request).await?;
    call.print(&line, line_table)
}

fn line_table(line: &LaneLine) -> String {
    let quarantine = line.quarantine.as_ref().map(remaining);
    Facts::new().fact("lock", &line.lock).fact("quarantine", or_dash(quarantine)).text()
}

fn remaining(quarantine: &Quarantine) -> String {
    format!("{} unknown, {} left", quarantine.unknown_outcomes, readable(quarantine.ms_left))
}

/// Table of lanes.
pub(super) fn page_table(lanes: &LanePage) -> String {
    let rows = lanes.lanes.iter().map(|line| {
        let quarantine = line.quarantine.as_ref();
        [
            line.lock.to_string(),
            or_dash(line.mark),
            or_dash(line.open_token),
            line.writes_in_flight.to_string(),
            line.reads_in_flight.to_string(),
            line.waiting.to_string(),
            or_dash(quarantine.map(remaining)),
            or_dash(quarantine.map(|quarantine| &quarantine.id)),
        ]
    });
    let heads = ["LOCK", "MARK", "OPEN", "WRITES", "READS", "WAITING", "QUARANTINE", "ID"];
    paged_listing(heads, rows, lanes.next_after.as_ref())
}

//! `fence lock explain`: what is known of a lock, in sentences.

mod ending;
mod own;
mod text;

use fence_protocol::wire::event::{ExplainedLock, RecentEvents};
use fence_protocol::{LeaseId, LockName};

use crate::connect::CallOptions;
use fence_terminal::color::{self, painted};
use fence_terminal::exit::{Failure, code};

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock explain orders/42
  fence lock explain orders/42 --lease 67e55044-10b1-426f-9247-bb680e5fe0c8
  fence lock explain orders/42 --output json | jq .refusals

Refusals are listed where guards report them (fenced-store --report-to).
Exit code 1 if nothing is remembered of the lease.")]
pub(super) struct Explain {
    /// Name of the lock
    lock: LockName,
    /// Only this lease; exit code 1 if it is not remembered
    #[arg(long, value_name = "ID")]
    lease: Option<LeaseId>,
    #[command(flatten)]
    call: CallOptions,
}

/// The lease of `--lease`, with its remembered events.
#[derive(Debug)]
struct OwnLease {
    lease_id: LeaseId,
    recent: RecentEvents,
}

/// Prints the explanation; returns the exit code.
pub(super) async fn explain(args: Explain) -> Result<u8, Failure> {
    let client = args.call.client()?;
    let explained = client.locks().explain(&args.lock, None).await?;
    let Some(lease_id) = args.lease else {
        return args.call.print(&explained, |explained| rendered(explained, None));
    };
    let own = client.locks().explain(&args.lock, Some(lease_id)).await?;
    let own_lease = OwnLease { lease_id, recent: own.recent.clone() };
    args.call.print(&own, |_| rendered(&explained, Some(&own_lease)))?;
    let is_known = own::is_known(&explained, &own_lease);
    Ok(if is_known { code::OK } else { code::NOTHING })
}

/// Renders the whole explanation.
fn rendered(explained: &ExplainedLock, own: Option<&OwnLease>) -> String {
    let mut lines = text::state(&explained.now);
    if let Some(first) = lines.first_mut() {
        *first = painted(color::STRONG, &*first);
    }
    lines.push(text::queue(&explained.now));
    lines.extend(text::endings(explained));
    lines.extend(text::reported(explained));
    match own {
        Some(own) => {
            lines.push(String::new());
            lines.extend(own::lines(explained, own));
        }
        None => lines.extend(text::meaning(explained)),
    }
    lines.join("\n") + "\n"
}

/// Returns `true` if the lease holds the lock, alone or shared.
fn is_holder(explained: &ExplainedLock, lease_id: LeaseId) -> bool {
    let now = &explained.now;
    now.holder.iter().chain(&now.also_held).any(|holder| holder.lease_id == lease_id)
}

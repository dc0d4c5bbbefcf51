//! `fence run`: holds a lock while a command runs, and ends it before the lock can pass on.

mod ending;
pub(crate) mod helper;
pub(crate) mod holding;
mod job;
mod progress;
pub(crate) mod signals;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use fence_client::{ErrorKind, LockRequest};
use fence_protocol::duration;

use self::holding::{GIVE_BACK, Options, Outcome};
use crate::connect::{self, Connect};
use crate::exit::{Failure, code};
use crate::readable::readable;

/// Holds a lock while a command runs, and ends the command before the lock can pass on.
///
/// The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1 and USR2 are passed
/// on to that group at all times, stdin is its own, and its exit code becomes this one's. When the
/// lease can no longer be trusted the group gets TERM, and KILL after the grace or just before the
/// lease can pass on, whichever comes first. When the server says that the lease has ended, or this
/// process was stopped past its lease, there is no time left, and the group gets KILL at once. On a
/// machine that was suspended past the lease that is at the resume.
///
/// Renewal goes on for as long as this process lives. --progress-within ties it to the command, so
/// that one that hangs loses the lock, and --max-hold ends it in any case.
///
/// The command finds FENCE_LOCK, FENCE_TOKEN, FENCE_LEASE_ID, FENCE_HEADER (the value of the
/// Fencing-Token header), FENCE_CREDENTIAL (the same as a password for the guard's Redis port) and
/// FENCE_DEADLINE_MS (when the lease would be lost without a renewal, in milliseconds on the clock
/// of /proc/uptime) in its environment.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The lock to hold
    #[arg(long, short = 'l', value_name = "NAME")]
    lock: String,

    /// How long to wait while another holds the lock, at most 5m
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = connect::wait)]
    wait: Duration,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  fence run --lock jobs/nightly -- ./nightly.sh
  fence run --lock jobs/nightly --wait 5m --ttl 30s -- make report
  fence run --lock jobs/import --progress-within 30s --max-hold 1h -- sh -c \\
    'for file in inbox/*; do ./import \"$file\"; echo >&$FENCE_PROGRESS_FD; done'
  fence run --lock orders/42 -- sh -c \\
    'curl -fsS -X PUT -H \"Fencing-Token: $FENCE_HEADER\" -d paid $FENCE_STORE/v1/objects/orders/42'

Exit codes: the command's own, or 128 and the number of the signal that ended it;
  75 the lock was not acquired, 76 the lease was lost while the command ran,
  126 and 127 the command cannot be executed or is not there, 64 wrong usage, 69 no server";

/// Acquires, runs, releases; the exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.connect.client()?;
    let mut signals = holding::listen(&args.options)?;
    let acquire = request(&args, client.lock(&args.lock)).acquire();
    let lease = tokio::select! {
        biased;
        signal = signals.next() => {
            // The acquire is dropped, and with it a grant that may be on its way.
            client.drained(GIVE_BACK).await;
            let message = format!("{} while waiting for {}", signals::name(signal), args.lock);
            return Err(Failure::new(code::SIGNAL_BASE + signals::number(signal), message));
        }
        acquired = acquire => acquired.map_err(|error| not_acquired(&args, error))?,
    };
    match holding::hold(&args.options, &args.command, &client, lease, &mut signals).await? {
        Outcome::Ended(code) => Ok(code),
        Outcome::Lost { message, .. } => Err(Failure::new(code::LOST, message)),
    }
}

fn request(args: &Args, request: LockRequest) -> LockRequest {
    let options = &args.options;
    let mut request = request.ttl(options.ttl).wait(args.wait);
    if let Some(limit) = options.progress_within {
        request = request.progress_within(limit);
    }
    if let Some(limit) = options.max_hold {
        request = request.max_hold(limit);
    }
    if let Some(time) = options.warn_before {
        request = request.warn_before(time);
    }
    request
}

/// A lock that is held is the expected case, and gets words for people.
fn not_acquired(args: &Args, error: fence_client::Error) -> Failure {
    let ErrorKind::Contended { holder, .. } = error.kind() else {
        return error.into();
    };
    let holder = holder.as_ref().map_or_else(String::new, |holder| {
        format!(
            " by {} with token {}, for {} already",
            holder.owner,
            holder.token,
            readable(holder.held_ms)
        )
    });
    let message = format!(
        "{} is held{holder}; waited {}. Wait for longer with --wait",
        args.lock,
        duration::show(args.wait)
    );
    Failure::new(code::NOT_ACQUIRED, message)
}

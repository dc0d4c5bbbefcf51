//! `fence run`: holds a lock while a command runs, and ends it before the lock can pass on.

mod ending;
pub(crate) mod helper;
mod job;
mod signals;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use fence_client::{Client, ErrorKind, Lease};
use fence_protocol::duration;

use crate::connect::{self, Connect};
use crate::exit::{Failure, code};
use crate::output::say;
use crate::readable::readable;

/// How long a release that is on its way is waited for when the command ends early.
const GIVE_BACK: Duration = Duration::from_secs(2);

/// Holds a lock while a command runs, and ends the command before the lock can pass on.
///
/// The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1 and USR2 are passed
/// on to that group at all times, stdin is its own, and its exit code becomes this one's. When the
/// lease can no longer be trusted the group gets TERM, and KILL after the grace or just before the
/// lease can pass on, whichever comes first. When the server says that the lease has ended, or this
/// process was stopped past its lease, there is no time left, and the group gets KILL at once.
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

    /// How long the lease lives unless it is renewed; it is renewed every third of that
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = duration::parse_positive)]
    ttl: Duration,

    /// How long to wait while another holds the lock, at most 5m
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = connect::wait)]
    wait: Duration,

    /// How long the command may take to end itself after the lease is lost, at most
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = duration::parse)]
    grace: Duration,

    /// Say on stderr when the lock is acquired and released
    #[arg(long, short)]
    verbose: bool,

    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  fence run --lock jobs/nightly -- ./nightly.sh
  fence run --lock jobs/nightly --wait 5m --ttl 30s -- make report
  fence run --lock orders/42 -- sh -c \\
    'curl -fsS -X PUT -H \"Fencing-Token: $FENCE_HEADER\" -d paid $FENCE_STORE/v1/objects/orders/42'

Exit codes: the command's own, or 128 and the number of the signal that ended it;
  75 the lock was not acquired, 76 the lease was lost while the command ran,
  126 and 127 the command cannot be executed or is not there, 64 wrong usage, 69 no server";

/// Acquires, runs, releases; the exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.connect.client()?;
    let mut signals = signals::Signals::listen()?;
    let acquire = client.lock(&args.lock).ttl(args.ttl).wait(args.wait).acquire();
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
    if args.verbose {
        say(&format!("fence: holding {} with token {}", lease.lock(), lease.token()));
    }
    let outcome = hold(&args, &client, lease, &mut signals).await;
    client.drained(GIVE_BACK).await;
    outcome
}

/// Runs the command under the lease and gives the lock back.
async fn hold(
    args: &Args,
    client: &Client,
    lease: Lease,
    signals: &mut signals::Signals,
) -> Result<u8, Failure> {
    // This process may have been stopped since the grant came: then nothing is started at all.
    lease.check()?;
    let job = job::Job::start(&args.command, &environment(client, &lease))?;
    let ended = supervise::supervise(job, &lease, signals, args.grace).await?;
    let lock = lease.lock().clone();
    if let Some(reason) = ended.lost {
        let message =
            format!("the lease on {lock} was lost while the command ran: {reason}; {}", ended.what);
        return Err(Failure::new(code::LOST, message));
    }
    match lease.release().await {
        Ok(()) if args.verbose => say(&format!("fence: released {lock}")),
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
            let message = format!("the command ran beyond its lease: {error}; {}", ended.what);
            return Err(Failure::new(code::LOST, message));
        }
        Err(error) => say(&format!("fence: {lock} is not released and expires by itself: {error}")),
    }
    Ok(ended.code)
}

fn environment(client: &Client, lease: &Lease) -> Vec<(&'static str, String)> {
    vec![
        ("FENCE_LOCK", lease.lock().to_string()),
        ("FENCE_TOKEN", lease.token().to_string()),
        ("FENCE_LEASE_ID", lease.lease_id().to_string()),
        ("FENCE_HEADER", lease.fencing_token().to_owned()),
        ("FENCE_CREDENTIAL", lease.fencing_credential().to_owned()),
        ("FENCE_DEADLINE_MS", lease.deadline().ms().to_string()),
        // So that the command talks to the servers that this one talks to.
        ("FENCE_SERVER", client.lock_server().to_owned()),
        ("FENCE_STORE", client.fenced_store().to_owned()),
    ]
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

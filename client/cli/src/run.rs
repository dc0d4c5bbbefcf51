//! `fence run`: holds a lock while a command runs, and ends it before the lock can pass on.

mod ending;
pub(crate) mod held;
pub(crate) mod helper;
pub(crate) mod holding;
mod job;
mod members;
pub(crate) mod options;
mod progress;
pub(crate) mod signals;
mod supervise;
mod terminal;
mod watcher;

use std::ffi::OsString;

use fence_client::acquire::DEFAULT_PATIENCE;
use fence_client::clock::{self, Moment};
use fence_client::{Client, Error, ErrorKind, LockRequest, SessionBuilder, ids, timing};
use fence_protocol::{Code, duration};

use self::held::Held;
use self::holding::{HoldingOutcome, RELEASE_WAIT};
use self::options::{Options, given};
use self::signals::Signals;
use crate::connect::Connect;
use crate::identity::Identity;
use crate::kind::Kind;
use crate::waiting::{WaitArgs, WaitView};
use fence_terminal::exit::{Failure, code};
use fence_terminal::readable::readable;

/// This program's file, even when it was replaced on the disk meanwhile.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Holds a lock while a command runs, and ends the command before the lock can pass on.
///
/// Several locks (--lock A --lock B) are held by one session: all of them or none, under one
/// heartbeat. They are granted in one step, and while this waits it holds none of them. --shared
/// and --permits go for each. The command is ended where one of them is lost.
///
/// The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1 and USR2 are passed
/// on to that group at all times, stdin is its own, and its exit code becomes this one's. When the
/// lease can no longer be trusted the group gets TERM, and KILL after the grace or just before the
/// lease can pass on, whichever comes first. When the server says that the lease has ended, or this
/// process was stopped past its lease, there is no time left, and the group gets KILL at once. On a
/// machine that was suspended past the lease that is at the resume.
///
/// A process that the command leaves in its group when it ends gets TERM, and KILL after the grace,
/// before the lock is released. --leave-background leaves it: then it continues without the lock. A
/// process that leaves the group (setsid) is not ended; a line on stderr says that one continues.
/// If this process is killed outright, the command and its group are killed.
///
/// Renewal continues for as long as this process lives. --progress-within ties it to the command,
/// so that one that hangs loses the lock, and --max-hold ends it in any case.
///
/// The command finds FENCE_LOCK, FENCE_TOKEN, FENCE_LEASE_ID, FENCE_HEADER (the value of the
/// Fencing-Token header), FENCE_CREDENTIAL (the same as a password for the guard's Redis port) and
/// FENCE_DEADLINE_MS (when the lease would be lost without a renewal, in milliseconds on the clock
/// of /proc/uptime) in its environment. FENCE_LEASES has the same of every lock as JSON: [{"lock",
/// "token", "lease_id", "header", "credential"}, …] in the order of --lock. Of several locks the
/// other variables describe the first, but for FENCE_CREDENTIAL, which is that of all of them, and
/// FENCE_SESSION_ID. TRACEPARENT is that of its own environment, or begins a trace.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The lock to hold; repeatable, up to 64 locks
    #[arg(long, short = 'l', required = true, value_name = "NAME")]
    lock: Vec<String>,

    #[command(flatten)]
    wait: WaitArgs,

    /// The command and its arguments
    #[arg(required_unless_present = "shell", last = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    kind: Kind,

    #[command(flatten)]
    identity: Identity,

    #[command(flatten)]
    connect: Connect,
}

const EXAMPLES: &str = "\
Examples:
  fence run --lock jobs/nightly -- ./nightly.sh
  fence run --lock jobs/nightly --wait 5m --ttl 30s -- make report
  fence run --lock jobs/nightly -c 'make report && ./send.sh'
  fence run --lock accounts/1 --lock accounts/2 --wait 10s -- ./transfer.sh
  fence run --lock report --shared -- ./print-report.sh          beside other readers
  fence run --lock licences --permits 5 --wait 5m -- ./build.sh  five at a time
  fence run --lock jobs/mail --takeover -- ./mailer.sh           under a service manager
  fence run --lock jobs/mail --owner mail --takeover-of $DEAD_LEASE -- ./mailer.sh
  fence run --lock jobs/import --progress-within 30s --max-hold 1h -- sh -c \\
    'for file in inbox/*; do ./import \"$file\"; echo >&$FENCE_PROGRESS_FD; done'
  fence run --lock orders/42 -- sh -c \\
    'curl -fsS -X PUT -H \"Fencing-Token: $FENCE_HEADER\" -d paid $FENCE_GUARD/v1/objects/orders/42'

Exit codes: the command's own, or 128 and the number of the signal that ended it;
  75 (or --conflict-exit-code) the lock was not acquired,
  76 the lease was lost while the command ran, 77 the server refuses the caller,
  126 and 127 the command cannot be executed or is not there, 69 no server,
  64 wrong usage, or the lock is in use as another kind";

/// Acquires, runs, releases; the exit code.
pub(crate) async fn run(args: Args) -> Result<u8, Failure> {
    if args.lock.len() > 1 && args.identity.takeover_of.is_some() {
        return Err(Failure::usage("--takeover-of names one lease, and takes one --lock with it"));
    }
    let mut locks = args.lock.iter().enumerate();
    if let Some((_, lock)) = locks.find(|(at, lock)| args.lock[..*at].contains(lock)) {
        return Err(Failure::usage(format!("--lock {lock} is given twice")));
    }
    let view = WaitView::new();
    let client = args.identity.client(&args.connect, &view)?;
    let command = args.options.command_line(&args.command);
    let mut signals = holding::listen(&args.options)?;
    let wait_until = clock::now().plus(args.wait.wait);
    loop {
        let acquired = acquire(&args, &client, wait_until, &mut signals);
        let held = view.show(&client, &args.lock, acquired).await;
        let held = held.map_err(|failure| args.wait.failed(failure))?;
        let servers = (&client, &args.connect);
        match holding::hold(&args.options, &command, servers, held, &mut signals).await? {
            HoldingOutcome::Ended(code) => return Ok(code),
            HoldingOutcome::Lost { message, .. } => return Err(Failure::new(code::LOST, message)),
            HoldingOutcome::NotStarted(message) if clock::now() < wait_until => {
                tracing::warn!("{message}; nothing has run, waiting again");
            }
            HoldingOutcome::NotStarted(message) => {
                return Err(args.wait.failed(Failure::new(code::NOT_ACQUIRED, message)));
            }
        }
    }
}

/// Waits for what is to be held, or for a signal.
async fn acquire(
    args: &Args,
    client: &Client,
    wait_until: Moment,
    signals: &mut Signals,
) -> Result<Held, Failure> {
    let acquired = tokio::select! {
        biased;
        signal = signals.next() => {
            Err(signals::ended(signal, &format!("waiting for {}", args.lock.join(", "))))
        }
        acquired = obtain(args, client, wait_until) => acquired,
    };
    if acquired.is_err() {
        // The acquire was dropped, and with it a grant that may be on its way.
        client.drained(RELEASE_WAIT).await;
    }
    acquired
}

async fn obtain(args: &Args, client: &Client, wait_until: Moment) -> Result<Held, Failure> {
    let [lock] = &args.lock[..] else {
        return together(args, client, wait_until).await;
    };
    let options = &args.options;
    let request = client.lock(lock).ttl(options.ttl).wait(wait_until.since(clock::now())).bounded();
    let request = given(options.progress_within, request, LockRequest::progress_within);
    let request = given(options.max_hold, request, LockRequest::max_hold);
    let request = given(options.warn_before, request, LockRequest::warn_before);
    let request = args.kind.apply(args.identity.apply(request));
    let lease = request.acquire().await.map_err(|error| not_acquired(args, error))?;
    Ok(lease.into())
}

/// Several locks, by one session. Where the session is lost while it waits, no command has run, and
/// another session waits on, as a single lock does.
async fn together(args: &Args, client: &Client, wait_until: Moment) -> Result<Held, Failure> {
    let give_up_at = wait_until.plus(DEFAULT_PATIENCE);
    for attempt in 1.. {
        let error = match by_session(args, client, wait_until).await {
            Ok(held) => return Ok(held),
            Err(error) => error,
        };
        if !matches!(error.kind(), ErrorKind::LeaseLost { .. }) {
            return Err(not_acquired(args, error));
        }
        let pause = timing::pause(attempt, ids::random());
        if clock::now().plus(pause) >= give_up_at {
            return Err(Failure::from(error).with_code(code::NOT_ACQUIRED));
        }
        tracing::warn!(%error, "the session was lost while it waited; waiting in another one");
        tokio::time::sleep(pause).await;
    }
    unreachable!("the loop has no end but its returns")
}

async fn by_session(args: &Args, client: &Client, wait_until: Moment) -> Result<Held, Error> {
    let options = &args.options;
    let left = wait_until.since(clock::now());
    let session = client.session().ttl(options.ttl).bounded(left).limits_wait();
    let session = given(options.progress_within, session, SessionBuilder::progress_within);
    let session = given(options.max_hold, session, SessionBuilder::max_hold);
    let session = given(options.warn_before, session, SessionBuilder::warn_before);
    let session = session.begin().await?;
    let none = session.group().wait(wait_until.since(clock::now())).bounded();
    let mut locks = args.lock.iter().fold(none, |locks, lock| args.kind.one_more(locks, lock));
    if args.identity.takeover {
        locks = locks.takeover();
    }
    let leases = locks.acquire_all().await?;
    session.start_limits();
    Ok(Held::Several(Box::new(session), leases))
}

/// A lock that is held is the expected case, and gets words for people.
fn not_acquired(args: &Args, error: Error) -> Failure {
    let code = error.problem().map(|problem| problem.code);
    if code == Some(Code::NotOffered) && args.lock.len() > 1 {
        return Failure::from(error).with_message(
            "several locks need a session, which a quorum does not offer: hold one lock, or keep \
             leases in another store",
        );
    }
    let ErrorKind::Contended { holder, .. } = error.kind() else {
        return error.into();
    };
    let lock = match error.lock() {
        Some(lock) => lock.to_string(),
        None => args.lock.join(", "),
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
        "{lock} is held{holder}; waited {}. Wait for longer with --wait",
        duration::show(args.wait.wait)
    );
    Failure::from(error).with_message(message)
}

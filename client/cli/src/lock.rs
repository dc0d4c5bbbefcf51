//! `fence lock`: the lock server's calls, one by one.

mod explain;
mod print;
mod watch;

use std::time::Duration;

use clap::Subcommand;
use fence_client::Error;
use fence_protocol::wire::lock::{LockFilter, LockOrder, LockQuery};
use fence_protocol::{Code, LeaseId, LockName, Owner, SessionId, Token, Ttl, duration};

use crate::connect::{CallOptions, Connect};
use crate::identity::Identity;
use crate::kind::Kind;
use crate::run::holding::RELEASE_WAIT;
use crate::run::signals::{self, Signals};
use crate::value;
use crate::waiting::{WaitArgs, WaitView};
use fence_terminal::exit::{Failure, code};

/// Acquires, renews, releases, shows, lists and revokes leases
///
/// A lease that is acquired here lives for its time and no longer: nothing renews it. Programs are
/// better served by `fence run`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock acquire orders/42 --ttl 30s --output json
  fence lock show orders/42
  fence lock explain orders/42 --lease 67e55044-10b1-426f-9247-bb680e5fe0c8
  fence lock list orders/
  fence lock watch orders/")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Acquires a lock and prints the grant
    Acquire(Acquire),
    /// Renews a lease
    Renew(Renew),
    /// Ends a lease
    Release(Release),
    /// Shows holders, waiters and ended leases
    Show(Show),
    /// Explains how leases ended and what guards refused
    Explain(explain::Explain),
    /// Prints events of locks
    Watch(watch::Watch),
    /// Lists held locks, or those that wait or were refused
    List(List),
    /// Seals the guards and ends every live lease, or one of several
    Revoke(Revoke),
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock acquire orders/42
  fence lock acquire orders/42 --ttl 1m --wait 30s --output json | jq -r .fencing_token
  fence lock acquire orders/42 --ttl 1m --output json | jq -r .fencing_credential
  fence lock acquire report --shared --ttl 1m                     beside other readers
  fence lock acquire licences --permits 5 --wait 1m               one of five at a time
  fence lock acquire orders/42 --owner billing --takeover --incarnation \"$POD_UID\"
  fence lock acquire orders/42 --owner billing --takeover-of 67e55044-10b1-426f-9247-bb680e5fe0c8
  fence lock acquire orders/42 --session 8a6bd64e-2a5f-4b44-9f80-1c1e3a6fd1f1

Exit code 75 when another holds the lock for longer than the wait, or it may not be taken over;
76 when the session has ended, 64 also when the lock is in use as another kind.")]
struct Acquire {
    /// Name of the lock
    lock: String,
    /// Time to live
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = duration::parse_positive)]
    ttl: Duration,
    #[command(flatten)]
    wait: WaitArgs,
    /// The token must exceed this one
    #[arg(long, value_name = "TOKEN")]
    min_token: Option<Token>,
    /// Bind the lease to this session; --ttl has no effect
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
    #[command(flatten)]
    kind: Kind,
    #[command(flatten)]
    identity: Identity,
    #[command(flatten)]
    call: CallOptions,
}

/// A lease, named by --lease or behind the lock.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Lease {
    /// The lease, as `acquire` printed it
    lease_id: Option<LeaseId>,
    /// The lease, in place of LEASE_ID
    #[arg(long, value_name = "ID", conflicts_with = "lease_id")]
    lease: Option<LeaseId>,
}

impl Lease {
    fn id(self) -> Result<LeaseId, Failure> {
        let id = self.lease.or(self.lease_id);
        id.ok_or_else(|| Failure::usage("which lease? Give its id with --lease"))
    }
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence lock renew orders/42 67e55044-10b1-426f-9247-bb680e5fe0c8 --ttl 1m

Exit code 76 when the lease has ended: renewing never resurrects.")]
struct Renew {
    /// Name of the lock
    lock: LockName,
    #[command(flatten)]
    lease: Lease,
    /// Another time to live [default: the lease's own]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    ttl: Option<Duration>,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence lock release orders/42 67e55044-10b1-426f-9247-bb680e5fe0c8

Exit code 76 when the lease had ended before.")]
struct Release {
    /// Name of the lock
    lock: LockName,
    #[command(flatten)]
    lease: Lease,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock show orders/42
  fence lock show orders/42 --output json | jq -r .state")]
struct Show {
    /// Name of the lock
    lock: LockName,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock list
  fence lock list orders/ --limit 20
  fence lock list --filter waiting --sort queue                   the longest queue first
  fence lock list --filter refused                                late writes that guards refused

A filter or an order concerns the locks of one page: --limit of them are read, those that the filter
drops are not printed, and the last line has the flag for the next page.")]
struct List {
    /// Only names that begin so, as with --prefix
    #[arg(value_name = "PREFIX", conflicts_with = "prefix")]
    names: Option<String>,
    /// Only names that begin so
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
    /// Only names after this one
    #[arg(long, value_name = "NAME")]
    after: Option<LockName>,
    /// Locks that are read for the list [default: 100, or 1000 with --filter, --held-by or --sort]
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    limit: Option<usize>,
    /// Only locks that are held, have waiters, or had refused writes lately: held, waiting, refused
    #[arg(long, value_name = "KIND", value_parser = filter)]
    filter: Option<LockFilter>,
    /// Only locks that an owner holds whose name contains this
    #[arg(long, value_name = "TEXT")]
    held_by: Option<Owner>,
    /// Largest first of those: queue, age, refusals
    #[arg(long, value_name = "ORDER", value_parser = order)]
    sort: Option<LockOrder>,
    #[command(flatten)]
    call: CallOptions,
}

impl List {
    fn query(&self) -> LockQuery {
        let is_searched = self.filter.is_some() || self.held_by.is_some() || self.sort.is_some();
        LockQuery {
            prefix: self.names.as_ref().unwrap_or(&self.prefix).clone(),
            after: self.after.clone(),
            limit: self.limit.unwrap_or(if is_searched { 1_000 } else { 100 }),
            filter: self.filter,
            owner: self.held_by.clone(),
            sort: self.sort,
        }
    }
}

fn filter(text: &str) -> Result<LockFilter, String> {
    LockFilter::from_word(text).ok_or_else(|| "write held, waiting or refused".to_owned())
}

fn order(text: &str) -> Result<LockOrder, String> {
    LockOrder::from_word(text).ok_or_else(|| "write queue, age or refusals".to_owned())
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock revoke orders/42 --reason 'the worker hangs, INC-1234'
  fence lock revoke readers --lease 67e55044-10b1-426f-9247-bb680e5fe0c8 --reason 'host is gone'

The holder does not have to agree: its next renewal replies with the reason. What protects the
data until then is the guard. Guards that the lock server knows (--guard there) are sealed first,
and the reply names for each whether it refuses the holder from now on.

Exit code 1 when the lock is not held.")]
struct Revoke {
    /// Name of the lock
    lock: LockName,
    /// The reason, for the holder and the audit log
    #[arg(long, value_name = "TEXT", value_parser = value::reason)]
    reason: Owner,
    /// Only this lease, without seals
    #[arg(long, value_name = "ID")]
    lease: Option<LeaseId>,
    #[command(flatten)]
    call: CallOptions,
}

/// Runs the command; returns the exit code.
pub(crate) async fn lock(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Acquire(args) => acquire(args).await,
        Command::Renew(args) => {
            let ttl = args.ttl.map(Ttl::try_from).transpose()?;
            let client = args.call.client()?;
            let reply = client.locks().renew(&args.lock, args.lease.id()?, ttl).await?;
            args.call.print(&reply, print::lease)
        }
        Command::Release(args) => {
            args.connect.client()?.locks().release(&args.lock, args.lease.id()?).await?;
            Ok(code::OK)
        }
        Command::Show(args) => {
            let reply = args.call.client()?.locks().show(&args.lock).await?;
            args.call.print(&reply, print::lock)
        }
        Command::Explain(args) => explain::explain(args).await,
        Command::Watch(args) => watch::watch(args).await,
        Command::List(args) => {
            let client = args.call.client()?;
            let page = client.locks().list_by(&args.query()).await?;
            args.call.print(&page, print::page)
        }
        Command::Revoke(args) => {
            let client = args.call.client()?;
            let locks = client.locks();
            let lock = &args.lock;
            let reply = match args.lease {
                Some(lease) => locks.revoke_lease(lock, lease, args.reason).await?,
                None => locks.revoke(lock, args.reason).await.map_err(not_held)?,
            };
            args.call.print(&reply, |reply| print::revoked(lock, reply))
        }
    }
}

/// A lock that is not held is no such thing. A path that the server does not know, for which the
/// hint is the usual one, is wrong usage.
fn not_held(error: Error) -> Failure {
    let problem = error.problem().filter(|problem| problem.code == Code::NotFound);
    match problem.is_some_and(|problem| problem.hint != problem.code.hint()) {
        true => Failure::from(error).with_code(code::NOTHING),
        false => error.into(),
    }
}

async fn acquire(args: Acquire) -> Result<u8, Failure> {
    let view = WaitView::new();
    let client = args.identity.of_session(&args.call.connect, args.session.is_some(), &view)?;
    let mut request = client.lock(&args.lock).ttl(args.ttl).wait(args.wait.wait).bounded();
    request = args.kind.apply(args.identity.apply(request));
    if let Some(token) = args.min_token {
        request = request.min_token(token);
    }
    let mut signals = Signals::listen(None)?;
    let acquired = async {
        match args.session {
            Some(session) => request.acquire_detached_in(session).await,
            None => request.acquire_detached().await,
        }
    };
    let granted = tokio::select! {
        biased;
        signal = signals.next_end() => {
            Err(signals::ended(signal, &format!("waiting for {}", args.lock)))
        }
        granted = view.show(&client, std::slice::from_ref(&args.lock), acquired) => {
            granted.map_err(|error| args.wait.failed(error.into()))
        }
    };
    if granted.is_err() {
        // A grant whose reply did not arrive is released.
        client.drained(RELEASE_WAIT).await;
    }
    args.call.print(&granted?, print::lease)
}

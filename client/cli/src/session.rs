//! `fence session`: the lock server's calls about sessions, one by one.

use crate::session_tables;
use std::time::Duration;

use clap::Subcommand;
use fence_client::Error;
use fence_protocol::wire::session::SessionRequest;
use fence_protocol::{Code, Owner, SessionId, Ttl, duration};

use crate::connect::CallOptions;
use crate::value;
use fence_terminal::exit::{Failure, code};

/// Creates, heartbeats, ends, shows, lists and blocks sessions
///
/// A session is a process that says now and then that it is alive; its leases live as long as it
/// does. One that is created here gets no heartbeat but those that you send. Programs are better
/// served by the SDK, and scripts by `fence run` with several --lock.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  session=$(fence session create --owner web-1 --ttl 1m --output json | jq -r .session_id)
  fence lock acquire orders/42 --session $session
  fence session heartbeat $session
  fence session end $session")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Creates a session and prints it
    Create(Create),
    /// Renews a session with its leases
    Heartbeat(One),
    /// Ends a session and its leases
    End(One),
    /// Shows a session and its leases
    Show(One),
    /// Lists live sessions
    List(List),
    /// Refuses the heartbeats of a session: it ends at its time
    Block(Block),
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence session create
  fence session create --owner web-1 --ttl 1m --metadata '{\"pod\":7}' --output json")]
struct Create {
    /// Time to live without a heartbeat
    #[arg(long, default_value = "15s", value_name = "TIME", value_parser = duration::parse_positive)]
    ttl: Duration,
    /// JSON that is shown with the session
    #[arg(long, value_name = "JSON", value_parser = value::json)]
    metadata: Option<serde_json::Value>,
    /// The id, a random UUID: a retry with the same id gets the same session [default: a new one]
    #[arg(long, value_name = "SESSION")]
    id: Option<SessionId>,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example, with each of heartbeat, end and show:
  fence session heartbeat 8a6bd64e-2a5f-4b44-9f80-1c1e3a6fd1f1

Exit codes: 76 the session has ended, is not known, or is blocked (heartbeat); stop the work that
its leases protected. For show, 1 where it is not known.")]
struct One {
    /// The session, as `create` printed it
    session: SessionId,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence session list
  fence session list --limit 20 --output json | jq -r '.sessions[].owner'")]
struct List {
    /// Only ids after this one
    #[arg(long, value_name = "SESSION")]
    after: Option<SessionId>,
    /// Length of the list
    #[arg(long, default_value_t = 100, allow_negative_numbers = true, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence session block 8a6bd64e-2a5f-4b44-9f80-1c1e3a6fd1f1 --reason 'runs away, INC-1234'

Nothing is pulled from under the holder: it can no longer renew, stops when its time is over, and
only then are its locks free. To end one lease now: fence lock revoke.

Exit codes: 76 the session has ended, 1 it is not known.")]
struct Block {
    /// Id of the session
    session: SessionId,
    /// The reason, for the session and the audit log
    #[arg(long, value_name = "TEXT", value_parser = value::reason)]
    reason: Owner,
    #[command(flatten)]
    call: CallOptions,
}

/// Runs the command; returns the exit code.
pub(crate) async fn session(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Create(args) => create(args).await,
        Command::Heartbeat(args) => {
            let sent = args.call.client()?.sessions().heartbeat(args.session).await;
            args.call.print(&sent.map_err(over)?, session_tables::session)
        }
        Command::End(args) => {
            let client = args.call.client()?;
            match client.sessions().end(args.session).await? {
                Some(reply) => args.call.print(&reply, session_tables::ended),
                // The reply of an earlier try was lost: how many leases it had is not known.
                None => {
                    let id = args.session;
                    let ended = serde_json::json!({"session_id": id, "reason": "ended"});
                    args.call.print(&ended, |_| format!("session_id  {id}\nended       ended\n"))
                }
            }
        }
        Command::Show(args) => {
            let shown = args.call.client()?.sessions().show(args.session).await;
            args.call.print(&shown.map_err(nothing)?, session_tables::session)
        }
        Command::List(args) => {
            let client = args.call.client()?;
            let page = client.sessions().list(args.after, args.limit).await?;
            args.call.print(&page, session_tables::page)
        }
        Command::Block(args) => {
            let client = args.call.client()?;
            let blocked = client.sessions().block(args.session, args.reason).await;
            args.call.print(&blocked.map_err(nothing)?, session_tables::session)
        }
    }
}

async fn create(args: Create) -> Result<u8, Failure> {
    let client = args.call.client()?;
    let request = SessionRequest {
        ttl_ms: Ttl::try_from(args.ttl)?,
        owner: client.owner().clone(),
        session_id: args.id,
        metadata: args.metadata,
    };
    let reply = client.sessions().create(&request).await?;
    args.call.print(&reply, session_tables::session)
}

fn is(error: &Error, code: Code) -> bool {
    error.problem().is_some_and(|problem| problem.code == code)
}

/// A session whose heartbeats are refused is as good as lost.
fn over(error: Error) -> Failure {
    if is(&error, Code::SessionBlocked) {
        return Failure::from(error).with_code(code::LOST);
    }
    error.into()
}

/// For a reader or an operator, an unknown session is not a loss.
fn nothing(error: Error) -> Failure {
    if is(&error, Code::SessionUnknown) {
        return Failure::from(error).with_code(code::NOTHING);
    }
    error.into()
}

//! `fence elect`: runs a command while this candidate is the leader, and stands again when it was
//! deposed.

use crate::elect_observe;
use std::ffi::OsString;
use std::time::Duration;

use fence_client::{Client, Election, Leader, Lease};

use crate::connect::CallOptions;
use crate::run::holding::{self, HoldingOutcome, RELEASE_WAIT};
use crate::run::options::{Options, given};
use crate::run::signals::{self, Signals};
use crate::value;
use crate::waiting::WaitView;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::say;
use fence_terminal::readable::readable;

/// Time that a deposed leader waits before it campaigns again.
const BEFORE_STANDING_AGAIN: Duration = Duration::from_millis(500);

/// Runs a command while this candidate is the leader of an election.
///
/// An election is a lock: the candidates stand in its queue, and who holds it leads. The command
/// runs as under `fence run`, with the same variables in its environment; FENCE_TOKEN is the number
/// of the term. When the office is lost the command is ended before another can be elected, and the
/// candidate stands again. When the command ends by itself, the office is resigned and its exit
/// code becomes this one's. A server that cannot be reached is waited for.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The election, which is a lock
    #[arg(long, short = 'n', value_name = "NAME")]
    name: String,

    /// JSON that observers find with the leader's name, such as its address
    #[arg(long, value_name = "JSON", value_parser = value::json)]
    metadata: Option<serde_json::Value>,

    /// Print the leader, without being a candidate; exit code 1 if there is none
    #[arg(long, conflicts_with_all = ["command", "shell"])]
    observe: bool,

    /// With --observe: print every change of leader until Ctrl-C
    #[arg(long)]
    follow: bool,

    /// The command and its arguments
    #[arg(
        required_unless_present_any = ["observe", "follow", "shell"],
        last = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,

    #[command(flatten)]
    options: Options,

    #[command(flatten)]
    call: CallOptions,
}

const EXAMPLES: &str = "\
Examples:
  fence elect --name web/leader -- ./lead.sh
  fence elect --name web/leader --ttl 5s --metadata '{\"url\":\"http://10.0.0.7:80\"}' -- ./lead.sh
  fence elect --name web/leader -c 'make index && ./serve.sh'
  fence elect --name web/leader --observe
  fence elect --name web/leader --observe --output json
  fence elect --name web/leader --observe --follow

Exit codes: the command's own, or 128 and the number of the signal that ended it;
  76 the office was lost after the command had been signalled to end,
  1 there is no leader (--observe), 126 and 127 the command cannot be executed or is not there,
  64 wrong usage, 69 no server (--observe). A candidate waits for as long as it takes, so there is
  no exit code for a conflict";

/// Campaigns and leads in turn, or observes.
pub(crate) async fn elect(args: Args) -> Result<u8, Failure> {
    // Not for clap to refuse: beside a command, which excludes --observe, it requires nothing.
    if args.follow && !args.observe {
        return Err(Failure::usage("--follow prints changes of leader: give --observe with it"));
    }
    let view = WaitView::endless();
    let client = args.call.connect.builder()?.wait_observer(view.clone()).build()?;
    let election = election(&args, &client);
    if args.observe && args.follow {
        return elect_observe::follow(&args.name, args.call.output.format, &election).await;
    }
    if args.observe {
        return observe(&args, &election).await;
    }
    let command = args.options.command_line(&args.command);
    let mut signals = holding::listen(&args.options)?;
    loop {
        let standing = stand(&args, &client, &election, &mut signals);
        let lease = view.show(&client, std::slice::from_ref(&args.name), standing).await?;
        let servers = (&client, &args.call.connect);
        match holding::hold(&args.options, &command, servers, lease, &mut signals).await? {
            HoldingOutcome::Ended(code) => return Ok(code),
            HoldingOutcome::Lost { message, was_signalled: true } => {
                return Err(Failure::new(code::LOST, message));
            }
            HoldingOutcome::Lost { message, .. } | HoldingOutcome::NotStarted(message) => {
                say(&format!("fence: {message}; standing again"));
            }
        }
        pause(&args, &mut signals).await?;
    }
}

/// Waits until this candidate leads.
async fn stand(
    args: &Args,
    client: &Client,
    election: &Election,
    signals: &mut Signals,
) -> Result<Lease, Failure> {
    let ended = tokio::select! {
        biased;
        signal = signals.next_end() => ended_by(args, signal),
        elected = election.campaign() => match elected {
            Ok(office) => return Ok(office.into_lease()),
            Err(error) => error.into(),
        },
    };
    // The candidate has left, and with it goes a grant that may be on its way.
    client.drained(RELEASE_WAIT).await;
    Err(ended)
}

/// Lets others go first.
async fn pause(args: &Args, signals: &mut Signals) -> Result<(), Failure> {
    tokio::select! {
        biased;
        signal = signals.next_end() => Err(ended_by(args, signal)),
        () = tokio::time::sleep(BEFORE_STANDING_AGAIN) => Ok(()),
    }
}

fn ended_by(args: &Args, signal: rustix::process::Signal) -> Failure {
    signals::ended(signal, &format!("standing for {}", args.name))
}

fn election(args: &Args, client: &Client) -> Election {
    let options = &args.options;
    let election = client.election(&args.name).ttl(options.ttl);
    let election = given(options.progress_within, election, Election::progress_within);
    let election = given(options.max_hold, election, Election::max_hold);
    let election = given(options.warn_before, election, Election::warn_before);
    given(args.metadata.clone(), election, Election::metadata)
}

async fn observe(args: &Args, election: &Election) -> Result<u8, Failure> {
    let Some(leader) = election.leader().await? else {
        return Err(Failure::new(code::NOTHING, format!("{} has no leader", args.name)));
    };
    args.call.print(&leader, table)
}

fn table(leader: &Leader) -> String {
    let mut text = format!(
        "leader   {}\ntoken    {}\nsince    {}\n",
        leader.owner,
        leader.token,
        readable(leader.held_ms)
    );
    if let Some(metadata) = &leader.metadata {
        text.push_str(&format!("about    {metadata}\n"));
    }
    text
}

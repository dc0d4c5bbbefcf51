//! `fence elect --observe --follow`: every change of leader, as it happens.

use fence_client::{Election, Leader, Observed};
use serde::Serialize;
use service_kit::signals;

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Format, emit_text, say};
use fence_terminal::readable::readable;

/// Prints the leader until a signal; returns the exit code.
pub(super) async fn follow(name: &str, format: Format, election: &Election) -> Result<u8, Failure> {
    tokio::select! {
        biased;
        () = signals::terminated() => Ok(code::OK),
        failed = print(name, format, election) => failed,
    }
}

async fn print(name: &str, format: Format, election: &Election) -> Result<u8, Failure> {
    let mut observer = election.observe().await?;
    loop {
        let leader = match observer.next().await? {
            Observed::Leader(leader) => Some(leader),
            Observed::Vacant => None,
            Observed::Unknown(error) => {
                say(&format!("fence: who leads is not known now: {error}"));
                continue;
            }
            _ => continue,
        };
        emit_text(&line(name, format, leader.as_ref())?)?;
    }
}

/// A change for programs, one line each.
#[derive(Serialize)]
struct Line<'a> {
    leader: Option<&'a Leader>,
}

fn line(name: &str, format: Format, leader: Option<&Leader>) -> Result<String, Failure> {
    let line = match (format, leader) {
        (Format::Json, leader) => serde_json::to_string(&Line { leader })
            .map_err(|error| Failure::internal(format!("no JSON: {error}")))?,
        (Format::Table, None) => format!("{name} has no leader"),
        (Format::Table, Some(leader)) => {
            let about = leader.metadata.as_ref().map(|data| format!("  {data}"));
            let held = readable(leader.held_ms);
            let owner = &leader.owner;
            let token = leader.token;
            let about = about.unwrap_or_default();
            format!("{owner} leads {name}  token {token}  since {held}{about}")
        }
    };
    Ok(line + "\n")
}

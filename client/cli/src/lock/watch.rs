//! `fence lock watch`: what happens to locks, as it happens.

use fence_client::{Client, EventStream, StreamItem};
use fence_protocol::wire::event::{Event, EventKind};
use serde::Serialize;
use service_kit::clock::{Clock as _, SystemClock};
use service_kit::signals;

use crate::connect::CallOptions;
use fence_terminal::color::{self, painted};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Format, emit_text, say};
use fence_terminal::readable::readable;

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence lock watch
  fence lock watch orders/
  fence lock watch orders/ --output json | jq -c 'select(.kind == \"refused\")'
  fence lock watch --after 1795242196000-17       what happened since, then what happens

Times are UTC. A stream that breaks is resumed where it broke, and stderr says so; where events are
missing, a line says gap. Ends on Ctrl-C with 0.")]
pub(super) struct Watch {
    /// Only locks whose names begin so; without it also sessions
    #[arg(default_value = "", value_name = "PREFIX")]
    prefix: String,
    /// Begin after the event with this id
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    #[command(flatten)]
    call: CallOptions,
}

/// Prints events until a signal; returns the exit code.
pub(super) async fn watch(args: Watch) -> Result<u8, Failure> {
    let client = args.call.client()?;
    tokio::select! {
        biased;
        () = signals::terminated() => Ok(code::OK),
        failed = follow(&args, &client) => failed,
    }
}

async fn follow(args: &Watch, client: &Client) -> Result<u8, Failure> {
    let mut events = client.events(&args.prefix);
    if let Some(id) = &args.after {
        events = events.after(id);
    }
    let mut stream = events.open().await?;
    loop {
        match stream.next().await? {
            StreamItem::Event { id, event } => {
                emit_text(&line(args.call.output.format, id, &event)?)?
            }
            StreamItem::Broken(error) => say(&broken(&error.to_string(), &stream)),
            StreamItem::Resumed => say("fence: the stream resumes"),
            _ => {}
        }
    }
}

fn broken(why: &str, stream: &EventStream) -> String {
    match stream.last_id() {
        Some(id) => format!("fence: {why}; it is resumed after {id}"),
        None => format!("fence: {why}; it is begun again"),
    }
}

/// An event with the id that resumes behind it.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(flatten)]
    event: &'a Event,
}

fn line(format: Format, id: Option<String>, event: &Event) -> Result<String, Failure> {
    let mut line = match format {
        Format::Json => serde_json::to_string(&Line { id, event })
            .map_err(|error| Failure::internal(format!("no JSON: {error}")))?,
        Format::Table => {
            let at_ms = SystemClock::new().wall_ms().saturating_sub(event.happened_ms_ago());
            readable_line(at_ms, event)
        }
    };
    line.push('\n');
    Ok(line)
}

/// `07:01:02.345  granted         orders/42  worker-1, token 7, for 15.0 s`
fn readable_line(at_ms: u64, event: &Event) -> String {
    let s = at_ms / 1_000;
    let ms = at_ms % 1_000;
    let hours = s / 3_600 % 24;
    let minutes = s / 60 % 60;
    let time = format!("{hours:02}:{minutes:02}:{:02}.{ms:03}", s % 60);
    let lock = event.lock.as_ref().map(ToString::to_string).unwrap_or_default();
    let line = format!("{lock:<16}  {}", details(event));
    let kind = painted(style(event.kind), format_args!("{:<15}", event.kind.as_str()));
    format!("{}  {kind}  {}", painted(color::FAINT, time), line.trim_end())
}

fn style(kind: EventKind) -> color::Style {
    match kind {
        EventKind::Granted | EventKind::SessionBegun => color::GOOD,
        EventKind::Expired | EventKind::Superseded | EventKind::SessionEnded => color::WARNING,
        EventKind::Gap | EventKind::Dropped | EventKind::SessionBlocked => color::WARNING,
        EventKind::Refused | EventKind::Revoked | EventKind::Lineage => color::BAD,
        _ => color::Style::new(),
    }
}

fn details(event: &Event) -> String {
    let mut parts = Vec::new();
    parts.extend(event.owner.as_ref().map(ToString::to_string));
    parts.extend(event.token.map(|token| format!("token {token}")));
    parts.extend(event.mark.map(|mark| format!("met the mark {mark}")));
    parts.extend(event.ttl_ms.map(|ms| format!("for {}", readable(ms))));
    let waited_ms = event.waited_ms.filter(|ms| *ms > 0);
    parts.extend(waited_ms.map(|ms| format!("waited {}", readable(ms))));
    parts.extend(event.held_ms.map(|ms| format!("held {}", readable(ms))));
    let is_of_session = event.lock.is_none() && event.kind != EventKind::Gap;
    let session = event.session_id.filter(|_| is_of_session);
    parts.extend(session.map(|session| format!("session {session}")));
    parts.extend(event.missed.map(|count| format!("{count} missing at least")));
    parts.extend(event.text.clone());
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use fence_protocol::{LockName, Owner, Token};

    use super::*;

    #[test]
    fn a_line_says_what_the_event_says() {
        let mut event = Event::new(EventKind::Granted).lock(&LockName::new("orders/42").unwrap());
        event.owner = Some(Owner::new("worker-1").unwrap());
        event.token = Some(Token::new(7).unwrap());
        (event.ttl_ms, event.waited_ms) = (Some(15_000), Some(0));
        assert_eq!(
            color::plain(&readable_line(1_795_246_862_045, &event)),
            "07:41:02.045  granted          orders/42         worker-1, token 7, for 15.0 s"
        );
        let mut gap = Event::new(EventKind::Gap).text("why");
        gap.missed = Some(3);
        assert_eq!(
            color::plain(&readable_line(0, &gap)),
            "00:00:00.000  gap                                3 missing at least, why"
        );
    }
}

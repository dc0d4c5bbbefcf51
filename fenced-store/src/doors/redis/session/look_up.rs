//! Look-ups: the client itself, and the few settings of Redis that drivers read.

use std::sync::Arc;

use super::super::commands::Local;
use super::super::look_ups;
use super::super::refusal::{Refusal, quoted};
use super::super::resp::request::Command;
use super::super::resp::{Protocol, encode};
use super::super::server_facts::ServerFacts;
use super::{Identity, Session, line};

/// User name shown to every client.
const USER: &str = "default";

/// The reply to a look-up.
#[derive(Debug)]
pub(crate) enum LookUp {
    Null,
    Number(u64),
    Word(Vec<u8>),
    /// A text with line ends.
    Text(String),
    Modules(Arc<ServerFacts>),
}

/// The reply to a look-up; `None` for any other command.
///
/// # Errors
/// Redis' error for options that it does not take.
pub(crate) fn look_up(
    session: &impl Session,
    local: Local,
    command: Command<'_>,
) -> Result<Option<LookUp>, Refusal> {
    let identity = session.identity();
    Ok(Some(match local {
        Local::ClientGetName if identity.name.is_empty() => LookUp::Null,
        Local::ClientGetName => LookUp::Word(identity.name.to_vec()),
        Local::ClientId => LookUp::Number(identity.id),
        Local::ClientInfo => LookUp::Text(info(session, "client|info")),
        Local::ClientList => LookUp::Text(list(session, command)?),
        Local::AclWhoAmI => LookUp::Word(USER.as_bytes().to_vec()),
        Local::ModuleList => LookUp::Modules(session.server_facts()),
        _ => return Ok(None),
    }))
}

/// Formats a client as Redis does. Figures known only to Redis are 0.
fn info(session: &impl Session, command: &str) -> String {
    let Identity { id, name, addresses, .. } = session.identity();
    let [addr, laddr] = addresses.map(|addr| addr.map_or(String::new(), |a| a.to_string()));
    let name = name.escape_ascii();
    let db = session.db();
    let resp = if session.protocol() == Protocol::Resp3 { 3 } else { 2 };
    format!(
        "id={id} addr={addr} laddr={laddr} fd=0 name={name} age=0 idle=0 flags=N db={db} sub=0 \
         psub=0 ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
         omem=0 tot-mem=0 events=r cmd={command} user={USER} redir=-1 resp={resp}\n"
    )
}

/// Returns the text of CLIENT LIST: this client, unless the options exclude it.
fn list(session: &impl Session, command: Command<'_>) -> Result<String, Refusal> {
    let options = command.tail(2);
    let own = || info(session, "client|list");
    match command.len() {
        2 => Ok(own()),
        4 if options.begins(&["type"]) => match command.arg(3).to_ascii_lowercase().as_slice() {
            b"normal" => Ok(own()),
            b"pubsub" | b"master" | b"replica" | b"slave" => Ok(String::new()),
            _ => {
                let kind = quoted(command.arg(3));
                Err(Refusal::Line(format!("ERR Unknown client type '{kind}'")))
            }
        },
        4.. if options.begins(&["id"]) => {
            let mut lists_own = false;
            for id in command.iter().skip(3) {
                let id = std::str::from_utf8(id).ok().and_then(|id| id.parse::<u64>().ok());
                let id = id.ok_or_else(|| line("ERR Invalid client ID"))?;
                lists_own |= id == session.identity().id;
            }
            Ok(if lists_own { own() } else { String::new() })
        }
        _ => Err(line("ERR syntax error")),
    }
}

/// Replies to a look-up.
pub(super) fn reply(
    session: &mut impl Session,
    local: Local,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let protocol = session.protocol();
    let found = look_up(session, local, command)?;
    session.reply(|out| match &found {
        None | Some(LookUp::Null) => encode::null(out, protocol),
        Some(LookUp::Number(number)) => {
            encode::integer(out, i64::try_from(*number).unwrap_or(i64::MAX));
        }
        Some(LookUp::Word(word)) => encode::bulk(out, word),
        Some(LookUp::Text(text)) => match protocol {
            Protocol::Resp2 => encode::bulk(out, text.as_bytes()),
            Protocol::Resp3 => encode::verbatim(out, "txt", text),
        },
        Some(LookUp::Modules(facts)) => facts.encode_modules(out, protocol),
    });
    Ok(())
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`, of a client with the same tokens.
pub(super) async fn unblock<S: Session>(
    session: &mut S,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let (id, reason) = unblock_arguments(command)?;
    let unblocked = session.unblock(id, reason).await?;
    session.reply(|out| encode::integer(out, i64::from(unblocked)));
    Ok(())
}

/// Parses the id and the reason of a CLIENT UNBLOCK.
///
/// # Errors
/// Redis' error for invalid arguments.
fn unblock_arguments(command: Command<'_>) -> Result<(u64, &'static str), Refusal> {
    let option = command.tail(3);
    let reason = match command.len() {
        3 => "TIMEOUT",
        4 if option.begins(&["timeout"]) => "TIMEOUT",
        4 if option.begins(&["error"]) => "ERROR",
        4 => return Err(line("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
        _ => {
            return Err(line(
                "ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT \
                 HELP.",
            ));
        }
    };
    let id: Option<i64> = std::str::from_utf8(command.arg(2)).ok().and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| line("ERR value is not an integer or out of range"))?;
    Ok((u64::try_from(id).unwrap_or(0), reason))
}

/// `CONFIG GET` of settings that drivers ask for.
pub(super) async fn config_get<S: Session>(
    session: &mut S,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let settings = session.config_get(command).await?;
    let protocol = session.protocol();
    session.reply(|out| look_ups::settings(out, settings, protocol));
    Ok(())
}

//! Look-ups: the client itself, and the few settings of Redis that drivers read.

use super::super::commands::Local;
use super::super::look_ups::{self, ClientInfo, USER};
use super::super::refusal::Refusal;
use super::super::resp::encode;
use super::super::resp::request::Command;
use super::Session;

/// The reply to a look-up.
#[derive(Debug)]
pub(crate) enum LookUp {
    Null,
    Number(u64),
    Word(Vec<u8>),
    /// A text with line ends.
    Text(String),
    NoItems,
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
    let client = ClientInfo {
        id: identity.id,
        name: &identity.name,
        addresses: identity.addresses,
        db: session.db(),
        protocol: session.protocol(),
    };
    Ok(Some(match local {
        Local::ClientGetName if identity.name.is_empty() => LookUp::Null,
        Local::ClientGetName => LookUp::Word(identity.name.to_vec()),
        Local::ClientId => LookUp::Number(identity.id),
        Local::ClientInfo => LookUp::Text(client.info()),
        Local::ClientList => LookUp::Text(client.list(command)?),
        Local::AclWhoAmI => LookUp::Word(USER.as_bytes().to_vec()),
        Local::ModuleList => LookUp::NoItems,
        _ => return Ok(None),
    }))
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
        Some(LookUp::Text(text)) => look_ups::text(out, text, protocol),
        Some(LookUp::NoItems) => encode::array(out, 0),
    });
    Ok(())
}

/// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`, of a client with the same tokens.
pub(super) async fn unblock<S: Session>(
    session: &mut S,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let (id, reason) = look_ups::unblock(command)?;
    let unblocked = session.unblock(id, reason).await?;
    session.reply(|out| encode::integer(out, i64::from(unblocked)));
    Ok(())
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

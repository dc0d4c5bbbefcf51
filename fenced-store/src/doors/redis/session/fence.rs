//! `FENCE`: the tokens of a connection, for clients that cannot give them as a password.

use fence_protocol::LockName;

use super::super::commands::Handling;
use super::super::refusal::Refusal;
use super::super::resp::request::Command;
use super::super::tokens::{self, HeldTokens};
use super::login::read_credential;
use super::{Session, line, ok};

/// `FENCE SET credential`, `FENCE CLEAR [lock]`, `FENCE SHOW`, `FENCE HELP` and
/// `FENCE credential COMMAND [argument ...]`.
pub(super) async fn fence<S: Session>(
    session: &mut S,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let word = command.arg(1).to_ascii_uppercase();
    match (word.as_slice(), command.len()) {
        (b"SET", 3) => set(session, command.arg(2)).await,
        (b"CLEAR", 2) => hold(session, HeldTokens::default()).await,
        (b"CLEAR", 3) => clear(session, command.arg(2)).await,
        (b"SHOW", 2) => {
            let tokens = session.identity().tokens.clone();
            session.reply(|out| tokens.show(out));
            Ok(())
        }
        (b"HELP", 2) => {
            session.reply(tokens::help);
            Ok(())
        }
        (b"SET" | b"CLEAR" | b"SHOW" | b"HELP", _) => {
            Err(line("ERR wrong number of arguments for 'fence' command; try FENCE HELP"))
        }
        (_, 0..=2) => Err(line(
            "ERR FENCE takes SET, CLEAR, SHOW, HELP, or a credential and a command; try FENCE HELP",
        )),
        _ => once(session, command).await,
    }
}

async fn set<S: Session>(session: &mut S, credential: &[u8]) -> Result<(), Refusal> {
    let fences = read_credential(session, credential)?;
    session.identity_mut().is_known = true;
    let tokens = session.identity().tokens.with(fences)?;
    let protocol = session.protocol();
    session.hold(tokens, protocol).await?;
    session.identity_mut().is_admitted = true;
    ok(session);
    Ok(())
}

async fn clear<S: Session>(session: &mut S, lock: &[u8]) -> Result<(), Refusal> {
    let lock = std::str::from_utf8(lock).ok().and_then(|lock| LockName::new(lock).ok());
    let lock = lock.ok_or_else(|| line("ERR that is no lock's name"))?;
    let tokens = session.identity().tokens.without(&lock);
    hold(session, tokens).await
}

async fn hold<S: Session>(session: &mut S, tokens: HeldTokens) -> Result<(), Refusal> {
    let protocol = session.protocol();
    session.hold(tokens, protocol).await?;
    ok(session);
    Ok(())
}

/// Runs one command with one more token.
async fn once<S: Session>(session: &mut S, command: Command<'_>) -> Result<(), Refusal> {
    let fences = read_credential(session, command.arg(1))?;
    session.identity_mut().is_known = true;
    let tokens = session.identity().tokens.with(fences)?;
    let inner = command.tail(2);
    let plan = session.plan(inner)?;
    if plan.handling != Handling::Shared {
        return Err(line(
            "DENIED FENCE with a command is for commands that need no connection of their own (no \
             MULTI, WATCH, blocking, SUBSCRIBE or scripts); send FENCE SET first",
        ));
    }
    session.run_once(inner, plan, tokens).await
}

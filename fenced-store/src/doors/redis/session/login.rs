//! Login with a fencing credential or the password of the port.

use fence_protocol::Code;

use super::super::password::Login;
use super::super::refusal::Refusal;
use super::super::resp::Protocol;
use super::super::resp::request::Command;
use super::super::tokens::HeldTokens;
use super::{Identity, Session, line, ok};
use crate::doors::tcp::front::CONNECTION;
use crate::verdict::Fence;

/// `AUTH [user] credential`. The tokens replace those that were held; the user's name has no
/// effect.
pub(super) async fn auth<S: Session>(session: &mut S, command: Command<'_>) -> Result<(), Refusal> {
    if command.len() > 3 {
        return Err(line("ERR syntax error"));
    }
    let protocol = session.protocol();
    log_in(session, command.arg(command.len() - 1), protocol).await?;
    ok(session);
    Ok(())
}

/// Logs in with `text`, and speaks `protocol`: both or neither.
pub(super) async fn log_in<S: Session>(
    session: &mut S,
    text: &[u8],
    protocol: Protocol,
) -> Result<(), Refusal> {
    let context = &session.identity().context;
    let read = Login::read(text, &context.guard.fencing, context.settings.password.as_ref());
    let login = unless_observed(session, read, Login::Tokens(Vec::new()))?;
    session.identity_mut().is_known |= matches!(login, Login::Tokens(_));
    let tokens = HeldTokens::default().with(login.tokens())?;
    session.hold(tokens, protocol).await?;
    session.identity_mut().is_admitted = true;
    Ok(())
}

/// Reads the tokens of a credential; none of an invalid one in observe mode.
///
/// # Errors
/// The refusal of an invalid credential.
pub(super) fn read_credential(
    session: &impl Session,
    credential: &[u8],
) -> Result<Vec<Fence>, Refusal> {
    let read = HeldTokens::read(credential, &session.identity().context.guard.fencing);
    unless_observed(session, read, Vec::new())
}

/// Returns what was read, or `instead` of what is invalid in observe mode. Observe mode concerns
/// the fence: the password of the port is needed all the same.
fn unless_observed<T>(
    session: &impl Session,
    read: Result<T, (Code, Refusal)>,
    instead: T,
) -> Result<T, Refusal> {
    read.or_else(|(code, refusal)| {
        let Identity { is_admitted, context, .. } = session.identity();
        let passes =
            *is_admitted && context.guard.observer.passes(code, CONNECTION, &refusal.not_applied());
        if passes { Ok(instead) } else { Err(refusal) }
    })
}

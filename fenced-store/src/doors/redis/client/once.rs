//! `FENCE credential COMMAND …`: one command on a connection that is registered under one more
//! token.

use super::super::commands::Plan;
use super::super::outbox::End;
use super::super::profile::ConnectionProfile;
use super::super::refusal::Refusal;
use super::super::session::Flow;
use super::super::tokens::HeldTokens;
use super::Client;
use super::command::OwnedCommand;

impl Client {
    /// Sends a command on the shared connection of these tokens, and waits for its reply.
    pub(super) async fn send_once(
        &mut self,
        inner: &OwnedCommand,
        plan: Plan,
        tokens: HeldTokens,
    ) -> Result<(), Refusal> {
        // Redis may send messages on the connection of before at any time, and two connections must
        // not write into one reply.
        self.may_not_subscribe("FENCE with a command is not for")?;
        self.settle_or_fail().await?;
        let registered = if self.observes() {
            self.observe_tokens(&tokens).await?;
            HeldTokens::default()
        } else {
            tokens.clone()
        };
        let once = ConnectionProfile { tokens: registered, ..self.profile.clone() };
        let upstream = self.hub.shared(&once).await;
        let upstream = upstream.inspect_err(|refusal| self.hub.port.note_refusal(refusal))?;
        // This command has another connection; afterwards the state of before is restored.
        let before = (
            std::mem::replace(&mut self.identity.tokens, tokens),
            std::mem::replace(&mut self.profile, once),
            self.upstream.replace(upstream),
            self.own.take(),
            // It is not in the group of the session's tokens either.
            (self.group.take(), self.ends),
        );
        let sent = match self.authorized(inner, plan) {
            Ok(()) => self.send(inner).await,
            refused => refused,
        };
        let settled = self.settled().await;
        (self.identity.tokens, self.profile, self.upstream, self.own, (self.group, self.ends)) =
            before;
        // The session's connection may have broken meanwhile without a wake-up.
        self.outbox.wake.notify_one();
        self.refused = None;
        if settled == Flow::Close {
            self.outbox.end_with(End::Gone);
        }
        sent
    }
}

//! `FENCE`: the tokens of a connection, for clients that cannot give them as a password.

use fence_protocol::LockName;

use super::super::commands::{Handling, Plan};
use super::super::refusal::Refusal;
use super::super::tokens::{self, HeldTokens};
use super::command::OwnedCommand;
use super::{Client, Next};
use crate::store::FenceOutcome;

impl Client {
    pub(super) async fn fence(&mut self, command: &OwnedCommand) -> Next {
        let args = command.command();
        let word = args.arg(1).to_ascii_uppercase();
        let done = match (word.as_slice(), args.len()) {
            (b"SET", 3) => self.fence_set(args.arg(2)).await,
            (b"CLEAR", 2) => self.hold_and_say(HeldTokens::default()).await,
            (b"CLEAR", 3) => self.fence_clear(args.arg(2)).await,
            (b"SHOW", 2) => {
                self.fence_show();
                Ok(())
            }
            (b"HELP", 2) => {
                self.outbox.local(tokens::help);
                Ok(())
            }
            (b"SET" | b"CLEAR" | b"SHOW" | b"HELP", _) => Err(Refusal::Line(
                "ERR wrong number of arguments for 'fence' command; try FENCE HELP".to_owned(),
            )),
            (_, 0..=2) => Err(Refusal::Line(
                "ERR FENCE takes SET, CLEAR, SHOW, HELP, or a credential and a command; try FENCE HELP"
                    .to_owned(),
            )),
            _ => self.fence_once(command).await,
        };
        match done {
            Ok(()) => Next::Serve,
            Err(refusal) => self.refuse(&refusal),
        }
    }

    async fn fence_set(&mut self, credential: &[u8]) -> Result<(), Refusal> {
        let fences = self.read_credential(credential)?;
        self.is_known = true;
        let tokens = self.held.with(fences)?;
        self.hold(tokens).await?;
        self.is_admitted = true;
        self.ok();
        Ok(())
    }

    async fn fence_clear(&mut self, lock: &[u8]) -> Result<(), Refusal> {
        let lock = std::str::from_utf8(lock).ok().and_then(|lock| LockName::new(lock).ok());
        let lock = lock.ok_or_else(|| Refusal::Line("ERR that is no lock's name".to_owned()))?;
        self.hold_and_say(self.held.without(&lock)).await
    }

    /// Verifies the tokens that are held already: a higher one may be admitted by now.
    ///
    /// # Errors
    /// The refusal; the connection is then refused whatever it sends.
    pub(super) async fn verify_held(&mut self) -> Result<(), Refusal> {
        if self.observes() {
            return Ok(());
        }
        for fence in self.held.clone().fences() {
            let refusal = match self.hub.port.redis.seal(fence).await {
                Ok(FenceOutcome::Stale { mark }) => Refusal::Stale { fence: fence.clone(), mark },
                Ok(FenceOutcome::Collision { mark }) => {
                    Refusal::Collision { fence: fence.clone(), mark }
                }
                Ok(_) => continue,
                Err(error) => Refusal::Unavailable(error.to_string()),
            };
            self.note(&refusal);
            return Err(refusal);
        }
        Ok(())
    }

    async fn hold_and_say(&mut self, tokens: HeldTokens) -> Result<(), Refusal> {
        self.hold(tokens).await?;
        self.ok();
        Ok(())
    }

    fn fence_show(&self) {
        let tokens = self.held.clone();
        self.outbox.local(|out| tokens.show(out));
    }

    /// One command with one more token, on a connection that is registered under it too.
    async fn fence_once(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let fences = self.read_credential(command.command().arg(1))?;
        self.is_known = true;
        let tokens = self.held.with(fences)?;
        let inner = OwnedCommand::new(command.command().tail(2).iter());
        let plan = self.hub.port.table.borrow().plan(inner.command(), &mut self.keys);
        let plan = plan.map_err(|refused| Refusal::Line(refused.0))?;
        if plan.handling != Handling::Shared {
            return Err(Refusal::Line(
                "DENIED FENCE with a command is for commands that need no connection of their own \
                 (no MULTI, WATCH, blocking, SUBSCRIBE or scripts); send FENCE SET first"
                    .to_owned(),
            ));
        }
        if plan.is_denied {
            self.observe_command(inner.command());
        }
        // Tokens that were refused before do not stand in the way of a better one.
        let refused = self.refused.take();
        let done = self.send_once(&inner, plan, tokens).await;
        self.refused = refused.or(self.refused.take());
        done
    }

    async fn send_once(
        &mut self,
        inner: &OwnedCommand,
        plan: Plan,
        tokens: HeldTokens,
    ) -> Result<(), Refusal> {
        // Redis may send messages on the connection of before at any time, and two connections must not
        // write into one reply.
        self.may_not_subscribe("FENCE with a command is not for")?;
        self.settle_or_fail().await?;
        let registered = if self.observes() {
            self.observe_tokens(&tokens).await?;
            HeldTokens::default()
        } else {
            tokens.clone()
        };
        let once = super::ConnectionProfile { tokens: registered, ..self.profile.clone() };
        let upstream = self.hub.shared(&once).await;
        let upstream = upstream.inspect_err(|refusal| self.hub.port.note_refusal(refusal))?;
        // For this command the connection is another one; then it is again what it was.
        let before = (
            std::mem::replace(&mut self.held, tokens),
            std::mem::replace(&mut self.profile, once),
            self.upstream.replace(upstream),
            self.own.take(),
            // Nor is it one of those with the tokens of before.
            (self.group.take(), self.ends),
        );
        let sent = match self.authorized(inner, plan) {
            Err(denied) if !self.passes(inner.command(), &denied) => Err(denied.into()),
            _ => self.send(inner).await,
        };
        let settled = self.settled().await;
        (self.held, self.profile, self.upstream, self.own, (self.group, self.ends)) = before;
        // The connection of before may have broken meanwhile, and nobody heard of it.
        self.outbox.wake.notify_one();
        self.refused = None;
        if settled == Next::Close {
            self.outbox.give_up(super::End::Gone);
        }
        sent
    }
}

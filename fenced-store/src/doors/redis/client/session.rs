//! The session of a client of one Redis: its connections follow its tokens, protocol and database.

use std::sync::Arc;

use bytes::BytesMut;
use redis::Value;

use super::super::commands::{Local, Plan};
use super::super::look_ups;
use super::super::outbox::End;
use super::super::profile::ConnectionProfile;
use super::super::refusal::Refusal;
use super::super::resp::Protocol;
use super::super::resp::request::Command;
use super::super::server_facts::ServerFacts;
use super::super::session::{self, Flow, Identity, Session};
use super::super::tokens::HeldTokens;
use super::Client;
use super::command::OwnedCommand;

impl Session for Client {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn identity_mut(&mut self) -> &mut Identity {
        &mut self.identity
    }

    fn server_facts(&self) -> Arc<ServerFacts> {
        self.hub.port.facts()
    }

    fn protocol(&self) -> Protocol {
        self.profile.protocol
    }

    fn db(&self) -> i64 {
        self.profile.db
    }

    fn reply(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        self.outbox.local(encode);
    }

    /// Inside of MULTI a refusal spoils the transaction, as an error of Redis would.
    fn refuse(&mut self, refusal: &Refusal) -> Flow {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_spoilt = true;
        }
        self.hub.port.counters.refused.inc();
        self.outbox.error(&refusal.not_applied());
        if refusal.is_final() {
            self.answered_refusal();
        }
        Flow::Continue
    }

    fn plan(&mut self, command: Command<'_>) -> Result<Plan, Refusal> {
        let planned = self.hub.port.table.borrow().plan(command, &mut self.keys);
        planned.map_err(|refused| Refusal::Line(refused.0))
    }

    /// Registers a connection under the tokens at once, so that a stale token is refused and a new
    /// one takes over before the reply.
    async fn hold(&mut self, tokens: HeldTokens, protocol: Protocol) -> Result<(), Refusal> {
        let is_same = tokens == self.identity.tokens && protocol == self.profile.protocol;
        if is_same && self.refused.is_none() && self.has_connection() {
            return self.verify_held().await;
        }
        if self.observes() && protocol == self.profile.protocol {
            // No connection is registered under them, so none is replaced.
            self.observe_tokens(&tokens).await?;
            self.identity.tokens = tokens;
            return Ok(());
        }
        self.may_be_replaced("tokens")?;
        // Tokens that were refused have nothing on its way.
        let refused = self.refused.take();
        if let Err(refusal) = self.detached().await {
            self.refused = self.refused.take().or(refused);
            return Err(refusal);
        }
        if self.observes() {
            self.observe_tokens(&tokens).await?;
            self.identity.tokens = tokens;
            self.profile.protocol = protocol;
            return Ok(());
        }
        let db = self.profile.db;
        let profile = ConnectionProfile { tokens: tokens.clone(), db, protocol };
        if !profile.tokens.is_empty() {
            match self.hub.shared(&profile).await {
                Ok(upstream) => self.upstream = Some(upstream),
                Err(refusal) => {
                    self.hub.port.note_refusal(&refusal);
                    self.refused = refused;
                    return Err(refusal);
                }
            }
        }
        self.group = self.hub.groups.join(&tokens);
        self.profile = profile;
        self.identity.tokens = tokens;
        Ok(())
    }

    async fn speak(&mut self, protocol: Protocol) -> Result<(), Refusal> {
        if protocol == self.profile.protocol {
            return Ok(());
        }
        self.may_be_replaced("protocol")?;
        self.detached().await?;
        self.profile.protocol = protocol;
        Ok(())
    }

    /// Takes another connection, which is registered under the same tokens.
    async fn select(&mut self, db: i64) -> Result<(), Refusal> {
        self.may_be_replaced("database")?;
        self.detached().await?;
        let profile = ConnectionProfile { db, ..self.profile.clone() };
        let made = self.hub.shared(&profile).await;
        if let Err(refusal) = &made {
            self.record_refusal(refusal);
        }
        self.upstream = Some(made?);
        self.profile = profile;
        Ok(())
    }

    async fn settle(&mut self) -> Flow {
        self.settled().await
    }

    async fn disconnect(&mut self) -> Flow {
        // A reply that came later would be taken for that of a later command.
        if self.settled().await == Flow::Close {
            self.outbox.end_with(End::Gone);
            return Flow::Close;
        }
        self.transaction = None;
        self.lost_watch = false;
        self.drop_upstream();
        self.refused = None;
        self.group = None;
        self.profile = ConnectionProfile {
            tokens: HeldTokens::default(),
            db: self.hub.port.redis.link.target().db(),
            protocol: Protocol::Resp2,
        };
        Flow::Continue
    }

    async fn unblock(&mut self, id: u64, reason: &'static str) -> Result<bool, Refusal> {
        // It goes by another connection, and behind what was sent before it.
        self.settle_or_fail().await?;
        let port = &self.hub.port;
        // As in Redis, one that is not there, or does not wait, is not unblocked.
        let Some(other) = port.own_clients.find(id) else { return Ok(false) };
        if other.tokens != self.profile.tokens {
            return Err(Refusal::Line(format!(
                "DENIED client {id} holds other tokens; a client unblocks those with the same tokens"
            )));
        }
        let mut unblock = redis::cmd("CLIENT");
        unblock.arg("UNBLOCK").arg(other.redis_id).arg(reason);
        // In another process the id would be another client's.
        let is_same = || other.run_id.as_ref().is_none_or(|id| port.redis.state.run_id() == *id);
        let unblocked = is_same() && self.call(&unblock).await? == Value::Int(1);
        if unblocked && !is_same() {
            return Err(Refusal::Unavailable("Redis changed behind the guard".to_owned()));
        }
        Ok(unblocked)
    }

    async fn config_get(&mut self, command: Command<'_>) -> Result<Value, Refusal> {
        self.call(&look_ups::config_get(command)?).await
    }

    async fn run_once(
        &mut self,
        command: Command<'_>,
        plan: Plan,
        tokens: HeldTokens,
    ) -> Result<(), Refusal> {
        let inner = OwnedCommand::new(command.iter());
        if plan.is_denied {
            self.observe_command(inner.command());
        }
        // Tokens that were refused before do not stand in the way of a better one.
        let refused = self.refused.take();
        let done = self.send_once(&inner, plan, tokens).await;
        self.refused = refused.or(self.refused.take());
        done
    }
}

impl Client {
    /// Replies to a command of the guard inside MULTI. Redis queues look-ups, so a script that
    /// returns the reply is queued in their place. The other commands cannot be queued.
    pub(super) async fn local_in_transaction(
        &mut self,
        local: Local,
        command: &OwnedCommand,
    ) -> Flow {
        if matches!(local, Local::Quit | Local::Reset) {
            return session::answer(self, local, command.command()).await;
        }
        let queued = match self.queued_look_up(local, command.command()) {
            Ok(Some(script)) => match self.connected().await {
                Ok(()) => self.send(&script).await,
                Err(refusal) => Err(refusal),
            },
            Ok(None) => {
                let name = self.hub.port.table.borrow().name_of(command.command());
                Err(Refusal::Line(format!(
                    "DENIED {name} is answered by the guard and cannot be queued inside MULTI; send it \
                     before MULTI. This transaction can only be discarded"
                )))
            }
            Err(refusal) => Err(refusal),
        };
        match queued {
            Ok(()) => Flow::Continue,
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// `true` if a connection that is registered under the tokens exists, or none is needed.
    fn has_connection(&self) -> bool {
        self.profile.tokens.is_empty()
            || self.upstream.as_ref().is_some_and(|upstream| !upstream.is_broken())
    }

    /// Verifies the tokens that are held already: a higher one may be admitted by now.
    ///
    /// # Errors
    /// The refusal, which all later commands of the connection receive too.
    async fn verify_held(&mut self) -> Result<(), Refusal> {
        if self.observes() {
            return Ok(());
        }
        for fence in self.identity.tokens.clone().fences() {
            let refusal = match self.hub.port.redis.seal(fence).await {
                Ok(outcome) => Refusal::from_outcome(fence, &outcome),
                Err(error) => Some(Refusal::Unavailable(error.to_string())),
            };
            let Some(refusal) = refusal else { continue };
            self.record_refusal(&refusal);
            return Err(refusal);
        }
        Ok(())
    }

    /// Refuses what would drop the connection to Redis, and with it what Redis keeps for it.
    fn may_be_replaced(&self, what: &str) -> Result<(), Refusal> {
        if self.is_bound() {
            return Err(Refusal::Line(format!(
                "DENIED the {what} of a connection that watches or subscribes cannot be changed; \
                 UNWATCH or UNSUBSCRIBE first, or open another connection"
            )));
        }
        Ok(())
    }

    /// Refuses what would write to the client while Redis may send it messages.
    pub(super) fn may_not_subscribe(&self, what: &str) -> Result<(), Refusal> {
        let both = self.own.as_ref().zip(self.upstream.as_ref());
        if both.is_some_and(|(own, upstream)| self.subscribes(own, upstream)) {
            return Err(Refusal::Line(format!(
                "DENIED {what} a connection that subscribes or tracks: its reply and the messages \
                 would come from two connections; UNSUBSCRIBE first, or open another connection"
            )));
        }
        Ok(())
    }
}

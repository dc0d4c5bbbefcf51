//! Commands beyond the fast path: connections of their own, transactions, scripts, subscriptions.

use super::super::authorize::authorize;
use super::super::commands::names::{self, Listing};
use super::super::commands::{Handling, Local, Plan, flush};
use super::super::confine::Wanted;
use super::super::hub::OwnConnection;
use super::super::outbox::End;
use super::super::own_clients::OwnClient;
use super::super::refusal::{Refusal, quoted};
use super::super::resp::Protocol;
use super::super::script_denial::ScriptName;
use super::super::session::{self, Flow, Session as _};
use super::super::upstream::{Instead, Raw, Upstream};
use super::command::OwnedCommand;
use super::transaction::Transaction;
use super::wait::is_wait;
use super::{Client, Own, keys_of};

/// Refusal of a script from a client without a token, where every key needs one.
const SCRIPT_OF_STRANGER: &str = "DENIED a script needs a token, to be loaded too: Redis serves nothing else \
                                  while it runs, and keeps it; AUTH with a fencing credential first";

/// Refusal of a list of channels whose reply would be part of EXEC's.
const CHANNELS_IN_MULTI: &str = "DENIED PUBSUB CHANNELS is not passed on inside MULTI, for the guard leaves \
                                 Fencepost's own channels out of its reply; send it before";

impl Client {
    /// Carries out a command, or replies with its refusal.
    pub(super) async fn handle(&mut self, command: &OwnedCommand) -> Flow {
        if self.upstream.as_ref().is_some_and(|upstream| upstream.is_broken())
            && self.lost().await == Flow::Close
        {
            return Flow::Close;
        }
        if let Some(refusal) = self.refused.as_ref().filter(|_| self.ends) {
            // The rest of a pipeline. Nothing of it is executed, whatever it is.
            self.outbox.error(&refusal.not_applied());
            self.hub.port.counters.refused.inc();
            return Flow::Continue;
        }
        let plan = match session::plan(self, command.command()) {
            Ok(plan) => plan,
            Err(refusal) => return self.refuse(&refusal),
        };
        if self.is_subscriber()
            && let Some(next) = self.while_subscribed(command, plan).await
        {
            return next;
        }
        if let Handling::Local(local) = plan.handling {
            return match self.transaction {
                Some(_) => self.local_in_transaction(local, command).await,
                None => session::answer(self, local, command.command()).await,
            };
        }
        if let Some(refusal) = &self.refused {
            let line = refusal.not_applied();
            if matches!(plan.handling, Handling::Exec | Handling::Discard)
                && self.transaction.take().is_some()
            {
                self.lost_watch = false;
            }
            self.outbox.error(&line);
            self.answered_refusal();
            self.hub.port.counters.refused.inc();
            return Flow::Continue;
        }
        if plan.is_denied {
            self.observe_command(command.command());
        }
        if let Err(refusal) = self.authorized(command, plan) {
            return self.refuse(&refusal);
        }
        let loads_script = command.command().begins(&["script", "load"]);
        if (plan.handling == Handling::Script || loads_script) && self.identity.is_stranger() {
            return self.refuse(&Refusal::Line(SCRIPT_OF_STRANGER.to_owned()));
        }
        self.observe_stale();
        match self.forward(command, plan).await {
            Ok(next) => next,
            Err(refusal) => {
                self.record_refusal(&refusal);
                let next = self.refuse(&refusal);
                // Without it the next commands would have another meaning.
                let begins = matches!(plan.handling, Handling::Multi | Handling::Watch);
                if begins && self.refused.is_none() { Flow::Close } else { next }
            }
        }
    }

    /// Records a refusal by the fence. Marks never fall, so the tokens stay refused.
    pub(super) fn record_refusal(&mut self, refusal: &Refusal) {
        if refusal.is_final() {
            self.hub.port.note_refusal(refusal);
            self.refused = Some(refusal.clone());
        }
    }

    pub(super) fn authorized(&mut self, command: &OwnedCommand, plan: Plan) -> Result<(), Refusal> {
        let guard = &self.identity.context.guard;
        let tokens = &self.identity.tokens;
        authorize(guard, tokens, command.command(), plan, &self.keys, &mut self.scratch)
    }

    async fn forward(&mut self, command: &OwnedCommand, plan: Plan) -> Result<Flow, Refusal> {
        match plan.handling {
            Handling::Shared => {
                if self.transaction.is_some() && names::is_of_channels(command.command()) {
                    return Err(Refusal::Line(CHANNELS_IN_MULTI.to_owned()));
                }
                self.connected().await?;
                self.widened(command, plan).await?;
            }
            Handling::Own => {
                self.owned().await?;
                self.widened(command, plan).await?;
                if is_wait(command.command()) {
                    self.write_before_wait().await?;
                }
                if let Some(own) = &mut self.own {
                    own.subscribes |= command.command().begins(&["client", "tracking", "on"]);
                    own.is_tuned |= command.command().begins(&["client", "no-touch", "on"]);
                }
            }
            Handling::Script => {
                self.own_connection(true).await?;
                self.confined(command).await?;
            }
            Handling::Watch => {
                self.owned().await?;
                self.widened(command, plan).await?;
                self.own.iter_mut().for_each(|own| own.watches = true);
            }
            Handling::Unwatch => {
                self.connected().await?;
                // In a transaction Redis only queues it, and a WATCH fails EXEC all the same.
                if self.transaction.is_none() {
                    self.watches_nothing();
                }
            }
            Handling::Multi => return self.begin_transaction(command).await,
            Handling::Exec | Handling::Discard => {
                return self.end_transaction(command, plan.handling).await;
            }
            Handling::Subscribe | Handling::Unsubscribe => {
                return self.subscription(command, plan).await;
            }
            Handling::Local(_) => {}
        }
        if let Some(transaction) = &mut self.transaction {
            let user = self.own.as_ref().and_then(|own| own.user.as_ref());
            let beyond = |wanted: &Wanted<'_>| user.is_none_or(|user| !user.reaches(*wanted));
            let command = command.command();
            transaction.add(plan, command, keys_of(&self.keys, command).filter(beyond));
        } else if plan.handling == Handling::Script {
            let reply = Instead::Script(ScriptName::from_command(command.command()));
            self.with_room().await?.send(&self.outbox, Raw::Give(command.raw()), Some(reply));
            self.hub.port.counters.forwarded.inc();
            return Ok(Flow::Continue);
        }
        self.send(command).await?;
        Ok(Flow::Continue)
    }

    /// Sends a command on the connection that exists.
    pub(super) async fn send(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let upstream = self.with_room().await?;
        // In a transaction the names come in the reply to EXEC, among replies of any form.
        let listing = match self.transaction {
            None => Listing::from_command(command.command()),
            Some(_) => None,
        };
        let raw = match listing {
            Some(listing) => command.raw().repeat(listing.replies() as usize).into(),
            None => flush::instead_of(command.command()).unwrap_or_else(|| command.raw()),
        };
        let protocol = self.profile.protocol;
        let instead = listing.map(|listing| {
            let replies = listing.replies();
            Instead::Names { listing, replies, protocol }
        });
        upstream.send(&self.outbox, Raw::Give(raw), instead);
        self.hub.port.counters.forwarded.inc();
        Ok(())
    }

    /// Waits until the connection takes more, and returns it.
    pub(super) async fn with_room(&self) -> Result<&Upstream, Refusal> {
        let Some(upstream) = &self.upstream else {
            return Err(Refusal::Unavailable("there is no connection to Redis".to_owned()));
        };
        while upstream.is_full() {
            upstream.kick(self.outbox.is_alone());
            // If that made room, there is no notification.
            if upstream.is_full() {
                upstream.room.notified().await;
            }
        }
        match upstream.broken() {
            None => Ok(upstream),
            Some(why) => Err(Refusal::Unavailable(format!("the connection to Redis broke: {why}"))),
        }
    }

    /// Connects, if there is neither a shared nor an own connection.
    pub(super) async fn connected(&mut self) -> Result<(), Refusal> {
        self.without_broken().await?;
        if self.upstream.is_none() {
            if self.transaction.is_some() {
                let reason = "the transaction ended with its connection".to_owned();
                return Err(Refusal::Unavailable(reason));
            }
            self.upstream = Some(self.hub.shared(&self.profile).await?);
        }
        Ok(())
    }

    /// Switches to a connection of the client's own.
    pub(super) async fn owned(&mut self) -> Result<(), Refusal> {
        self.own_connection(false).await
    }

    async fn own_connection(&mut self, for_script: bool) -> Result<(), Refusal> {
        self.without_broken().await?;
        if self.upstream.as_ref().is_some_and(|upstream| upstream.is_own()) {
            return Ok(());
        }
        // Commands on the shared connection are complete before the own one is used.
        self.settle_or_fail().await?;
        let OwnConnection { upstream, user, run_id } =
            self.hub.own(&self.profile, &self.outbox, for_script).await?;
        let entry = user.as_ref().map(|user| {
            let tokens = self.profile.tokens.clone();
            let client =
                OwnClient { tokens, redis_id: user.redis_id.get(), run_id: run_id.clone() };
            self.hub.port.own_clients.add(self.identity.id, client)
        });
        self.upstream = Some(upstream);
        self.own = Some(Own { user, run_id, _entry: entry, ..Own::default() });
        Ok(())
    }

    /// Drops a connection that broke.
    async fn without_broken(&mut self) -> Result<(), Refusal> {
        if !self.upstream.as_ref().is_some_and(|upstream| upstream.is_broken()) {
            return Ok(());
        }
        let next = self.lost().await;
        self.served_on(next)
    }

    /// Waits until everything that was forwarded is answered.
    pub(super) async fn settle_or_fail(&mut self) -> Result<(), Refusal> {
        let next = self.settled().await;
        self.served_on(next)
    }

    fn served_on(&self, next: Flow) -> Result<(), Refusal> {
        match next {
            Flow::Continue => match &self.refused {
                Some(refusal) => Err(refusal.clone()),
                None => Ok(()),
            },
            Flow::Close => {
                self.outbox.end_with(End::Gone);
                Err(Refusal::Unavailable("the connection is being closed".to_owned()))
            }
        }
    }

    async fn begin_transaction(&mut self, command: &OwnedCommand) -> Result<Flow, Refusal> {
        if self.transaction.is_none() {
            self.owned().await?;
            self.transaction = Some(Transaction::default());
        }
        self.send(command).await?;
        Ok(Flow::Continue)
    }

    async fn end_transaction(
        &mut self,
        command: &OwnedCommand,
        handling: Handling,
    ) -> Result<Flow, Refusal> {
        let transaction = self.transaction.take();
        if let Err(refusal) = self.connected().await {
            if transaction.is_some() {
                self.watches_nothing();
            }
            return Err(refusal);
        }
        let Some(transaction) = transaction else {
            // Redis refuses it, and still watches.
            self.send(command).await?;
            return Ok(Flow::Continue);
        };
        let instead = match handling {
            Handling::Exec if transaction.is_spoilt => Some(Transaction::aborted()),
            Handling::Exec if self.lost_watch => Some(Transaction::not_run(self.profile.protocol)),
            _ => None,
        };
        match (&self.upstream, instead, transaction.script) {
            (Some(upstream), Some(reply), _) => {
                let instead = Some(Instead::Reply(reply));
                upstream.send(&self.outbox, Raw::Copy(Transaction::DISCARD), instead);
            }
            (Some(upstream), None, Some(name)) => {
                let instead = Some(Instead::Script(name));
                upstream.send(&self.outbox, Raw::Copy(&command.raw()), instead);
                self.hub.port.counters.forwarded.inc();
            }
            _ => self.send(command).await?,
        }
        self.watches_nothing();
        Ok(Flow::Continue)
    }

    /// Records that no key is watched any more, on this connection or on one that was lost.
    fn watches_nothing(&mut self) {
        self.lost_watch = false;
        self.own.iter_mut().for_each(|own| own.watches = false);
    }

    async fn subscription(&mut self, command: &OwnedCommand, plan: Plan) -> Result<Flow, Refusal> {
        let handling = plan.handling;
        if self.transaction.is_some() {
            return Err(Refusal::Line(
                "DENIED subscriptions are not changed inside MULTI".to_owned(),
            ));
        }
        self.owned().await?;
        self.widened(command, plan).await?;
        if let Some(own) = &mut self.own {
            own.subscribes |= handling == Handling::Subscribe;
            own.has_channels |= handling == Handling::Subscribe;
        }
        self.with_room().await?.send_to_subscriber(command.raw());
        Ok(Flow::Continue)
    }

    /// `true` if the connection is, or may be, in RESP2's subscriber mode.
    fn is_subscriber(&self) -> bool {
        self.profile.protocol == Protocol::Resp2
            && self.upstream.as_ref().is_some_and(|upstream| upstream.is_subscribed())
    }

    /// Handles a command in RESP2's subscriber mode, which allows few commands, each with an
    /// unknown number of replies. Returns `None` if the mode ended before this command, which is
    /// then like any other.
    async fn while_subscribed(&mut self, command: &OwnedCommand, plan: Plan) -> Option<Flow> {
        let name = command.command().arg(0);
        let changes_channels = matches!(plan.handling, Handling::Subscribe | Handling::Unsubscribe);
        if changes_channels || command.command().begins(&["ping"]) {
            if changes_channels && let Err(refusal) = self.authorized(command, plan) {
                return Some(self.refuse(&refusal));
            }
            let Ok(upstream) = self.with_room().await else {
                return Some(self.lost().await);
            };
            upstream.send_to_subscriber(command.raw());
            return Some(Flow::Continue);
        }
        if self.settled().await == Flow::Close {
            return Some(Flow::Close);
        }
        if !self.is_subscriber() {
            return None;
        }
        if let Handling::Local(local @ (Local::Quit | Local::Reset)) = plan.handling {
            return Some(session::answer(self, local, command.command()).await);
        }
        let name = quoted(name).to_ascii_lowercase();
        // Redis' words for a refused EXEC.
        let begin = match plan.handling {
            Handling::Exec => "EXECABORT Transaction discarded because of:",
            _ => "ERR",
        };
        self.outbox.error(&format!(
            "{begin} Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
             are allowed in this context"
        ));
        Some(Flow::Continue)
    }

    /// Drops the connection, shared or own, so that the next command gets another.
    pub(super) async fn detached(&mut self) -> Result<(), Refusal> {
        self.settle_or_fail().await?;
        self.drop_upstream();
        Ok(())
    }

    /// Drops the connection at once, and closes it if it is the client's own.
    pub(super) fn drop_upstream(&mut self) {
        if let Some(own) = self.upstream.take().filter(|upstream| upstream.is_own()) {
            own.close();
        }
        self.own = None;
    }
}

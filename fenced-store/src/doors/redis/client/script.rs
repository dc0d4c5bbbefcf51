//! Scripts: the own connection's Redis user is confined before the script is sent.

use super::super::commands::Plan;
use super::super::confine::CheckedKeys;
use super::super::refusal::Refusal;
use super::super::resp::Protocol;
use super::super::resp::request::Command;
use super::command::OwnedCommand;
use super::{Client, keys_of};

/// The refusal of a transaction that would have to be confined and must not be.
const MIXED: &str = "DENIED a transaction with a script has no commands that scripts may not run (such \
                     as SORT, XREADGROUP or GEORADIUS); send them in another transaction";

impl Client {
    /// `true` if `command`, a script with these keys, can be sent without a change of the user.
    pub(super) fn is_confined_for(&self, command: Command<'_>) -> bool {
        let Some(own) = &self.own else { return false };
        let is_confined = own.user.as_ref().is_some_and(|user| {
            let keys = keys_of(&self.keys, command);
            user.is_confined_to(&user.beyond(CheckedKeys::default(), keys))
        });
        is_confined && !own.has_channels && !self.identity.is_stranger()
    }

    /// Confines the user to what the connection may touch, and to the keys beyond it of `command`,
    /// a script, and of the transaction that it is in.
    pub(super) async fn confined(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let Some(own) = &self.own else {
            return Err(Refusal::Unavailable("there is no connection to Redis".to_owned()));
        };
        let Some(user) = &own.user else {
            return Err(Refusal::Line(
                "DENIED scripts are not passed on, for the guard may not make the Redis users that \
                 confine them to their keys; let its user run ACL SETUSER and ACL DELUSER"
                    .to_owned(),
            ));
        };
        if self.transaction.as_ref().is_some_and(|transaction| transaction.exceeds_scripts) {
            return Err(Refusal::Line(MIXED.to_owned()));
        }
        if own.has_channels && self.profile.protocol == Protocol::Resp3 {
            return Err(Refusal::Line(
                "DENIED a connection that has subscribed runs no scripts, for what confines them \
                 would end its subscriptions; use another connection"
                    .to_owned(),
            ));
        }
        let queued = self.transaction.as_ref().map(|transaction| transaction.keys.clone());
        let declared = keys_of(&self.keys, command.command());
        let more = user.beyond(queued.unwrap_or_default(), declared);
        if user.is_confined_to(&more) {
            return Ok(());
        }
        self.rescope(Some(more)).await
    }

    /// Changes what the user may touch: its patterns and these keys, or with `None` every key.
    async fn rescope(&mut self, more: Option<CheckedKeys>) -> Result<(), Refusal> {
        // Earlier commands must be executed under the scope of before.
        self.settle_or_fail().await?;
        let Some((own, user)) =
            self.own.as_ref().and_then(|own| own.user.as_ref().map(|user| (own, user)))
        else {
            return Err(Refusal::Unavailable("the connection to Redis broke".to_owned()));
        };
        let redis = &self.hub.port.redis;
        let run_id = own.run_id.as_deref();
        let changed = match more {
            Some(more) => user.confine(redis, run_id, more).await,
            None => user.widen(redis, run_id).await,
        };
        if user.is_scope_unknown() {
            self.upstream.iter().for_each(|upstream| upstream.close());
        }
        changed
    }

    /// Widens the user for a command that is no script, if an earlier script has confined it.
    pub(super) async fn widened(
        &mut self,
        command: &OwnedCommand,
        plan: Plan,
    ) -> Result<(), Refusal> {
        let Some(user) = self.own.as_ref().and_then(|own| own.user.as_ref()) else { return Ok(()) };
        if user.covers(plan.in_scripts, keys_of(&self.keys, command.command())) {
            return Ok(());
        }
        if self.transaction.as_ref().is_some_and(|transaction| transaction.script.is_some()) {
            if !plan.in_scripts {
                return Err(Refusal::Line(MIXED.to_owned()));
            }
            // The keys are added, and everything stays confined.
            return self.confined(command).await;
        }
        self.rescope(None).await
    }
}

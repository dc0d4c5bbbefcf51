//! Observe mode: what would be refused is counted and logged, and passes.
//!
//! Tokens raise marks, so that stale ones are recognised, but no connection is registered under
//! them and none is ended: they fence nothing. A command's token is compared with the marks that
//! this guard remembers, without a round trip to Redis.

use fence_protocol::wire::fence::Mode;

use super::super::refusal::Refusal;
use super::super::resp::request::Command;
use super::super::tokens::HeldTokens;
use super::Client;
use crate::doors::tcp::front::CONNECTION;
use crate::stores::contract::StoreError;

impl Client {
    /// `true` if the guard is in observe mode, in which nothing is refused.
    pub(super) fn observes(&self) -> bool {
        self.identity.context.guard.observer.mode() == Mode::Observe
    }

    /// Counts a command that passes in observe mode alone.
    pub(super) fn observe_command(&self, command: Command<'_>) {
        let table = self.hub.port.table.borrow();
        self.identity.context.guard.observer.passes_command(&table.name_of(command));
    }

    /// Raises the marks of newly presented tokens, and counts those that are stale.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn observe_tokens(&self, tokens: &HeldTokens) -> Result<(), Refusal> {
        for fence in tokens.fences() {
            match self.hub.port.redis.seal(fence).await {
                Ok(outcome) => self.observe(Refusal::from_outcome(fence, &outcome)),
                Err(StoreError::Unavailable(reason) | StoreError::Unknown(reason)) => {
                    return Err(Refusal::Unavailable(reason));
                }
                Err(error) => return Err(Refusal::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }

    /// Counts a command whose tokens are stale, as far as this guard knows.
    pub(super) fn observe_stale(&self) {
        if !self.observes() {
            return;
        }
        for fence in self.identity.tokens.fences() {
            if let Some(mark) = self.hub.port.redis.state.remembered(&fence.lock)
                && mark.token > fence.presented.token
            {
                self.observe(Some(Refusal::Stale { fence: fence.clone(), mark }));
            }
        }
    }

    /// Counts a refusal by the fence, which passes.
    fn observe(&self, refusal: Option<Refusal>) {
        if let Some(refusal) = refusal
            && let Some((code, ..)) = refusal.by_fence()
        {
            self.identity.context.guard.observer.passes(code, CONNECTION, &refusal.not_applied());
        }
    }
}

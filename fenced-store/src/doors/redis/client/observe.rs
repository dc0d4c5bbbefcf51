//! Observe mode: what would be refused is counted and logged, and passes.
//!
//! Tokens raise marks, so that late ones can be told, but no connection is registered under them
//! and none is ended: they fence nothing. Whether a command's token is stale is asked of the marks
//! that this guard remembers, which cost no way to Redis.

use fence_protocol::Code;
use fence_protocol::wire::fence::Mode;

use super::super::authorize::Denied;
use super::super::password::Login;
use super::super::refusal::Refusal;
use super::super::resp::request::Command;
use super::super::tokens::HeldTokens;
use super::Client;
use crate::store::{FenceOutcome, StoreError};
use crate::verdict::Fence;

impl Client {
    /// Whether nothing is refused.
    pub(super) fn observes(&self) -> bool {
        self.hub.port.guard.observer.mode() == Mode::Observe
    }

    /// Whether a command passes although its keys say that it must not.
    pub(super) fn passes(&self, command: Command<'_>, denied: &Denied) -> bool {
        let guard = &self.hub.port.guard;
        let key = denied.arg.map_or(&b""[..], |arg| command.arg(arg));
        guard.observer.passes(denied.code, guard.fencing.rules.label(key), &denied.line)
    }

    /// Counts a command that passes only because nothing is refused.
    pub(super) fn observe_command(&self, command: Command<'_>) {
        let table = self.hub.port.table.borrow();
        self.hub.port.guard.observer.passes_command(&table.name_of(command));
    }

    /// The tokens of a credential; none where it is no good and nothing is refused.
    ///
    /// # Errors
    /// The line to be answered.
    pub(super) fn read_credential(&self, credential: &[u8]) -> Result<Vec<Fence>, Refusal> {
        let read = HeldTokens::read(credential, &self.hub.port.guard.fencing);
        self.unless_observed(read, Vec::new())
    }

    /// What a client presents to log in.
    ///
    /// # Errors
    /// The line to be answered.
    pub(super) fn read_login(&self, text: &[u8]) -> Result<Login, Refusal> {
        let port = &self.hub.port;
        let read = Login::read(text, &port.guard.fencing, port.settings.password.as_ref());
        self.unless_observed(read, Login::Tokens(Vec::new()))
    }

    /// What was read, or `instead` where it is no good and nothing is refused. Observe mode concerns the
    /// fence; the password of the port is asked for all the same.
    fn unless_observed<T>(
        &self,
        read: Result<T, (Code, Refusal)>,
        instead: T,
    ) -> Result<T, Refusal> {
        read.or_else(|(code, refusal)| {
            let observer = &self.hub.port.guard.observer;
            let passes =
                self.is_admitted && observer.passes(code, CONNECTION, &refusal.not_applied());
            if passes { Ok(instead) } else { Err(refusal) }
        })
    }

    /// Raises the marks of tokens that were just given, and counts those that are stale.
    ///
    /// # Errors
    /// Why Redis cannot be used.
    pub(super) async fn observe_tokens(&self, tokens: &HeldTokens) -> Result<(), Refusal> {
        for fence in tokens.fences() {
            match self.hub.port.redis.seal(fence).await {
                Ok(FenceOutcome::Stale { mark }) => {
                    self.observe(Code::StaleToken, Refusal::Stale { fence: fence.clone(), mark });
                }
                Ok(FenceOutcome::Collision { mark }) => {
                    let refusal = Refusal::Collision { fence: fence.clone(), mark };
                    self.observe(Code::TokenCollision, refusal);
                }
                Ok(_) => {}
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
        for fence in self.held.fences() {
            if let Some(mark) = self.hub.port.redis.state.remembered(&fence.lock)
                && mark.token > fence.presented.token
            {
                self.observe(Code::StaleToken, Refusal::Stale { fence: fence.clone(), mark });
            }
        }
    }

    fn observe(&self, code: Code, refusal: Refusal) {
        self.hub.port.guard.observer.passes(code, CONNECTION, &refusal.not_applied());
    }
}

/// What stands for a rule where a whole connection is meant.
const CONNECTION: &str = "connection";

//! Grants that are committed and not acknowledged yet, while the engine confirms that they are
//! safe.

use fence_protocol::Token;

use super::op::{Op, Withdraw};
use super::waiters::{Answered, Waiting};
use crate::engines::contract::Confirmed;
use crate::store::StoreError;

/// A reply that waits for the confirmation of a grant.
pub(super) struct PendingGrant {
    /// Highest of the tokens.
    token: Token,
    reply: Held,
}

enum Held {
    /// A grant of this server, which is acknowledged or rolled back.
    Grant(Waiting, Answered),
    /// A renewal or a retry, which is decided once the grant is confirmed.
    Retry(Box<dyn Op>),
}

impl PendingGrant {
    pub(super) fn grant(token: Token, waiting: Waiting, answered: Answered) -> Self {
        Self { token, reply: Held::Grant(waiting, answered) }
    }

    pub(super) fn retry(token: Token, op: Box<dyn Op>) -> Self {
        Self { token, reply: Held::Retry(op) }
    }

    /// Acknowledges the grant, or refuses the request. Returns what is to be decided next.
    pub(super) fn settle(self, confirmed: &Confirmed) -> Option<Box<dyn Op>> {
        let is_confirmed = self.token.get() <= confirmed.token;
        let shortfall = confirmed.shortfall.clone().filter(|_| !is_confirmed);
        match (self.reply, shortfall) {
            (Held::Grant(waiting, answered), None) => waiting.answer(answered).map(boxed),
            (Held::Grant(waiting, _), Some(shortfall)) => {
                Withdraw::unconfirmed(waiting, shortfall).map(boxed)
            }
            (Held::Retry(op), None) => Some(op),
            (Held::Retry(op), Some(shortfall)) => {
                op.fail(StoreError::Unknown(format!("{shortfall}; retry with the same id")));
                None
            }
        }
    }
}

fn boxed(withdraw: Withdraw) -> Box<dyn Op> {
    Box::new(withdraw)
}

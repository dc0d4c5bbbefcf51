//! The decision on a batch: its time and its tokens, and how they get into replies.

use fence_protocol::Token;
use fence_protocol::wire::lock::{EndedReply, LockPage, LockReply};
use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use lease::lift;

use crate::store::{Grant, StoreError};

/// Distance of the tokens and the time of a batch from those that were decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lift {
    /// Counter that the batch was decided on.
    pub(super) counter: u64,
    pub(super) by: u64,
    /// Time by which the engine's clock was ahead of the time of the decision, beyond the time that
    /// passed until the reply, in milliseconds: leases have that much less left.
    pub(super) late_ms: u64,
}

/// Time of a decision, by this server's clock and by the store's, and its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) at_ms: u64,
    pub(super) now_ms: u64,
    pub(super) lift: Lift,
    /// Grants of this batch have to be confirmed.
    pub(super) confirms: bool,
}

impl Decided {
    /// Returns the highest token that this batch issues, if it has to be confirmed.
    pub(super) fn to_confirm(self, grants: &[Grant]) -> Option<Token> {
        let tokens = grants.iter().map(|grant| grant.token).filter(|_| self.confirms);
        let taken = tokens.filter(|token| token.get() > self.lift.counter);
        taken.max().map(|token| lift(token, self.lift.counter, self.lift.by))
    }
}

/// A reply with tokens in it.
pub(super) trait Tokens: Send + 'static {
    /// Replaces decided tokens by issued ones.
    fn lift(&mut self, lift: Lift);
}

/// A refusal names the holder, whose lease may have been granted in the same batch.
impl Tokens for StoreError {
    fn lift(&mut self, lift: Lift) {
        match self {
            Self::Held { holder, .. } | Self::TakeoverRefused { holder, .. } => {
                holder.token.lift(lift);
            }
            Self::Part { refusal, .. } => refusal.lift(lift),
            _ => {}
        }
    }
}

impl<T: Tokens> Tokens for Result<T, StoreError> {
    fn lift(&mut self, lift: Lift) {
        match self {
            Ok(value) => value.lift(lift),
            Err(refusal) => refusal.lift(lift),
        }
    }
}

impl Tokens for Token {
    fn lift(&mut self, by: Lift) {
        *self = lift(*self, by.counter, by.by);
    }
}

impl Tokens for Grant {
    fn lift(&mut self, lift: Lift) {
        self.token.lift(lift);
        self.remaining_ms = self.remaining_ms.saturating_sub(lift.late_ms);
    }
}

impl Tokens for SessionReply {
    fn lift(&mut self, lift: Lift) {
        self.expires_in_ms = self.expires_in_ms.saturating_sub(lift.late_ms);
    }
}

impl Tokens for EndedReply {
    fn lift(&mut self, lift: Lift) {
        self.token.lift(lift);
    }
}

impl<T: Tokens> Tokens for Vec<T> {
    fn lift(&mut self, lift: Lift) {
        self.iter_mut().for_each(|each| each.lift(lift));
    }
}

/// Replies that name no token, or only committed ones.
macro_rules! without_new_tokens {
    ($($answer:ty),*) => {
        $(impl Tokens for $answer {
            fn lift(&mut self, _: Lift) {}
        })*
    };
}
without_new_tokens!((), LockReply, LockPage, SessionEndedReply, SessionPage);

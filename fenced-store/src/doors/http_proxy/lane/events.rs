//! Input and output of a lane.

use crate::stores::lanes::Opening;
use crate::verdict::Mark;

/// Number of one operation; unique in the process.
pub type OpId = u64;

/// Effect of an operation at the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May change something.
    Write,
    /// Replaces the version that the guard saw, or creates what it saw missing; else no effect.
    ConditionalPut,
    /// Deletes the version that the guard saw; otherwise no effect.
    ConditionalDelete,
    /// A safe method.
    Read,
    /// Never forwarded: raises the mark and awaits the drain.
    Seal,
}

impl Kind {
    /// Returns `true` for what may change something.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Read | Self::Seal)
    }

    /// Returns `true` for writes that take effect only on the version that the guard saw.
    pub fn is_conditional(self) -> bool {
        matches!(self, Self::ConditionalPut | Self::ConditionalDelete)
    }
}

/// Input of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation arrives, to be forwarded.
    Arrive {
        /// Number of the operation.
        op: OpId,
        /// Its token and lease.
        presented: Mark,
        /// Its effect.
        kind: Kind,
        /// Time at which it times out.
        patience_until_ms: u64,
    },
    /// Everything that was emitted up to this [`Action::Persist`] is durable.
    Persisted {
        /// Number of the action.
        seq: u64,
    },
    /// A forwarded operation has its reply, or was certainly never sent.
    Ended {
        /// Its effect.
        kind: Kind,
    },
    /// A forwarded write has no reply: it may take effect until `until_ms`.
    Unanswered {
        /// Its effect.
        kind: Kind,
        /// Time at which it can no longer take effect.
        until_ms: u64,
    },
    /// An operator states that no write with an unknown outcome can take effect any more.
    Resolved,
    /// An operator makes the quarantine longer, if there is one.
    Extended {
        /// Its new end.
        until_ms: u64,
    },
    /// A waiting operation times out, or its client disconnected.
    Abandoned {
        /// The operation.
        op: OpId,
    },
    /// Time has passed.
    Tick {
        /// Time now.
        now_ms: u64,
    },
    /// An interval of rest has passed: a lane without a write in it closes.
    Rest,
    /// The process ends: the lane closes if no write is out.
    Close,
}

/// Output of a lane, to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make this durable after everything that was emitted before it, then send
    /// [`Event::Persisted`].
    Persist {
        /// Number of the action, rising.
        seq: u64,
        /// Raised mark, if any.
        mark: Option<Mark>,
        /// Writes that may be at the upstream; `None` closes the lane.
        open: Option<Opening>,
    },
    /// Forward the operation (reply, if it is a seal).
    Go {
        /// The operation.
        op: OpId,
    },
    /// Reply with a refusal; the operation was not forwarded.
    Refuse {
        /// The operation.
        op: OpId,
        /// The reason.
        why: Why,
    },
}

/// Reason why an operation was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its token is below the mark.
    Stale {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Another lease owns this very token.
    Collision {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Lower operations are still at the upstream.
    Draining,
    /// An operation with an unknown outcome may still take effect.
    Quarantined {
        /// Time at which it no longer can.
        until_ms: u64,
    },
    /// Too many operations wait.
    Full,
}

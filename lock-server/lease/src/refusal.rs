//! Why a request was not carried out.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::wire::session::SessionEndReason;
use fence_protocol::{LockName, Owner, SessionId, Token};

use crate::Kind;

/// Why a store did not do as it was asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// Another lease is live, and the caller did not want to wait (any longer).
    #[error("held by {} with token {}", holder.owner, holder.token)]
    Held {
        /// Who has it.
        holder: HolderInfo,
        /// How many wait, without the caller.
        queue_length: usize,
    },
    /// The live lease is not one that the caller may take over; nothing was changed.
    #[error("held by {} with token {}, and not taken over: {}", holder.owner, holder.token, why.as_str())]
    TakeoverRefused {
        /// Who has it.
        holder: HolderInfo,
        /// Why not.
        why: NoTakeover,
    },
    /// A session does not allow it; nothing was changed.
    #[error(transparent)]
    Session(#[from] SessionRefusal),
    /// The lease has ended, or its id was ended before it was ever granted.
    #[error("the lease has ended: {}", reason.as_str())]
    Lost {
        /// How it ended.
        reason: EndReason,
        /// What the operator who revoked it said.
        why: Option<Owner>,
    },
    /// The lock is in use as another kind; nothing was changed.
    #[error("the lock is in use as {0}")]
    OtherKind(Kind),
    /// One lock of several refused; nothing was changed at any of them.
    #[error("lock {lock}: {refusal}")]
    Part {
        /// Which.
        lock: LockName,
        /// Why.
        refusal: Box<StoreError>,
    },
    /// No lease is live.
    #[error("nobody holds the lock")]
    NotHeld,
    /// The lease id is in use by another owner.
    #[error("the lease id belongs to a request of {owner}")]
    IdConflict {
        /// Who uses it.
        owner: Owner,
    },
    /// A bound of the store is reached.
    #[error("{what}: the limit is {limit}")]
    Limit {
        /// What is bounded.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// The namespace has no token left, or the wished minimum is out of reach.
    #[error("tokens are exhausted: the next one would be above {}", Token::MAX)]
    Exhausted,
    /// The store cannot do this, now or later; nothing was changed.
    #[error("the {store} store does not offer {what}")]
    NotOffered {
        /// The store's name.
        store: &'static str,
        /// What it cannot do, in the words of the docs.
        what: &'static str,
    },
    /// No lock is granted now, because leases may live that the store does not know of any more;
    /// nothing was changed.
    #[error(
        "no lock is granted for another {left_ms} ms: the store may have lost leases, or its clock \
             cut them short, and their holders may still believe"
    )]
    Paused {
        /// For how much longer, in milliseconds.
        left_ms: u64,
    },
    /// Nothing was done; the store cannot be used now.
    #[error("{0}")]
    Unavailable(String),
    /// The operation may or may not have been done.
    #[error("{0}")]
    Unknown(String),
}

/// Why a lock was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTakeover {
    /// The lease belongs to another owner.
    OtherOwner,
    /// The holder has not said which life of its owner it is.
    NoIncarnation,
    /// The caller's incarnation was itself taken over: it is the earlier one.
    WasTakenOver,
}

impl NoTakeover {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::OtherOwner, Self::NoIncarnation, Self::WasTakenOver];

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherOwner => "other-owner",
            Self::NoIncarnation => "no-incarnation",
            Self::WasTakenOver => "was-taken-over",
        }
    }
}

/// What a session does not allow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("session {session_id}: {why}")]
pub struct SessionRefusal {
    /// The session.
    pub session_id: SessionId,
    /// Why.
    pub why: NoSession,
}

/// Why a session does not serve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoSession {
    /// Nothing is known of it: it never was, or it ended longer ago than is remembered.
    #[error("it is not known")]
    Unknown,
    /// It has ended.
    #[error("it has ended: {}", .0.as_str())]
    Ended(SessionEndReason),
    /// It is blocked.
    #[error("it is blocked ({reason}) and ends in {ends_in_ms} ms")]
    Blocked {
        /// Why.
        reason: Owner,
        /// When it ends, in milliseconds from now.
        ends_in_ms: u64,
    },
    /// It belongs to another owner.
    #[error("it belongs to {0}")]
    OtherOwner(Owner),
    /// A lease that is bound to it has no time to live of its own.
    #[error("a lease that is bound to it has no time to live of its own")]
    Bound,
}

impl NoSession {
    /// As the refusal of a store.
    pub fn of(self, session_id: SessionId) -> StoreError {
        StoreError::Session(SessionRefusal { session_id, why: self })
    }
}

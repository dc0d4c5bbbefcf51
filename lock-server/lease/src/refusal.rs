//! Refusals.

use fence_protocol::wire::lock::{EndReason, HolderInfo};
use fence_protocol::wire::session::SessionEndReason;
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token};

use crate::Kind;

/// Reason why a store did not carry out a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// Another lease is live, and the caller did not want to wait (any longer).
    #[error("held by {} with token {}", holder.owner, holder.token)]
    Held {
        /// The holder that ends first.
        holder: HolderInfo,
        /// Number of waiters, without the caller.
        queue_length: usize,
    },
    /// No lease is live: a request for several locks, which waits at another one, is first here.
    /// The lease that it waits for is not named: the caller may have no right to read of that lock.
    #[error("kept for a request that waits for other locks")]
    Kept {
        /// Number of waiters, without the caller.
        queue_length: usize,
    },
    /// The live lease is not one that the caller may take over; nothing was changed.
    #[error("held by {} with token {}, and not taken over: {}", holder.owner, holder.token, why.as_str())]
    TakeoverRefused {
        /// Holder of the lock.
        holder: HolderInfo,
        /// The reason.
        why: NoTakeover,
    },
    /// A session does not allow it; nothing was changed.
    #[error(transparent)]
    Session(#[from] SessionRefusal),
    /// The lease has ended, or its id was ended before it was ever granted.
    #[error("the lease has ended: {}", reason.as_str())]
    Lost {
        /// Reason for its end.
        reason: EndReason,
        /// Reason that the revoking operator gave.
        why: Option<Owner>,
        /// `false` if nothing is remembered of it: it was never granted, or is forgotten. The
        /// reason is then `Superseded` while another lease is live, otherwise `Expired`.
        is_known: bool,
    },
    /// The lock is in use as another kind; nothing was changed.
    #[error("the lock is in use as {0}")]
    OtherKind(Kind),
    /// One lock of several refused; nothing was changed at any of them.
    #[error("lock {lock}: {refusal}")]
    Part {
        /// The lock that refused.
        lock: LockName,
        /// Its refusal.
        refusal: Box<StoreError>,
    },
    /// No lease is live.
    #[error("the lock is not held")]
    NotHeld,
    /// The lease id is in use by another owner, or by another principal of the access file.
    #[error("the lease id belongs to a request of {owner}")]
    IdConflict {
        /// Owner that uses it.
        owner: Owner,
    },
    /// The lease, or the waiting request, is another principal's of the access file; nothing was
    /// changed.
    #[error("lease {lease_id} is another principal's")]
    OtherPrincipal {
        /// Id of what is the other principal's.
        lease_id: LeaseId,
    },
    /// A bound of the store is reached.
    #[error("{what}: the limit is {limit}")]
    Limit {
        /// The bounded quantity.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// The namespace has no token left, or the requested minimum is out of reach.
    #[error("tokens are exhausted: the next one would be above {}", Token::MAX)]
    Exhausted,
    /// The store does not support this; nothing was changed.
    #[error("the {store} store does not offer {what}")]
    NotOffered {
        /// Name of the store.
        store: &'static str,
        /// The unsupported feature, in the words of the docs.
        what: &'static str,
    },
    /// No lock is granted now, because leases may live that the store has lost; nothing was
    /// changed.
    #[error(
        "no lock is granted for another {left_ms} ms: the store may have lost leases, or its clock \
             cut them short, and their holders may still believe"
    )]
    Paused {
        /// Rest of the pause, in milliseconds.
        left_ms: u64,
    },
    /// Nothing was done; the store is unavailable.
    #[error("{0}")]
    Unavailable(String),
    /// Unknown outcome: the operation may or may not have been carried out.
    #[error("{0}")]
    Unknown(String),
}

/// Reason why a lock was not taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTakeover {
    /// The lease belongs to another owner.
    OtherOwner,
    /// The holder has not named its incarnation.
    NoIncarnation,
    /// The caller's incarnation was itself taken over: it is the earlier one.
    WasTakenOver,
}

impl NoTakeover {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::OtherOwner, Self::NoIncarnation, Self::WasTakenOver];

    /// Returns the word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OtherOwner => "other-owner",
            Self::NoIncarnation => "no-incarnation",
            Self::WasTakenOver => "was-taken-over",
        }
    }
}

/// A refusal because of a session.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("session {session_id}: {why}")]
pub struct SessionRefusal {
    /// Id that the request gave.
    pub session_id: SessionId,
    /// The reason.
    pub why: NoSession,
}

/// Reason why a session is not usable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoSession {
    /// Unknown: it never existed, or its retention has passed.
    #[error("it is not known")]
    Unknown,
    /// It has ended.
    #[error("it has ended: {}", .0.as_str())]
    Ended(SessionEndReason),
    /// It is blocked.
    #[error("it is blocked ({reason}) and ends in {ends_in_ms} ms")]
    Blocked {
        /// Reason that the operator gave.
        reason: Owner,
        /// Time until it ends, in milliseconds.
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
    /// Returns the refusal for a session.
    pub fn refusal(self, session_id: SessionId) -> StoreError {
        StoreError::Session(SessionRefusal { session_id, why: self })
    }
}

//! The seam between the guard and a datastore.
//!
//! A store keeps a mark for each lock and an object for each key. The contract of every
//! implementation, checked by the conformance suite:
//!
//! 1. *One step.* An operation with a [`Fence`] is one atomic, isolated step of the datastore: the
//!    check of the mark, the raise and the effect. All steps are linearizable.
//! 2. *Reads too.* A read raises the mark, durably, before its reply.
//! 3. *Refusals by the fence change nothing*: neither mark nor data.
//! 4. *The condition follows the fence.* A failed condition is still a reply to a holder of the
//!    token, so the mark rises; the data does not change.
//! 5. *A reply is durable*, as far as the datastore keeps its promises (`embedded`: on disk).
//! 6. *No token, no fence.* An operation without a [`Fence`] is for resources that a rule declares
//!    open: it is not compared with a mark and raises none. The caller decides; see
//!    [`crate::fencing`].
//! 7. *Cancelling* an operation's future cancels nothing that was sent: it may still be applied.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineRequest};
use fence_protocol::{LockName, Token};

use crate::etag::{Condition, ETag};
use crate::key::ObjectKey;
use crate::stores::report::StoreReport;
use crate::verdict::{Fence, Mark};

/// Marks without data, for seals and the list of fences.
#[async_trait]
pub trait Fences: fmt::Debug + Send + Sync + 'static {
    /// Guarantee of this implementation, as its start-up probe showed it.
    fn guarantee(&self) -> Guarantee;

    /// Kind, probe result and the gaps that the set-up leaves.
    fn report(&self) -> StoreReport;

    /// Raises the mark to the presented token, without touching data.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError>;

    /// Raises the mark as a seal does, without waiting for lower operations under way: in observe
    /// mode a mark only records what was seen.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.seal(fence).await
    }

    /// Sets the lowest token to admit from now on, for a store that may have lost its marks.
    /// Returns the floor in force, which may be higher; `None`, with no effect, for a store that
    /// cannot lose marks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn set_floor(&self, _floor: Token) -> Result<Option<Token>, StoreError> {
        Ok(None)
    }

    /// Returns the highest mark of all locks, or a higher number; `None` before the first token.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn highest_mark(&self) -> Result<Option<Token>, StoreError>;

    /// Returns the mark of a lock; `None` before its first token.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError>;

    /// Lists marks in the order of their locks' names.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError>;

    /// Lists the lanes in use in the order of their locks' names; `None` for a store without lanes.
    ///
    /// # Errors
    /// [`StoreError::NotLeader`].
    fn lanes(&self, _query: &FenceQuery) -> Result<Option<LanePage>, StoreError> {
        Ok(None)
    }

    /// Resolves or extends the quarantine of a lane; `None` for a store without lanes.
    ///
    /// # Errors
    /// [`StoreError::NotLeader`].
    fn change_quarantine(
        &self,
        _lock: &LockName,
        _request: &QuarantineRequest,
    ) -> Result<Option<QuarantineChange>, StoreError> {
        Ok(None)
    }
}

/// Objects behind a fence.
#[async_trait]
pub trait FenceStore: Fences {
    /// Checks the fence, raises the mark and applies `operation`, in one step.
    ///
    /// # Errors
    /// [`StoreError`]. After [`StoreError::Unknown`] the operation may have been applied, or may
    /// still be; after any other error it has not been and will not be.
    async fn apply(
        &self,
        fence: Option<Fence>,
        operation: Operation,
    ) -> Result<FenceOutcome, StoreError> {
        self.apply_once(fence, operation, None).await
    }

    /// Applies an operation as [`FenceStore::apply`] does, and at most once under its name, if it
    /// has one. The outcome is stored in the same step. A retry that the fence admits gets the
    /// stored outcome; a stale retry gets it beside its refusal. The name is looked up after the
    /// fence and before the condition.
    ///
    /// # Errors
    /// As [`FenceStore::apply`].
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<FenceOutcome, StoreError>;
}

/// Operation on one object.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads the object.
    Get {
        /// Key of the object.
        key: ObjectKey,
    },
    /// Replaces the whole object.
    Put {
        /// Key of the object.
        key: ObjectKey,
        /// New version.
        object: Object,
        /// Condition on the current version.
        condition: Condition,
    },
    /// Removes the object. Success if there is none.
    Delete {
        /// Key of the object.
        key: ObjectKey,
        /// Condition on the current version.
        condition: Condition,
    },
}

impl Operation {
    /// Returns the key.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Returns the condition on the current version.
    pub fn condition(&self) -> &Condition {
        match self {
            Self::Get { .. } => &Condition::None,
            Self::Put { condition, .. } | Self::Delete { condition, .. } => condition,
        }
    }

    /// Returns the size of the content that it writes, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { object, .. } => object.body.len(),
            Self::Get { .. } | Self::Delete { .. } => 0,
        }
    }

    /// Returns the HTTP method of a request for this operation.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Get { .. } => "GET",
            Self::Put { .. } => "PUT",
            Self::Delete { .. } => "DELETE",
        }
    }
}

/// One version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Tag, unique to this version.
    pub etag: ETag,
    /// Media type that the writer stated.
    pub content_type: String,
    /// Content.
    pub body: Bytes,
}

/// Outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceOutcome {
    /// Admitted by the fence and applied.
    Applied {
        /// Effect on the object or the mark.
        effect: Effect,
        /// The lock's mark now: the presented token. `None` without a fence.
        mark: Option<Token>,
    },
    /// Refused by the fence: the token is below the mark. Nothing changed.
    Stale {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Refused by the fence: another lease owns this very token. Nothing changed.
    Collision {
        /// Mark that refused it.
        mark: Mark,
    },
    /// Admitted by the fence, which raised the mark, but the condition did not hold. No data
    /// changed.
    PreconditionFailed {
        /// Tag of the current object; `None` if there is none.
        etag: Option<ETag>,
        /// The lock's mark now: the presented token. `None` without a fence.
        mark: Option<Token>,
    },
    /// Admitted by the fence, which raised the mark; an earlier attempt under this name was
    /// applied. No data changed now.
    Repeated {
        /// Outcome of the earlier attempt.
        first: First,
        /// The lock's mark now: the presented token. `None` without a fence.
        mark: Option<Token>,
    },
    /// Refused by the fence, without effect; an earlier attempt under this name was applied.
    StaleRepeat {
        /// Mark that refused it.
        mark: Mark,
        /// Outcome of the earlier attempt.
        first: First,
    },
    /// Admitted by the fence, which raised the mark, but the name belongs to another operation. No
    /// data changed.
    NameTaken {
        /// The lock's mark now: the presented token. `None` without a fence.
        mark: Option<Token>,
    },
}

impl FenceOutcome {
    /// Returns the mark after the operation, if the fence admitted it.
    pub fn mark(&self) -> Option<Token> {
        match self {
            Self::Applied { mark, .. }
            | Self::PreconditionFailed { mark, .. }
            | Self::Repeated { mark, .. }
            | Self::NameTaken { mark } => *mark,
            Self::Stale { .. } | Self::Collision { .. } | Self::StaleRepeat { .. } => None,
        }
    }
}

/// Effect of an applied operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A read returned this object.
    Found(Object),
    /// A read or delete found no object.
    Absent,
    /// A write stored the object.
    Stored {
        /// `true` if there was no object before.
        created: bool,
    },
    /// A delete removed the object.
    Deleted,
    /// The mark was raised, or already belonged to this lease at this token.
    Sealed,
}

/// Query for a page of fences.
#[derive(Clone, Debug, Default)]
pub struct FenceQuery {
    /// Only locks whose names begin with this; empty for all.
    pub prefix: String,
    /// Only locks after this one, in the order of names.
    pub after: Option<LockName>,
    /// Maximum number of fences.
    pub limit: usize,
}

/// Result of an operator's request on a quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineChange {
    /// The quarantine was changed; otherwise it was not the one that the request names.
    pub is_done: bool,
    /// The lane now; `None` if it is not in memory.
    pub line: Option<LaneLine>,
}

/// A page of fences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceList {
    /// Locks and their marks, in the order of names.
    pub fences: Vec<(LockName, Mark)>,
    /// `true` if more follow.
    pub more: bool,
}

/// Failure of a store to give an outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store is unreachable or stopped. The operation was not applied and will not be.
    #[error("{0}")]
    Unavailable(String),
    /// The operation was sent and its reply was lost: it may have been applied.
    #[error("{0}")]
    Unknown(String),
    /// A limit of the store is reached. The operation was not applied.
    #[error("{0}")]
    LimitReached(String),
    /// Operations with a lower token are still under way (opaque stores only). The operation was
    /// not applied.
    #[error("earlier operations on lock {lock} are still in flight")]
    Draining {
        /// Lock of the lane.
        lock: LockName,
        /// Time after which to retry, in milliseconds.
        retry_ms: u64,
    },
    /// This guard is a standby, or its term has ended. The operation was not applied.
    #[error("this guard does not lead; {}", .leader.as_deref().map_or_else(
        || "no leader is known".to_owned(), |leader| format!("{leader} does")))]
    NotLeader {
        /// Guard that leads, as far as this one knows.
        leader: Option<String>,
    },
    /// An earlier operation with an unknown outcome may still take effect (opaque stores only). The
    /// operation was not applied.
    #[error("an earlier operation on lock {lock} has an unknown outcome and may still take effect")]
    Quarantined {
        /// Lock of the lane.
        lock: LockName,
        /// Time after which to retry, in milliseconds.
        retry_ms: u64,
    },
}

/// Name of an operation, and a digest of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    pub(super) scope: String,
    pub(super) id: String,
    pub(super) digest: String,
}

/// Outcome of an operation's first attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// Wrote the object.
    Stored {
        /// `true` if there was no object before.
        created: bool,
        /// Tag that the write gave it.
        etag: ETag,
    },
    /// Removed the object.
    Deleted {
        /// `true` if there was an object.
        existed: bool,
    },
    /// The condition did not hold.
    PreconditionFailed {
        /// Tag of the object at that time; `None` if there was none.
        etag: Option<ETag>,
    },
}

//! The seam between the guard and a datastore.
//!
//! A store keeps, for each lock, its mark, and for each key an object. The contract that every
//! implementation keeps, and that the conformance suite checks:
//!
//! 1. *One step.* For an operation with a [`Fence`], the check of the mark, the raising of the mark
//!    and the effect are one atomic, isolated step of the datastore. All steps are linearizable.
//! 2. *Reads too.* A read that was answered has raised the mark, durably, before the answer.
//! 3. *Refusals by the fence change nothing*: neither mark nor data.
//! 4. *The condition comes after the fence.* A condition that fails was still answered to a holder
//!    of the token, and so raises the mark; it changes no data.
//! 5. *An answer is durable*, as far as the datastore keeps its promises (`embedded`: on disk).
//! 6. *No token, no fence.* An operation without a [`Fence`] is for resources that a rule declares
//!    open. It is neither compared nor does it raise anything. Whoever calls decides; see
//!    [`crate::fencing`].
//! 7. *Cancelling* the future of an operation cancels nothing that was sent: it may be applied.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};

use crate::etag::{Condition, ETag};
use crate::key::ObjectKey;
use crate::verdict::{Fence, Mark};

pub(crate) mod commit;
mod decide;
#[cfg(test)]
mod differential;
pub mod embedded;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod memory;
mod once;
mod open;
mod probe;
pub mod redis;
mod report;

pub use once::{First, Once};
pub(crate) use open::Behind;
pub use open::{OpenError, Opened, StoreUrl, open};
pub use report::StoreReport;

/// Marks, without the data: what a seal and the listing of fences need.
#[async_trait]
pub trait Fences: fmt::Debug + Send + Sync + 'static {
    /// What this implementation guarantees, as its start-up probe showed it.
    fn guarantee(&self) -> Guarantee;

    /// What it is, what its probe showed, and which gaps its set-up leaves.
    fn report(&self) -> StoreReport;

    /// Raises the mark to what is presented, without touching data.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn seal(&self, fence: Fence) -> Result<Outcome, StoreError>;

    /// As a seal, and waits for nothing lower that is still on its way: for observe mode, in which
    /// a mark is only a note of what was seen.
    ///
    /// # Errors
    /// [`StoreError`].
    async fn note(&self, fence: Fence) -> Result<Outcome, StoreError> {
        self.seal(fence).await
    }

    /// States the first token to be admitted from now on, for a store that can lose its marks and
    /// may have done so. Returns the floor in force, which may be a higher one; `None`, and nothing
    /// was done, for a store that cannot lose them.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    async fn set_floor(&self, _floor: Token) -> Result<Option<Token>, StoreError> {
        Ok(None)
    }

    /// The highest mark of all locks, or higher; `None` where no token has been seen.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn highest_mark(&self) -> Result<Option<Token>, StoreError>;

    /// The mark of a lock; `None` where no token has been seen.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError>;

    /// Marks in the order of their locks' names.
    ///
    /// # Errors
    /// [`StoreError`]; never [`StoreError::Unknown`].
    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError>;
}

/// Objects behind a fence.
#[async_trait]
pub trait FenceStore: Fences {
    /// Checks the fence, raises the mark and does `operation`, in one step.
    ///
    /// # Errors
    /// [`StoreError`]. After [`StoreError::Unknown`] the operation may have been applied, or may
    /// still be; after any other it has not been and will not be.
    async fn apply(
        &self,
        fence: Option<Fence>,
        operation: Operation,
    ) -> Result<Outcome, StoreError> {
        self.apply_once(fence, operation, None).await
    }

    /// As [`FenceStore::apply`], and where the operation has a name, at most once under it: the
    /// outcome is remembered in the same step, and a repeat that the fence admits is answered with
    /// it. So is a stale one, which learns that it is stale beside it. The name is looked up after
    /// the fence and before the condition.
    ///
    /// # Errors
    /// As [`FenceStore::apply`].
    async fn apply_once(
        &self,
        fence: Option<Fence>,
        operation: Operation,
        once: Option<Once>,
    ) -> Result<Outcome, StoreError>;
}

/// What is to be done with an object.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Read it.
    Get {
        /// Which.
        key: ObjectKey,
    },
    /// Write it, whole.
    Put {
        /// Which.
        key: ObjectKey,
        /// What it becomes.
        object: Object,
        /// What must hold of the one that is there.
        condition: Condition,
    },
    /// Remove it. Removing what is not there is a success.
    Delete {
        /// Which.
        key: ObjectKey,
        /// What must hold of the one that is there.
        condition: Condition,
    },
}

impl Operation {
    /// The key it is about.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The HTTP method that asks for it.
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
    /// Unique to this version.
    pub etag: ETag,
    /// The media type that the writer stated.
    pub content_type: String,
    /// The bytes.
    pub body: Bytes,
}

/// What became of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fence admitted it and it took effect.
    Applied {
        /// What it did.
        effect: Effect,
        /// The lock's mark now: what was presented. `None` without a fence.
        mark: Option<Token>,
    },
    /// The fence refused it: the token is below the mark. Nothing changed.
    Stale {
        /// What it met.
        mark: Mark,
    },
    /// The fence refused it: another lease owns this very token. Nothing changed.
    Collision {
        /// What it met.
        mark: Mark,
    },
    /// The fence admitted it and raised the mark, but the condition did not hold. No data changed.
    PreconditionFailed {
        /// The object's tag as it is; `None` where there is no object.
        etag: Option<ETag>,
        /// The lock's mark now: what was presented. `None` without a fence.
        mark: Option<Token>,
    },
    /// The fence admitted it and raised the mark; it had been done before under its name, and no
    /// data changed now.
    Repeated {
        /// What became of it then.
        first: First,
        /// The lock's mark now: what was presented. `None` without a fence.
        mark: Option<Token>,
    },
    /// The fence refused it, and nothing changed; but under its name it had been done before.
    StaleRepeat {
        /// What it met.
        mark: Mark,
        /// What became of it then.
        first: First,
    },
    /// The fence admitted it and raised the mark, but its name belongs to another operation. No
    /// data changed.
    NameTaken {
        /// The lock's mark now: what was presented. `None` without a fence.
        mark: Option<Token>,
    },
}

impl Outcome {
    /// What the mark is now, where the fence admitted the operation.
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

/// What an applied operation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A read found this.
    Found(Object),
    /// A read or a delete found nothing.
    Absent,
    /// A write put the object there.
    Stored {
        /// Whether there was none before.
        created: bool,
    },
    /// A delete removed it.
    Deleted,
    /// The mark was raised, or stood there already for this lease.
    Sealed,
}

/// Which fences to list.
#[derive(Clone, Debug, Default)]
pub struct FenceQuery {
    /// Only locks whose name begins like this; empty for all.
    pub prefix: String,
    /// Only locks after this one.
    pub after: Option<LockName>,
    /// At most this many.
    pub limit: usize,
}

/// A page of fences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceList {
    /// In the order of their names.
    pub fences: Vec<(LockName, Mark)>,
    /// Whether there are more behind them.
    pub more: bool,
}

/// Why a store gave no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot work now. The operation was not applied and will not be.
    #[error("{0}")]
    Unavailable(String),
    /// The operation was sent and its reply was lost: nobody knows whether it was applied.
    #[error("{0}")]
    Unknown(String),
    /// A limit of the store is reached. The operation was not applied.
    #[error("{0}")]
    LimitReached(String),
    /// Earlier operations of a lower token are still on their way (opaque stores only). The
    /// operation was not applied.
    #[error("earlier operations on lock {lock} are still in flight")]
    Draining {
        /// Whose lane.
        lock: LockName,
        /// When to try again, in milliseconds.
        retry_ms: u64,
    },
    /// An earlier operation may still take effect (opaque stores only). The operation was not
    /// applied.
    #[error("an earlier operation on lock {lock} is in doubt and may still take effect")]
    Quarantined {
        /// Whose lane.
        lock: LockName,
        /// When to try again, in milliseconds.
        retry_ms: u64,
    },
}

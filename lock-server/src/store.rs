//! The seam between the HTTP service and whatever remembers leases.
//!
//! One conformance suite (package `fence-tests`) runs over every implementation, so that `memory`,
//! `embedded` and `redis` cannot drift apart.

use std::fmt;

use async_trait::async_trait;
use fence_protocol::wire::lock::{
    EndReason, EndedReply, HolderInfo, LeaseMode, LockPage, LockReply,
};
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

pub mod embedded;
mod engine;
pub mod etcd;
mod guarantee;
#[cfg_attr(not(test), expect(dead_code, reason = "the embedded store of the driver stands on it"))]
pub(crate) mod log;
mod loss;
pub mod memory;
mod open;
pub mod quorum;
pub mod redis;
mod returned;
mod session;

pub use guarantee::{Guarantee, guarantee};
pub use loss::{AfterLoss, LossOptions};
pub use open::{OpenError, StoreOptions, StoreUrl, open};
pub(crate) use returned::{is_ended, return_lease};
pub use session::{NewSession, NoSession, SessionRefusal, SessionStore};

/// A store of leases: who holds which lock, with which token, until when.
///
/// # Contract
/// - Every operation is atomic: it happened entirely or not at all, and operations on one lock have
///   one order.
/// - L1: a grant's token is greater than every token that the namespace has issued before.
/// - L2: a lock has at most one live exclusive lease and nobody beside it, or shared ones alone, or at
///   most as many permits as its size, as the store's own clock sees it.
/// - L3: a lease id is granted at most once; while the lease lives, the same id gets the same grant.
/// - L4: what was answered survives a restart of the process, except in the `memory` store.
/// - Waiters are served first come, first served, and nobody overtakes them.
/// - [`StoreError::Unknown`] is returned wherever the operation may or may not have happened; it is
///   never turned into success or failure by guessing, and never retried inside the store when it
///   could mint a token.
#[async_trait]
pub trait LockStore: SessionStore {
    /// Grants the lock, now or within `request.wait_ms`.
    ///
    /// # Cancel safety
    /// Dropping the future of a request that waits in the queue withdraws it: the waiter leaves
    /// the queue, and a grant that was just made for it is taken back at once. Dropping the future
    /// of a request with `wait_ms` 0 leaves whatever was done: a repeat with the same id learns it.
    async fn acquire(&self, request: Acquire) -> Result<Grant, StoreError>;

    /// Grants several locks in one step, a token each, or none of them: now, or within `wait_ms`.
    ///
    /// Every part has the same lease id, owner, time to live, patience, session and metadata, names
    /// another lock, and takes nothing over. The grants come in the order of the parts. While such a
    /// request waits it holds nothing: it has a place in each queue, all taken in one step, so that
    /// any two requests stand in the same order wherever they meet, and no circle of waiting can form.
    /// The same lease id again is told of the same grants while all of them live.
    ///
    /// # Errors
    /// [`StoreError::Part`] names the lock that refused, with why; nothing was changed.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire): dropped while it waits, it leaves every queue.
    async fn acquire_all(&self, parts: Vec<Acquire>) -> Result<Vec<Grant>, StoreError>;

    /// Replaces the remaining time of a live lease by `ttl`, or by its own time to live.
    ///
    /// # Errors
    /// [`StoreError::Lost`] when the lease has ended: a renewal never resurrects.
    async fn renew(
        &self,
        lock: &LockName,
        lease: LeaseId,
        ttl: Option<Ttl>,
    ) -> Result<Grant, StoreError>;

    /// Ends a lease; the next waiter is granted in the same step.
    ///
    /// An id that is not known is remembered as ended, so that its acquire, should it still be on
    /// its way, is refused.
    ///
    /// # Errors
    /// [`StoreError::Lost`] when the lease had ended before, and for an id that is not known.
    async fn release(&self, lock: &LockName, lease: LeaseId) -> Result<EndedReply, StoreError>;

    /// Ends one live lease, or every live lease of the lock, and a lock-delay that runs; those who
    /// wait are granted in the same step. Gives the leases that ended, the oldest first.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] when nothing is live; [`StoreError::Lost`] when the one that was named
    /// is not.
    async fn revoke(&self, lock: &LockName, revoke: Revoke) -> Result<Vec<EndedReply>, StoreError>;

    /// A token that no lease has: above every token issued for the lock before, and never issued
    /// again. Guards are sealed with it.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`], [`StoreError::Unavailable`]; [`StoreError::Unknown`] where a token
    /// may have been used up.
    async fn mint(&self, lock: &LockName) -> Result<Token, StoreError>;

    /// Holder, queue and recent history of one lock. A lock that nothing is known of is free.
    async fn show(&self, lock: &LockName) -> Result<LockReply, StoreError>;

    /// Held locks in the order of their names.
    async fn list(&self, query: ListQuery) -> Result<LockPage, StoreError>;

    /// Lets the next token be above `mark`, which a guard has seen. A counter that is not there yet
    /// has lost its memory: it goes on above everything that can have been issued, and not just
    /// above that mark. A counter that is at `mark` or above stays as it is.
    ///
    /// # Errors
    /// [`StoreError`], after which the counter may or may not be lifted.
    async fn lift(&self, mark: Token) -> Result<(), StoreError>;

    /// What the store is, for logs and `/readyz?verbose`: `memory`, `embedded`, `redis`.
    fn name(&self) -> &'static str;
}

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// The lock.
    pub lock: LockName,
    /// The id of the grant.
    pub lease_id: LeaseId,
    /// Who asks.
    pub owner: Owner,
    /// How long the lease lives.
    pub ttl: Ttl,
    /// How long to wait in the queue, in milliseconds; 0 does not wait.
    pub wait_ms: u64,
    /// What people who look at the lock should see: a JSON text.
    pub metadata: Option<String>,
    /// The grant's token must exceed this one.
    pub min_token: Option<Token>,
    /// The session that the lease lives as long as; `ttl` says nothing then.
    pub session: Option<SessionId>,
    /// Which life of the owner asks.
    pub incarnation: Option<Owner>,
    /// Whom the lock may be taken from at once.
    pub takeover: Takeover,
    /// How the lease shares the lock.
    pub mode: Mode,
    /// For how long the lock stays closed after this lease ended without its holder's word (it
    /// expired, or its session ended), in milliseconds; 0 for not at all. For datastores without a
    /// guard: what the holder had under way has so long to land.
    pub lock_delay_ms: u64,
}

impl Acquire {
    /// Asks for the whole lock, without waiting, and for nothing more.
    pub fn new(lock: LockName, lease_id: LeaseId, owner: Owner, ttl: Ttl) -> Self {
        Self {
            lock,
            lease_id,
            owner,
            ttl,
            wait_ms: 0,
            metadata: None,
            min_token: None,
            session: None,
            incarnation: None,
            takeover: Takeover::Never,
            mode: Mode::Exclusive,
            lock_delay_ms: 0,
        }
    }
}

/// How leases share a lock.
///
/// A lock is of one kind at a time, from the first lease or waiter to the last: it is taken
/// exclusively and shared, or it is a semaphore of one size. Idle, it is of no kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nobody beside it.
    #[default]
    Exclusive,
    /// Beside other shared leases.
    Shared,
    /// One of so many permits.
    Permit {
        /// How many there are in all: 1 to [`PERMITS_MAX`](fence_protocol::wire::lock::PERMITS_MAX).
        size: u32,
    },
}

/// What a revocation ends, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoke {
    /// Only this lease; `None` for all of them.
    pub lease: Option<LeaseId>,
    /// What its holder is told.
    pub reason: Option<Owner>,
}

/// From whom an acquire may take a lock at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// From nobody.
    #[default]
    Never,
    /// From an earlier incarnation of the same owner.
    EarlierSelf,
    /// From this lease of the same owner.
    Of(LeaseId),
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

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// The id of the grant.
    pub lease_id: LeaseId,
    /// Its token.
    pub token: Token,
    /// Who holds it.
    pub owner: Owner,
    /// What remains, in milliseconds.
    pub remaining_ms: u64,
    /// How long the acquire waited, in milliseconds.
    pub waited_ms: u64,
    /// How it shares the lock.
    pub mode: Mode,
}

impl Grant {
    /// The grant `ms` milliseconds after its time was measured.
    pub(crate) fn later(self, ms: u64) -> Self {
        Self { remaining_ms: self.remaining_ms.saturating_sub(ms), ..self }
    }
}

/// Which page of the held locks.
#[derive(Clone, Debug, PartialEq)]
pub struct ListQuery {
    /// Only names that begin with this.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<LockName>,
    /// At most so many.
    pub limit: usize,
}

/// What a lock is while it is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exclusive and shared leases.
    Lock,
    /// Permits.
    Semaphore {
        /// How many.
        size: u32,
    },
}

impl Mode {
    /// The word of the API.
    pub fn wire(self) -> LeaseMode {
        match self {
            Self::Exclusive => LeaseMode::Exclusive,
            Self::Shared => LeaseMode::Shared,
            Self::Permit { .. } => LeaseMode::Permit,
        }
    }

    /// The kind of lock that such a lease makes of it.
    pub fn kind(self) -> Kind {
        match self {
            Self::Exclusive | Self::Shared => Kind::Lock,
            Self::Permit { size } => Kind::Semaphore { size },
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("a lock with exclusive and shared leases"),
            Self::Semaphore { size } => write!(f, "a semaphore of size {size}"),
        }
    }
}

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
    /// The lease id is in use by somebody else.
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
        /// The store's [name](LockStore::name).
        store: &'static str,
        /// What it cannot do, in the words of the docs.
        what: &'static str,
    },
    /// Nobody is granted a lock now, because leases may live that the store does not know of any more;
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

/// The bounds that a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many may wait for one lock.
    pub waiters_per_lock: usize,
    /// How many shared leases may live on one lock at the same time.
    pub shared_per_lock: usize,
    /// How many may wait in all, in this process.
    pub waiters: usize,
    /// How many locks may be held or remembered (memory and embedded).
    pub locks: usize,
    /// How many sessions may live or be remembered.
    pub sessions: usize,
    /// How many leases and waiting requests a session may have.
    pub session_leases: usize,
    /// For how long ended lease ids are remembered after a lock became idle, in milliseconds.
    pub ended_retention_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiters_per_lock: 10_000,
            shared_per_lock: 1_024,
            waiters: 100_000,
            locks: 1_000_000,
            sessions: 100_000,
            session_leases: 10_000,
            ended_retention_ms: 10_000,
        }
    }
}

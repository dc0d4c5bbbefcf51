//! What is asked for.

use std::fmt;

use fence_protocol::wire::lock::LeaseMode;
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

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
    /// No other lease beside it.
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
    /// What the reply to its holder says.
    pub reason: Option<Owner>,
}

/// From whom an acquire may take a lock at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// From no lease.
    #[default]
    Never,
    /// From an earlier incarnation of the same owner.
    EarlierSelf,
    /// From this lease of the same owner.
    Of(LeaseId),
}

/// A session to begin.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSession {
    /// Its id.
    pub session_id: SessionId,
    /// Who.
    pub owner: Owner,
    /// How long it lives without a heartbeat.
    pub ttl: Ttl,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// Whose it is by the access file; the store keeps it, and judges no request by it.
    pub principal: Option<String>,
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

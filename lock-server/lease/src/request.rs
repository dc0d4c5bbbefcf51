//! Requests.

use std::fmt;

use fence_protocol::wire::lock::LeaseMode;
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Token, Ttl};

use crate::is_anothers;

/// An acquire request.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// Lock to acquire.
    pub lock: LockName,
    /// Id of the lease, chosen by the client.
    pub lease_id: LeaseId,
    /// Owner of the request.
    pub owner: Owner,
    /// Time to live of the lease.
    pub ttl: Ttl,
    /// Longest wait in the queue, in milliseconds; 0 does not wait.
    pub wait_ms: u64,
    /// Metadata that a view of the lock shows: a JSON text.
    pub metadata: Option<String>,
    /// Bound that the grant's token must exceed.
    pub min_token: Option<Token>,
    /// Session that the lease is bound to; `ttl` is ignored then.
    pub session: Option<SessionId>,
    /// Incarnation of the owner.
    pub incarnation: Option<Owner>,
    /// Leases that the request may take over at once.
    pub takeover: Takeover,
    /// Mode in which the lease shares the lock.
    pub mode: Mode,
    /// Lock-delay after an end without a release (the lease expired, or its session ended), in
    /// milliseconds; 0 for none. For datastores without a guard: writes that the holder had under
    /// way have this time to land.
    pub lock_delay_ms: u64,
    /// Principal of the access file; see [`is_anothers`].
    pub principal: Option<String>,
    /// Lease of another principal that the request may take over, because its caller may revoke it.
    pub may_supersede: Option<LeaseId>,
}

impl Acquire {
    /// Creates a request for an exclusive lease, without waiting or other options.
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
            principal: None,
            may_supersede: None,
        }
    }
}

impl Acquire {
    /// Returns whether this request, with the lease id of an earlier one, is a retry of that: of
    /// the same owner and principal.
    pub fn is_retry_of(&self, earlier: &Self) -> bool {
        let theirs = earlier.principal.as_deref();
        self.owner == earlier.owner && !is_anothers(theirs, self.principal.as_deref())
    }
}

/// Mode in which leases share a lock.
///
/// A lock has one kind at a time, from the first lease or waiter to the last: it takes exclusive
/// and shared leases, or it is a semaphore of one size. An idle lock has no kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Without another lease beside it.
    #[default]
    Exclusive,
    /// Beside other shared leases.
    Shared,
    /// One of `size` permits.
    Permit {
        /// Number of permits: 1 to [`PERMITS_MAX`](fence_protocol::wire::lock::PERMITS_MAX).
        size: u32,
    },
}

/// A revocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoke {
    /// The only lease to end; `None` for all of them.
    pub lease: Option<LeaseId>,
    /// Reason that the reply to its holder states.
    pub reason: Option<Owner>,
}

/// Leases that an acquire may take over at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// No lease.
    #[default]
    Never,
    /// A lease of an earlier incarnation of the same owner.
    EarlierSelf,
    /// This lease of the same owner.
    Of(LeaseId),
}

/// A request for a new session.
#[derive(Clone, Debug, PartialEq)]
pub struct NewSession {
    /// Id of the session, chosen by the client.
    pub session_id: SessionId,
    /// Owner of the session.
    pub owner: Owner,
    /// Time to live without a heartbeat.
    pub ttl: Ttl,
    /// A JSON text for people.
    pub metadata: Option<String>,
    /// Principal of the access file; the store keeps it, and decides nothing by it.
    pub principal: Option<String>,
}

/// A page of the held locks.
#[derive(Clone, Debug, PartialEq)]
pub struct ListQuery {
    /// Prefix of the names.
    pub prefix: String,
    /// Name that the page begins after.
    pub after: Option<LockName>,
    /// Most names.
    pub limit: usize,
    /// Of several leases the first whose owner contains this is shown.
    pub owner: Option<Owner>,
}

/// Kind of a lock while it is held or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Exclusive and shared leases.
    Lock,
    /// Permits of a semaphore.
    Semaphore {
        /// Number of permits.
        size: u32,
    },
}

impl Kind {
    /// Returns the number of permits of a semaphore.
    pub fn size(self) -> Option<u32> {
        match self {
            Self::Lock => None,
            Self::Semaphore { size } => Some(size),
        }
    }
}

impl Mode {
    /// Returns the word of the API.
    pub fn wire(self) -> LeaseMode {
        match self {
            Self::Exclusive => LeaseMode::Exclusive,
            Self::Shared => LeaseMode::Shared,
            Self::Permit { .. } => LeaseMode::Permit,
        }
    }

    /// Returns the kind of lock for this mode.
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

//! Record of a run, as its clients saw it.

use std::sync::Mutex;
use std::time::Instant;

use fence_protocol::LeaseId;

/// When a call began and when its answer was there, in nanoseconds of this run's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Before the request was sent.
    pub invoked_ns: u64,
    /// After the reply was read.
    pub returned_ns: u64,
}

impl Span {
    /// `true` if this call had its answer before the other one began.
    pub fn before(&self, other: &Self) -> bool {
        self.returned_ns < other.invoked_ns
    }
}

/// An answered acquire.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The name that was acquired.
    pub lock: String,
    /// Lease that was granted.
    pub lease: LeaseId,
    /// Its token.
    pub token: u64,
    /// The time to live that was asked for.
    pub ttl_ms: u64,
    /// When it was asked and answered.
    pub span: Span,
    /// Before the holder began to release it, where it did.
    pub released_ns: Option<u64>,
    /// Until when the last renewal, or heartbeat of its session, that was answered keeps it.
    pub kept_ns: Option<u64>,
}

impl Granted {
    /// Until when it certainly lives unless it is released: its time to live from before it was
    /// asked for, or from before it was last renewed.
    pub fn until_ns(&self) -> u64 {
        let asked = self.span.invoked_ns + self.ttl_ms * 1_000_000;
        self.kept_ns.map_or(asked, |kept| kept.max(asked))
    }
}

/// An operation at the guard.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The name whose token it carried.
    pub lock: String,
    /// The token that it carried.
    pub token: u64,
    /// Write or read.
    pub action: Action,
    /// Outcome as the caller knows it.
    pub outcome: OperationResult,
    /// When it was asked and answered. Where no answer came, when the caller gave up.
    pub span: Span,
}

/// Effect of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes `value` (unique in the run) to `key`.
    Write {
        /// Key that is written.
        key: String,
        /// Value that is written.
        value: String,
    },
    /// Seals, or reads with the token.
    Raise,
}

/// Outcome of an operation, as far as its caller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// It was answered with success.
    Applied,
    /// It was answered with a refusal: nothing was done.
    Refused,
    /// There was no answer, or one that says that the outcome is unknown.
    Unknown,
}

/// Records from many tasks at once.
#[derive(Debug)]
pub struct History {
    origin: Instant,
    grants: Mutex<Vec<Granted>>,
    operations: Mutex<Vec<Operation>>,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// An empty one; its clock starts now.
    pub fn new() -> Self {
        let grants = Mutex::default();
        let operations = Mutex::default();
        Self { origin: Instant::now(), grants, operations }
    }

    /// The run's clock, in nanoseconds.
    ///
    /// # Panics
    /// After 584 years.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).expect("a short run")
    }

    /// A call that began at `invoked_ns` and is answered now.
    pub fn since(&self, invoked_ns: u64) -> Span {
        Span { invoked_ns, returned_ns: self.now_ns() }
    }

    /// Notes a grant.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn granted(&self, grant: Granted) {
        self.grants.lock().unwrap().push(grant);
    }

    /// Notes that the holder of `lease` is about to release it.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn releasing(&self, lease: LeaseId) {
        let now = self.now_ns();
        for grant in self.grants.lock().unwrap().iter_mut().filter(|grant| grant.lease == lease) {
            grant.released_ns.get_or_insert(now);
        }
    }

    /// Notes that the lease was live when a call that began at `invoked_ns` was carried out, and is
    /// so for `ttl_ms` from then.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn kept(&self, lease: LeaseId, invoked_ns: u64, ttl_ms: u64) {
        let until_ns = invoked_ns + ttl_ms * 1_000_000;
        for grant in self.grants.lock().unwrap().iter_mut().filter(|grant| grant.lease == lease) {
            grant.kept_ns = grant.kept_ns.max(Some(until_ns));
        }
    }

    /// Time until which a lease certainly lives unless it is released, by the replies to its
    /// holder; 0 if no reply reached a holder.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn until_ns(&self, lease: LeaseId) -> u64 {
        let grants = self.grants.lock().unwrap();
        let known = grants.iter().rev().find(|grant| grant.lease == lease);
        known.map_or(0, Granted::until_ns)
    }

    /// Notes an operation at the guard.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn operation(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }

    /// All grants so far.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn grants(&self) -> Vec<Granted> {
        self.grants.lock().unwrap().clone()
    }

    /// All operations so far.
    ///
    /// # Panics
    /// If another recorder panicked.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }
}

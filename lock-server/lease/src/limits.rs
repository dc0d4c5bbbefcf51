//! Bounds of a namespace.

/// Bounds that a store enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most waiters of one lock.
    pub waiters_per_lock: usize,
    /// Most live shared leases of one lock.
    pub shared_per_lock: usize,
    /// Most waiters of this process; a request for several locks waits at each of them.
    pub waiters: usize,
    /// Most requests of this process that wait, whose connections they hold meanwhile.
    pub waiting: usize,
    /// Most locks held or remembered (memory and embedded).
    pub locks: usize,
    /// Most sessions live or remembered.
    pub sessions: usize,
    /// Most leases and waiting requests of one session.
    pub session_leases: usize,
    /// Time for which ended lease ids are remembered after a lock became idle, in milliseconds.
    pub ended_retention_ms: u64,
}

impl Limits {
    /// The name of [`waiting`](Self::waiting) in refusals.
    pub const WAITING: &str = "requests that wait (nine tenths of --max-connections)";

    /// Returns the value of [`waiting`](Self::waiting) beside so many connections: each tenth is
    /// left to probes, releases, renewals and requests that do not wait.
    pub fn waiting_of(connections: usize) -> usize {
        (connections - connections.div_ceil(10)).max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiters_per_lock: 10_000,
            shared_per_lock: 1_024,
            waiters: 100_000,
            waiting: 9_000,
            locks: 1_000_000,
            sessions: 100_000,
            session_leases: 10_000,
            ended_retention_ms: 10_000,
        }
    }
}

//! The bounds of a namespace.

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

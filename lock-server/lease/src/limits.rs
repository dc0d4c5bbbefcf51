//! Bounds of a namespace.

/// Bounds that a store enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most waiters of one lock.
    pub waiters_per_lock: usize,
    /// Most live shared leases of one lock.
    pub shared_per_lock: usize,
    /// Most waiters of this process.
    pub waiters: usize,
    /// Most locks held or remembered (memory and embedded).
    pub locks: usize,
    /// Most sessions live or remembered.
    pub sessions: usize,
    /// Most leases and waiting requests of one session.
    pub session_leases: usize,
    /// Time for which ended lease ids are remembered after a lock became idle, in milliseconds.
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

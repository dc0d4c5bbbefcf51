//! Progress of calls that wait or retry, for programs that show it.

use std::fmt;
use std::time::Duration;

use fence_protocol::LeaseId;

/// Receives the progress of a client's calls; the methods must not block. See
/// [`ClientBuilder::wait_observer`](crate::ClientBuilder::wait_observer).
pub trait WaitObserver: fmt::Debug + Send + Sync {
    /// An acquire is sent under this lease id, which is its entry in the queue.
    fn acquiring(&self, lease_id: LeaseId) {
        let _ = lease_id;
    }

    /// An attempt failed for this reason and is retried, for the `left` time if the server stays
    /// unreachable; in a wait without end that is longer than any program runs.
    fn retrying(&self, reason: &str, left: Duration) {
        let _ = (reason, left);
    }
}

/// The observer of a client that has none.
#[derive(Debug)]
pub(crate) struct Unobserved;

impl WaitObserver for Unobserved {}

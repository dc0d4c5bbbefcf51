//! Sharing mode of the leases that a command acquires.

use fence_client::{LockRequest, SessionLocks};

/// The options of the commands that acquire; exclusive without any.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kind of lock")]
pub(crate) struct Kind {
    /// Acquire a shared lease
    ///
    /// A guard serves one of several leases, the one with the newest token: read guarded data
    /// without a token where it allows that.
    #[arg(long, conflicts_with_all = ["permits", "takeover", "takeover_of"])]
    shared: bool,

    /// Acquire one permit of a semaphore of this size, 1 to 1024, the same for all
    #[arg(long, value_name = "N", conflicts_with_all = ["takeover", "takeover_of"])]
    permits: Option<u32>,
}

impl Kind {
    /// The request for a lease of this kind.
    pub(crate) fn apply(&self, request: LockRequest) -> LockRequest {
        match self.permits {
            Some(size) => request.permit(size),
            None if self.shared => request.shared(),
            None => request,
        }
    }

    /// One more lock of several.
    pub(crate) fn one_more<'s>(&self, locks: SessionLocks<'s>, lock: &str) -> SessionLocks<'s> {
        match self.permits {
            Some(size) => locks.permit(lock, size),
            None if self.shared => locks.shared(lock),
            None => locks.exclusive(lock),
        }
    }
}

//! What the port may hold of its clients' commands in all.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ClusterPort;

/// What every connection may hold without asking, in bytes.
pub(super) const FREE: usize = 64 * 1024;

/// One client's part of the budget; given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    port: Arc<ClusterPort>,
    held: usize,
}

impl Charge {
    pub(super) fn new(port: Arc<ClusterPort>) -> Self {
        Self { port, held: 0 }
    }

    /// The buffer is of this size now; `false` where the budget is spent, and then nothing is
    /// different from before.
    #[must_use]
    pub(super) fn set(&mut self, size: usize) -> bool {
        let wanted = size.saturating_sub(FREE);
        if wanted <= self.held {
            self.port.used.fetch_sub(self.held - wanted, Ordering::Relaxed);
        } else {
            let more = wanted - self.held;
            let used = self.port.used.fetch_add(more, Ordering::Relaxed) + more;
            if used > self.port.limits.max_buffer_bytes {
                self.port.used.fetch_sub(more, Ordering::Relaxed);
                return false;
            }
        }
        self.held = wanted;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.port.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

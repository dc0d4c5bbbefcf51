//! A grant on its way to its callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::engines::quorum::QuorumStore;
use crate::engines::quorum::propose::Votes;
use crate::store::Grant;

/// A grant, for one of its callers.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) grant: Grant,
    pub(crate) delivery: Arc<Delivery>,
}

impl Granted {
    /// Reads the grant for the reply; from now on it counts as delivered.
    pub(crate) fn read(self) -> Grant {
        self.delivery.arrived();
        self.grant
    }
}

/// Delivery of a grant. When it is dropped unread, the votes are rolled back: those of the attempt
/// that got it. Where another attempt has asked for the lease since, here or at another server, its
/// reply may have named them, and the nodes keep them.
#[derive(Debug)]
pub(crate) struct Delivery {
    store: QuorumStore,
    votes: Votes,
    is_over: AtomicBool,
}

impl Delivery {
    pub(crate) fn new(store: QuorumStore, votes: Votes) -> Self {
        Self { store, votes, is_over: AtomicBool::new(false) }
    }

    /// Nothing is to be rolled back.
    pub(super) fn arrived(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Rolls the grant back, because no caller is left who could read it. The returned channel
    /// closes when most nodes have dropped it, or may not have received the order; `None` if the
    /// grant was read.
    pub(crate) fn roll_back(&self) -> Option<oneshot::Receiver<()>> {
        let was_over = self.is_over.swap(true, Ordering::SeqCst);
        (!was_over).then(|| self.store.roll_back(self.votes.clone()))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // With the runtime the connections are gone as well.
        if Handle::try_current().is_ok() {
            drop(self.roll_back());
        }
    }
}

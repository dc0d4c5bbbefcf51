//! A grant on its way to those who asked for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::store::Grant;
use crate::store::quorum::QuorumStore;
use crate::store::quorum::propose::Votes;

/// A grant, for one of those who asked for it.
#[derive(Clone, Debug)]
pub(in super::super) struct Granted {
    pub(in super::super) grant: Grant,
    pub(in super::super) delivery: Arc<Delivery>,
}

impl Granted {
    /// What the caller is told; from now on somebody knows of it.
    pub(in super::super) fn read(self) -> Grant {
        self.delivery.arrived();
        self.grant
    }
}

/// Whether anybody has read a grant. When it is dropped and nobody has, the votes are taken back:
/// those of the attempt that got it. Where another attempt has asked for the lease since, here or
/// at another server, it may have been told of them, and the nodes keep them.
#[derive(Debug)]
pub(in super::super) struct Delivery {
    store: QuorumStore,
    votes: Votes,
    is_over: AtomicBool,
}

impl Delivery {
    pub(in super::super) fn new(store: QuorumStore, votes: Votes) -> Self {
        Self { store, votes, is_over: AtomicBool::new(false) }
    }

    /// Nothing is to be taken back.
    pub(super) fn arrived(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Nobody is there who could read it. What it gives ends when most nodes have let go of it, or
    /// may not have heard; none where somebody has read it.
    pub(in super::super) fn roll_back(&self) -> Option<oneshot::Receiver<()>> {
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

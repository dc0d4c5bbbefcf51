//! Owner of a request, its incarnation, and the owners that it may take a lock over from.

use std::sync::Arc;

use fence_client::{Client, Error, LockRequest, config};
use fence_protocol::LeaseId;

use crate::connect::Connect;
use crate::waiting::WaitView;

/// The options of the commands that acquire.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Takeover")]
pub(crate) struct Identity {
    /// Take the lock from an earlier incarnation of the owner, before its waiters
    ///
    /// For a command that is started again and finds its lock held by its own dead self. The owner
    /// is then user@host without --owner, so that it stays the same over a restart; name one where
    /// several different things of one user want the same lock. The earlier holder, where it still
    /// runs, has its command ended (76). Another owner's lock is never taken over, but waited for.
    #[arg(long)]
    pub(crate) takeover: bool,

    /// A text that every start of the owner changes, such as a container id or systemd's
    /// $INVOCATION_ID [default: a random id]
    ///
    /// An incarnation that was taken over is refused for as long as the lock remembers it: so two
    /// that run under one owner by mistake do not take the lock from each other in turns.
    #[arg(long, value_name = "TEXT")]
    incarnation: Option<String>,

    /// Take the lock from this lease of the owner, whose holder died
    ///
    /// For a supervisor. Where the lease has ended already, the lock is acquired like any other.
    /// The owner is user@host without --owner, as with --takeover.
    #[arg(long, value_name = "LEASE", conflicts_with = "takeover")]
    pub(crate) takeover_of: Option<LeaseId>,
}

impl Identity {
    /// The client of this owner in this life.
    pub(crate) fn client(&self, connect: &Connect, view: &Arc<WaitView>) -> Result<Client, Error> {
        self.of_session(connect, false, view)
    }

    /// Owner of a lease that may belong to a session: then the owner is the session's.
    pub(crate) fn of_session(
        &self,
        connect: &Connect,
        is_bound: bool,
        view: &Arc<WaitView>,
    ) -> Result<Client, Error> {
        let mut builder = connect.builder()?.wait_observer(view.clone());
        let takes_over = self.takeover || self.takeover_of.is_some();
        if takes_over && connect.owner.is_none() && !is_bound {
            builder = builder.owner(config::stable_owner());
        }
        if let Some(incarnation) = &self.incarnation {
            builder = builder.incarnation(incarnation);
        }
        builder.build()
    }

    /// The request with what it may take over.
    pub(crate) fn apply(&self, request: LockRequest) -> LockRequest {
        match self.takeover_of {
            Some(lease_id) => request.takeover_of(lease_id),
            None if self.takeover => request.takeover(),
            None => request,
        }
    }
}

//! An operation that waits in its lane.

use std::time::Duration;

use fence_protocol::LockName;
use tokio::sync::oneshot;

use super::Lanes;
use crate::doors::http_proxy::lane::{Event, Kind, OpId, Why};

/// One waiting operation. Dropping it takes the operation out of the lane.
pub(super) struct Waiter<'a> {
    lanes: &'a Lanes,
    lock: LockName,
    op: OpId,
    kind: Kind,
    reply: oneshot::Receiver<Result<(), Why>>,
    is_decided: bool,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(
        lanes: &'a Lanes,
        lock: LockName,
        op: OpId,
        kind: Kind,
        reply: oneshot::Receiver<Result<(), Why>>,
    ) -> Self {
        Self { lanes, lock, op, kind, reply, is_decided: false }
    }

    /// Waits for the decision, and abandons the lane after `patience`. `None` if the lane failed.
    pub(super) async fn wait(mut self, patience: Duration) -> Option<Result<(), Why>> {
        let decided = match tokio::time::timeout(patience, &mut self.reply).await {
            Ok(decided) => decided,
            Err(_) => {
                self.lanes.feed(&self.lock, Event::Abandoned { op: self.op });
                // It left the queue just now, or was decided before.
                (&mut self.reply).await
            }
        };
        self.is_decided = true;
        decided.ok()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.is_decided {
            return;
        }
        self.lanes.feed(&self.lock, Event::Abandoned { op: self.op });
        // Admitted in the meantime, and certainly never sent.
        if let Ok(Ok(())) = self.reply.try_recv()
            && self.kind != Kind::Seal
        {
            self.lanes.feed(&self.lock, Event::Ended { kind: self.kind });
        }
    }
}

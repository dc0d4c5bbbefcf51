//! Requests are not decided one by one: a larger batch costs little more than a small one, so what
//! arrives in one turn of the event loop is decided together at its end.

use std::sync::Arc;
use std::thread::ThreadId;

use tokio::runtime::Handle;

use super::op::Op;
use super::{DriverInner, is_local};
use crate::store::StoreError;

/// Most requests that may wait for a decision; more are refused, not queued.
const INBOX: usize = 16_384;

impl DriverInner {
    /// Queues a request. Unless it has to wait for a batch that is under way, it is decided
    /// together with all others of this turn of the event loop.
    pub(super) fn submit(self: &Arc<Self>, op: Box<dyn Op>) -> Result<(), StoreError> {
        let here = Handle::try_current().ok();
        if self.local.get().is_none()
            && let Some(here) = here.as_ref().filter(|here| is_local(here))
        {
            let _ = self.local.set(here.clone());
        }
        let thread = std::thread::current().id();
        {
            let state = &mut *self.state();
            if let Some(reason) = &state.core.failed {
                let text = format!("the lease store failed: {reason}; restart this server");
                return Err(StoreError::Unavailable(text));
            }
            // A withdrawal that is refused would leave its entry in the queue.
            let is_bounded = op.withdrawn().is_none();
            let waiting = state.core.pending.len() + state.core.in_flight.held_back();
            if is_bounded && waiting >= INBOX {
                return Err(StoreError::Limit {
                    what: "requests that wait for the store",
                    limit: INBOX as u64,
                });
            }
            state.core.pending.push_back(op);
            if !self.has_room(state) || here.is_some() && state.turns.contains(&thread) {
                return Ok(());
            }
            if here.is_some() {
                state.turns.push(thread);
            }
        }
        if here.is_some() {
            let turn = Turn { inner: self.clone(), thread, is_over: false };
            self.kit.tasks.spawn_here(turn.end());
        } else {
            self.commit_waiting();
        }
        Ok(())
    }

    /// Decides the waiting requests and everything due, unless enough batches are under way.
    pub(super) fn commit_waiting(self: &Arc<Self>) {
        loop {
            let (submission, waits) = {
                let state = &mut *self.state();
                (self.next_submission(state), !state.core.pending.is_empty())
            };
            let may_be_more = submission.is_some() && waits;
            self.commit_all(submission);
            if !may_be_more {
                return;
            }
        }
    }
}

/// A turn of the event loop: what is submitted in it is decided together.
struct Turn {
    inner: Arc<DriverInner>,
    /// The thread that it began on.
    thread: ThreadId,
    is_over: bool,
}

impl Turn {
    /// Decides once the runtime has looked at the sockets, and run the tasks that these woke.
    async fn end(mut self) {
        tokio::task::yield_now().await;
        self.forget();
        self.inner.commit_waiting();
        self.is_over = true;
    }

    /// Lets the next request of its thread begin another turn.
    fn forget(&self) {
        self.inner.state().turns.retain(|thread| *thread != self.thread);
    }
}

impl Drop for Turn {
    /// The runtime of a thread may end before the turn does: the requests of the others are then
    /// decided elsewhere.
    fn drop(&mut self) {
        if !self.is_over {
            self.forget();
            let inner = self.inner.clone();
            self.inner.kit.tasks.spawn(async move { inner.commit_waiting() });
        }
    }
}

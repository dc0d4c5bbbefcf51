//! Reports of lock events for observers. No decision depends on them.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use fence_protocol::LockName;
use fence_protocol::wire::event::{Event, EventKind};

use super::Acquire;
use crate::engines::contract::ServerId;

/// Waiting time after which a request is reported as queued.
const QUEUED_AFTER: Duration = Duration::from_millis(100);

/// Receiver of the events of a store. It never blocks.
pub trait Report: fmt::Debug + Send + Sync + 'static {
    /// Receives events, in order.
    fn report(&self, events: Vec<Event>);

    /// Returns the locks that a server has granted, as far as remembered, and whose leases have not
    /// ended: once that server is dead, another one has to watch their expiry.
    fn granted_by(&self, server: ServerId) -> Vec<LockName>;
}

/// Creates the event of a queued request.
fn queued(request: &Acquire) -> Event {
    let mut event = Event::new(EventKind::Queued).lock(&request.lock).lease(request.lease_id);
    (event.owner, event.session_id) = (Some(request.owner.clone()), request.session);
    event.mode = request.mode.wire();
    event
}

/// Awaits the reply to requests that may wait in queues. After `QUEUED_AFTER` they are reported
/// as queued, and as left if they end without a grant or this future is dropped.
pub(crate) async fn report_waiting<T, E>(
    reports: &dyn Report,
    parts: &[Acquire],
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        result = &mut answer => return result,
        () = tokio::time::sleep(QUEUED_AFTER) => {}
    }
    let mut left = Left { reports, events: parts.iter().map(queued).collect() };
    reports.report(left.events.clone());
    let result = answer.await;
    if result.is_ok() {
        // The grant is reported instead.
        left.events.clear();
    }
    result
}

/// Requests that were reported as queued. Dropped, they have left without a grant.
struct Left<'a> {
    reports: &'a dyn Report,
    events: Vec<Event>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let left = self.events.drain(..).map(|event| Event { kind: EventKind::Left, ..event });
        let left: Vec<Event> = left.collect();
        if !left.is_empty() {
            self.reports.report(left);
        }
    }
}

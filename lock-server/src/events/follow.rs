//! Looks at leases whose time is over, and tells what the store says of their end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::wire::lock::LockReply;
use fence_protocol::{LeaseId, LockName};
use futures_util::future::join_all;
use service_kit::Kit;

use super::Events;
use crate::store::{LockStore, StoreError};

/// How many locks are asked about at the same time: it bounds what this costs the store.
const BATCH: usize = 32;
/// How long to rest when nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);
/// When to ask again after the store did not answer.
const AGAIN_MS: u64 = 1_000;

/// Follows leases until shutdown, or until the store is gone.
pub(super) fn start(events: &Events, store: &Arc<dyn LockStore>, kit: &Kit) {
    // The store must be able to end while this waits.
    let (events, store, stop) = (events.clone(), Arc::downgrade(store), kit.tasks.shutdown_token());
    kit.tasks.spawn(async move {
        stop.run_until_cancelled(follow(&events, &store)).await;
    });
}

async fn follow(events: &Events, store: &Weak<dyn LockStore>) {
    loop {
        let sooner = events.inner.sooner.notified();
        let now_ms = events.inner.clock.monotonic_ms();
        let (due, next_ms) = {
            let mut state = events.state();
            let due = state.deadlines.take_due(now_ms, BATCH);
            (due, state.deadlines.next_ms())
        };
        if due.is_empty() {
            let rest = next_ms.map_or(IDLE, |at_ms| Duration::from_millis(at_ms - now_ms));
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = sooner => {}
            }
            continue;
        }
        let Some(store) = store.upgrade() else { return };
        let looks = due.into_iter().map(|(lease_id, lock)| {
            let store = &store;
            async move {
                let shown = store.show(&lock).await;
                (lease_id, lock, shown)
            }
        });
        for (lease_id, lock, shown) in join_all(looks).await {
            settle(events, lease_id, &lock, shown);
        }
    }
}

fn settle(
    events: &Events,
    lease_id: LeaseId,
    lock: &LockName,
    shown: Result<LockReply, StoreError>,
) {
    let now_ms = events.inner.clock.monotonic_ms();
    let Ok(shown) = shown else {
        events.state().deadlines.look(lease_id, now_ms + AGAIN_MS);
        return;
    };
    if let Some(holder) = shown.holder.as_ref().filter(|holder| holder.lease_id == lease_id) {
        let expires_in_ms = holder.info.expires_in_ms;
        events.state().deadlines.lives(lease_id, now_ms, expires_in_ms);
        return;
    }
    let event = match shown.history.iter().find(|ended| ended.lease_id == lease_id) {
        Some(ended) => {
            let mut event = Event::new(EventKind::of_end(ended.reason));
            (event.token, event.owner) = (ended.token, ended.owner.clone());
            event.held_ms = Some(ended.held_ms);
            event
        }
        None => {
            let token = events.state().deadlines.of(lease_id).and_then(|known| known.token);
            let mut event = Event::new(EventKind::Gap)
                .text("the lease has ended, and how is not remembered any more");
            event.token = token;
            event
        }
    };
    events.tell(event.lock(lock).lease(lease_id));
    events.state().deadlines.forget(lease_id);
}

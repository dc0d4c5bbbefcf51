//! Reads expired leases from the store, and publishes how they ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::wire::lock::LockReply;
use futures_util::future::join_all;
use service_kit::Kit;

use super::Events;
use super::deadlines::Key;
use crate::store::{LockStore, StoreError};

/// Number of locks that are read at the same time: it bounds the load on the store.
const BATCH: usize = 32;
/// Pause when nothing is due.
const IDLE: Duration = Duration::from_secs(3_600);
/// Pause before a retry when the store did not reply, in milliseconds.
const AGAIN_MS: u64 = 1_000;
/// Pause before a retry when a lock has more leases than were listed, in milliseconds.
const UNLISTED_MS: u64 = 30_000;

/// Follows leases until shutdown, or until the store is gone.
pub(super) fn start(events: &Events, store: &Arc<dyn LockStore>, kit: &Kit) {
    // The store must be able to end while this waits.
    let events = events.clone();
    let store = Arc::downgrade(store);
    let stop = kit.tasks.shutdown_token();
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
        let looks = due.into_iter().map(|key| {
            let store = &store;
            async move {
                let shown = store.show(&key.0).await;
                (key, shown)
            }
        });
        for (key, shown) in join_all(looks).await {
            settle(events, &key, shown);
        }
    }
}

fn settle(events: &Events, key: &Key, shown: Result<LockReply, StoreError>) {
    let (lock, lease_id) = key;
    let now_ms = events.inner.clock.monotonic_ms();
    let Ok(shown) = shown else {
        events.state().deadlines.make_due(key, now_ms + AGAIN_MS);
        return;
    };
    let mut live = shown.holder.iter().chain(&shown.also_held);
    if let Some(holder) = live.find(|holder| holder.lease_id == *lease_id) {
        events.state().deadlines.extend(key, now_ms, holder.info.expires_in_ms);
        return;
    }
    let ended = shown.history.iter().find(|ended| ended.lease_id == *lease_id);
    let listed = usize::from(shown.holder.is_some()) + shown.also_held.len();
    if ended.is_none() && shown.lease_count > listed {
        // It may be live and not listed.
        events.state().deadlines.make_due(key, now_ms + UNLISTED_MS);
        return;
    }
    let event = match ended {
        Some(ended) => {
            let mut event = Event::new(EventKind::of_end(ended.reason));
            (event.token, event.owner) = (ended.token, ended.owner.clone());
            event.held_ms = Some(ended.held_ms);
            if let Some(why) = &ended.why {
                event = event.text(why.to_string());
            }
            event
        }
        None => {
            let token = events.state().deadlines.lease(key).and_then(|known| known.token);
            let mut event = Event::new(EventKind::Gap)
                .text("the lease has ended; the store no longer remembers how");
            event.token = token;
            event
        }
    };
    events.publish(event.lock(lock).lease(*lease_id));
    events.state().deadlines.forget(key);
}

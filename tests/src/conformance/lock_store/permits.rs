//! Counting semaphores: so many permits, each with a token.

use std::sync::atomic::{AtomicI64, Ordering};

use super::kinds::acquire_recorded;
use super::sessions::begin;
use super::*;
use crate::checks;
use crate::history::History;

/// So many at once, neither fewer nor more.
pub async fn permits_are_as_many_as_the_size(store: &Store) {
    for size in [1, 2, 5] {
        let lock = format!("permits/{size}");
        let mut last = None;
        for _ in 0..size {
            let grant = take(store, permit(&lock, size, 0)).await;
            assert_eq!(grant.mode, Mode::Permit { size });
            assert!(last.as_ref().is_none_or(|last: &Grant| last.token < grant.token));
            last = Some(grant);
        }
        refused(store, permit(&lock, size, 0)).await;
        let shown = store.show(&name(&lock)).await.unwrap();
        assert_eq!((shown.size, shown.lease_count), (Some(size), size as usize));
        released(store, &lock, last.unwrap().lease_id).await;
        take(store, permit(&lock, size, 0)).await;
        refused(store, permit(&lock, size, 0)).await;
    }
}

/// Many tasks, three permits: all get one again and again, and at no moment are there four.
pub async fn permits_never_exceed_the_size(store: &Store) {
    let inside = Arc::new(AtomicI64::new(0));
    let history = Arc::new(History::new());
    let workers = (0..12).map(|_| {
        let store = store.clone();
        let inside = inside.clone();
        let history = history.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                let lease = acquire_recorded(&store, &history, permit("pool", 3, LONG_MS)).await;
                let before = inside.fetch_add(1, Ordering::SeqCst);
                assert!(before < 3, "{} permits of 3", before + 1);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                released(&store, "pool", lease).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon("a worker", worker).await.unwrap();
    }
    assert_eq!(history.grants().len(), 120);
    checks::tokens_rise(&history.grants()).unwrap();
    assert_eq!(store.show(&name("pool")).await.unwrap().lease_count, 0);
}

/// A newcomer never gets a permit for which another client waits.
pub async fn a_permit_is_waited_for_in_order(store: &Store) {
    let one = take(store, permit("order", 2, 0)).await;
    let two = take(store, permit("order", 2, 0)).await;
    let third = enqueue(store, permit("order", 2, LONG_MS)).await;
    let fourth = enqueue(store, permit("order", 2, LONG_MS)).await;
    let fifth = enqueue(store, permit("order", 2, LONG_MS)).await;
    let mut last = two.token;
    for (done, next) in [(one, third), (two, fourth)] {
        released(store, "order", done.lease_id).await;
        refused(store, permit("order", 2, 0)).await;
        let next = granted(next).await;
        assert!(next.token > last);
        last = next.token;
    }
    assert!(!fifth.is_finished(), "a third permit of two");
    fifth.abort();
    until_queued(store, "order", 0).await;
}

/// Two permits of one lock are two leases of the session: both are kept, shown and ended with it.
pub async fn a_session_holds_several_permits_of_one_lock(store: &Store) {
    let session = begin(store, LONG_MS).await;
    let bound = |wait_ms| Acquire { session: Some(session), ..permit("several", 3, wait_ms) };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(take(store, bound(0)).await);
    }
    let beat = store.heartbeat(session).await.unwrap();
    assert_eq!(beat.lease_count, 3);
    let shown = store.show_session(session).await.unwrap();
    let mut leases: Vec<_> = shown.leases.iter().map(|lease| lease.lease_id).collect();
    let mut expected: Vec<_> = held.iter().map(|grant| grant.lease_id).collect();
    leases.sort_unstable();
    expected.sort_unstable();
    assert_eq!(leases, expected);
    released(store, "several", held[1].lease_id).await;
    assert_eq!(store.heartbeat(session).await.unwrap().lease_count, 2);
    let other = take(store, permit("several", 3, 0)).await;
    let waits = enqueue(store, permit("several", 3, LONG_MS)).await;
    let own = enqueue(store, bound(LONG_MS)).await;
    assert_eq!(store.end_session(session).await.unwrap().lease_count, 3);
    granted(waits).await;
    let refused = soon("its own waiter to be refused", own).await.unwrap();
    assert!(matches!(refused, Err(StoreError::Session(_))), "{refused:?}");
    assert_eq!(store.show(&name("several")).await.unwrap().lease_count, 2);
    for grant in [&held[0], &held[2]] {
        let late = store.renew(&name("several"), grant.lease_id, None).await;
        assert_eq!(lost(late), EndReason::SessionEnded);
    }
    store.renew(&name("several"), other.lease_id, None).await.unwrap();
}

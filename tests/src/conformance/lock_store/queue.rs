//! Waiting: first come, first served; a client that has gone holds up no waiter.

use std::pin::Pin;

use super::*;

/// Five waiters are served in the order in which they came, with rising tokens.
pub async fn waiters_are_served_in_order(store: &Store) {
    let mut last = grant(store, "fifo", LONG_MS).await;
    let mut queue = Vec::new();
    for _ in 0..5 {
        queue.push(enqueue(store, request("fifo", LONG_MS, LONG_MS)).await);
    }
    let order: Vec<_> = store.show(&name("fifo")).await.unwrap().queue;
    for (waiting, expected) in queue.into_iter().zip(order) {
        assert_eq!(released(store, "fifo", last.lease_id).await, last.token);
        let next = granted(waiting).await;
        assert_eq!(next.lease_id, expected.lease_id);
        assert!(next.token > last.token);
        last = next;
    }
    assert_eq!(store.show(&name("fifo")).await.unwrap().queue_length, 0);
}

/// While a client waits, a newcomer never gets the lock, whatever the moment of its request.
pub async fn no_waiter_overtakes_the_queue(store: &Store) {
    let first = grant(store, "barging", LONG_MS).await;
    let waiting = enqueue(store, request("barging", LONG_MS, LONG_MS)).await;
    let own = store.clone();
    let barging = tokio::spawn(async move {
        for _ in 0..20 {
            let outcome = own.acquire(request("barging", LONG_MS, 0)).await;
            assert!(matches!(outcome, Err(StoreError::Held { .. })), "overtaken: {outcome:?}");
        }
    });
    released(store, "barging", first.lease_id).await;
    granted(waiting).await;
    soon("the newcomer", barging).await.unwrap();
}

/// An expired lease is not released, and still the next waiter gets the lock long before it
/// times out.
pub async fn expiry_wakes_the_next_waiter(store: &Store) {
    let short = brief(store, request("wakes", LONG_MS, 0)).await;
    let first = enqueue(store, request("wakes", LONG_MS, LONG_MS)).await;
    let second = enqueue(store, request("wakes", LONG_MS, LONG_MS)).await;
    let first = granted(first).await;
    shorten(store, "wakes", first.lease_id).await;
    let second = granted(second).await;
    assert!(short.token < first.token && first.token < second.token);
    let history = store.show(&name("wakes")).await.unwrap().history;
    assert_eq!(history[0].lease_id, first.lease_id);
    assert!(history.iter().all(|ended| ended.reason == EndReason::Expired));
}

/// An operator's revocation hands the lock to the next waiter in the same step.
pub async fn revoking_wakes_the_next_waiter(store: &Store) {
    let first = grant(store, "revoke-wakes", LONG_MS).await;
    let waiting = enqueue(store, request("revoke-wakes", LONG_MS, LONG_MS)).await;
    store.revoke(&name("revoke-wakes"), Revoke::default()).await.unwrap();
    assert!(granted(waiting).await.token > first.token);
}

/// A waiter whose caller has gone leaves the queue; those behind it move up.
pub async fn a_waiter_that_leaves_is_skipped(store: &Store) {
    let first = grant(store, "leaves", LONG_MS).await;
    let gone = enqueue(store, request("leaves", LONG_MS, LONG_MS)).await;
    let stays = enqueue(store, request("leaves", LONG_MS, LONG_MS)).await;
    gone.abort();
    until_true("the dead waiter to leave", || async {
        store.show(&name("leaves")).await.unwrap().queue_length == 1
    })
    .await;
    released(store, "leaves", first.lease_id).await;
    let next = granted(stays).await;
    // Alone again: the last one that leaves frees the lock for everybody.
    let last = enqueue(store, request("leaves", LONG_MS, LONG_MS)).await;
    last.abort();
    until_true("the queue to be empty", || async {
        store.show(&name("leaves")).await.unwrap().queue_length == 0
    })
    .await;
    released(store, "leaves", next.lease_id).await;
    grant(store, "leaves", LONG_MS).await;
}

/// A release of an id that waits takes it out of the queue for good.
pub async fn a_waiter_that_is_released_never_gets_the_lock(store: &Store) {
    let first = grant(store, "unqueued", LONG_MS).await;
    let asked = request("unqueued", LONG_MS, LONG_MS);
    let waiting = enqueue(store, asked.clone()).await;
    let outcome = store.release(&asked.lock, asked.lease_id).await;
    assert!(matches!(outcome, Err(StoreError::Lost { .. })), "{outcome:?}");
    let ended = soon("the waiter to be refused", waiting).await.unwrap();
    assert_eq!(lost(ended), EndReason::Released);
    released(store, "unqueued", first.lease_id).await;
    assert_eq!(lost(store.acquire(asked).await), EndReason::Released);
    grant(store, "unqueued", LONG_MS).await;
}

/// A client that lost its connection asks again with the same id: one place, the old one.
pub async fn a_waiting_id_that_repeats_keeps_its_place(store: &Store) {
    let first = grant(store, "repeat", LONG_MS).await;
    let asked = request("repeat", LONG_MS, LONG_MS);
    let original = enqueue(store, asked.clone()).await;
    let other = enqueue(store, request("repeat", LONG_MS, LONG_MS)).await;
    let repeat = enqueue(store, asked.clone()).await;
    assert_eq!(store.show(&asked.lock).await.unwrap().queue_length, 2);
    released(store, "repeat", first.lease_id).await;
    let next = until("one of the two calls to be answered", || async {
        (original.is_finished() || repeat.is_finished()).then_some(())
    });
    next.await;
    let holder = store.show(&asked.lock).await.unwrap().holder.unwrap();
    assert_eq!(holder.lease_id, asked.lease_id);
    let answer = if repeat.is_finished() { repeat } else { original };
    assert_eq!(granted(answer).await.token, holder.info.token);
    released(store, "repeat", asked.lease_id).await;
    granted(other).await;
}

/// Waits in the queue without a task of its own, so that the case decides when the caller looks.
async fn wait_unwatched<'a>(
    store: &'a Store,
    asked: &Acquire,
) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
    let mut waiting = Box::pin({
        let asked = asked.clone();
        async move { store.acquire(asked).await }
    });
    tokio::select! {
        outcome = &mut waiting => panic!("it did not wait: {outcome:?}"),
        () = until_true("a place in the queue", || async {
            store.show(&asked.lock).await.unwrap().queue_length == 1
        }) => {}
    }
    waiting
}

async fn holder_is(store: &Store, asked: &Acquire) -> bool {
    let holder = store.show(&asked.lock).await.unwrap().holder;
    holder.is_some_and(|holder| holder.lease_id == asked.lease_id)
}

/// The lock was handed to a waiter whose caller goes away before it looks: it is handed on at once,
/// not when the lease would end.
pub async fn an_undelivered_grant_is_rolled_back(store: &Store) {
    let asked = rolled_back(store, "undelivered").await;
    // An engine that takes back the attempt alone does not know its id any more, and the lock is
    // another's by now.
    match store.acquire(asked).await {
        Err(StoreError::Lost { reason: EndReason::Released, .. } | StoreError::Held { .. }) => {}
        other => panic!("it was rolled back: {other:?}"),
    }
}

/// On a store that remembers ids once for all nodes, the id of a rolled back grant has ended.
pub async fn a_grant_that_was_rolled_back_has_ended(store: &Store) {
    let asked = rolled_back(store, "undelivered-ended").await;
    assert_eq!(lost(store.acquire(asked).await), EndReason::Released);
}

/// Request that retries, without waiting, a lease whose grant reached no client; another client has
/// the lock.
async fn rolled_back(store: &Store, lock: &str) -> Acquire {
    let first = grant(store, lock, LONG_MS).await;
    let asked = request(lock, LONG_MS, LONG_MS);
    let waiting = wait_unwatched(store, &asked).await;
    released(store, lock, first.lease_id).await;
    until_true("the grant", || holder_is(store, &asked)).await;
    drop(waiting);
    let next = soon("the lock", store.acquire(request(lock, LONG_MS, LONG_MS))).await;
    assert!(next.unwrap().token > first.token);
    Acquire { wait_ms: 0, ..asked }
}

/// The caller lost its connection, retried and got the grant: the late notice that the first
/// call is gone must not take it away.
pub async fn a_grant_that_was_asked_for_again_is_not_rolled_back(store: &Store) {
    let first = grant(store, "again", LONG_MS).await;
    let asked = request("again", LONG_MS, LONG_MS);
    let waiting = wait_unwatched(store, &asked).await;
    released(store, "again", first.lease_id).await;
    until_true("the grant", || holder_is(store, &asked)).await;
    let again = store.acquire(asked.clone()).await.unwrap();
    drop(waiting);
    for _ in 0..50 {
        // Each of these comes after the word that the first call is gone, or makes room for it.
        assert!(holder_is(store, &asked).await, "the lease was taken from its holder");
    }
    assert_eq!(store.renew(&asked.lock, asked.lease_id, None).await.unwrap().token, again.token);
}

//! Lock-delay: a place stays closed after a lease that ended without its holder's word.

use fence_protocol::wire::lock::LockState;
use lock_server::store::{Kind, ListQuery};

use super::sessions::begin;
use super::*;

/// A delay that no test outlasts.
const LONG_DELAY_MS: u64 = LONG_MS;

fn delayed(request: Acquire, lock_delay_ms: u64) -> Acquire {
    Acquire { lock_delay_ms, ..request }
}

async fn until_delayed(store: &Store, lock: &str) -> u64 {
    until(&format!("{lock} to be delayed"), || async {
        let shown = store.show(&name(lock)).await.unwrap();
        shown.delayed_ms.filter(|_| shown.lease_count == 0)
    })
    .await
}

/// The lease has ended and is reported as ended; the lock is granted only after the lock-delay, to
/// the waiter.
pub async fn a_delay_closes_the_lock_after_expiry(store: &Store) {
    let delay_ms = 3 * SHORT_MS;
    let first = brief(store, delayed(request("delay", LONG_MS, 0), delay_ms)).await;
    let next = soon("the lock", store.acquire(request("delay", LONG_MS, LONG_MS))).await.unwrap();
    assert!(next.token > first.token);
    let history = store.show(&name("delay")).await.unwrap().history;
    assert_eq!((history.len(), history[0].reason), (1, EndReason::Expired));
    let ago_ms = history[0].ended_ms_ago;
    assert!(ago_ms >= delay_ms, "granted {ago_ms} ms after the end, in the delay");

    take(store, delayed(request("delay/live", LONG_MS, 0), LONG_DELAY_MS)).await;
    let shown = store.show(&name("delay/live")).await.unwrap();
    assert_eq!((shown.state, shown.delayed_ms), (LockState::Held, None));

    let asked = delayed(request("delay/long", LONG_MS, 0), LONG_DELAY_MS);
    let first = brief(store, asked.clone()).await;
    let rest_ms = until_delayed(store, "delay/long").await;
    assert!(rest_ms > 0 && rest_ms <= LONG_DELAY_MS);
    let shown = store.show(&asked.lock).await.unwrap();
    assert_eq!((shown.state, shown.lease_count, shown.size), (LockState::Delayed, 0, None));
    assert!(shown.holder.is_none() && shown.also_held.is_empty());
    assert_eq!(shown.history[0].reason, EndReason::Expired);
    let holder = refused(store, request("delay/long", LONG_MS, 0)).await;
    assert_eq!((holder.token, &holder.owner), (first.token, &first.owner));
    assert!(holder.expires_in_ms <= LONG_DELAY_MS && holder.expires_in_ms > 2 * SHORT_MS);
    // No lease is there to renew, release, repeat or take over.
    assert_eq!(lost(store.renew(&asked.lock, first.lease_id, None).await), EndReason::Expired);
    let gone = store.release(&asked.lock, first.lease_id).await.unwrap_err();
    assert_eq!(gone, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true });
    assert_eq!(lost(store.acquire(asked.clone()).await), EndReason::Expired);
    let heir =
        Acquire { takeover: Takeover::Of(first.lease_id), ..request("delay/long", LONG_MS, 0) };
    refused(store, heir).await;
    let query = ListQuery { prefix: "delay/long".to_owned(), after: None, limit: 10, owner: None };
    let listed = store.list(query).await.unwrap().locks;
    let delayed = listed[0].holder.as_ref().unwrap();
    assert_eq!((listed.len(), delayed.token, listed[0].lease_count), (1, first.token, 0));
}

/// A session that ended has not said that its work is done either.
pub async fn a_delay_closes_the_lock_after_a_session(store: &Store) {
    let session = begin(store, LONG_MS).await;
    for lock in ["delay/session/a", "delay/session/b"] {
        let asked = delayed(request(lock, LONG_MS, 0), LONG_DELAY_MS);
        take(store, Acquire { session: Some(session), ..asked }).await;
    }
    released_bound(store, session, "delay/session/b").await;
    store.end_session(session).await.unwrap();
    until_delayed(store, "delay/session/a").await;
    let shown = store.show(&name("delay/session/a")).await.unwrap();
    assert_eq!(shown.history[0].reason, EndReason::SessionEnded);
    refused(store, request("delay/session/a", LONG_MS, 0)).await;
    take(store, request("delay/session/b", LONG_MS, 0)).await;
}

async fn released_bound(store: &Store, session: fence_protocol::SessionId, lock: &str) {
    let shown = store.show_session(session).await.unwrap();
    let lease = shown.leases.iter().find(|lease| lease.lock.as_str() == lock).unwrap();
    released(store, lock, lease.lease_id).await;
}

/// Released, revoked, superseded by the owner, or never received: no write of it is under way.
pub async fn a_holders_word_leaves_no_delay(store: &Store) {
    let closing = |lock: &str, wait_ms| delayed(request(lock, LONG_MS, wait_ms), LONG_DELAY_MS);
    let first = take(store, closing("word/released", 0)).await;
    released(store, "word/released", first.lease_id).await;
    take(store, request("word/released", LONG_MS, 0)).await;

    take(store, closing("word/revoked", 0)).await;
    store.revoke(&name("word/revoked"), Revoke::default()).await.unwrap();
    take(store, request("word/revoked", LONG_MS, 0)).await;

    let first = take(store, closing("word/superseded", 0)).await;
    let heir = Acquire {
        takeover: Takeover::Of(first.lease_id),
        ..request("word/superseded", LONG_MS, 0)
    };
    let heir = take(store, heir).await;
    released(store, "word/superseded", heir.lease_id).await;
    take(store, request("word/superseded", LONG_MS, 0)).await;

    let first = take(store, closing("word/unheard", 0)).await;
    let asked = closing("word/unheard", LONG_MS);
    let mut waiting = Box::pin({
        let asked = asked.clone();
        async move { store.acquire(asked).await }
    });
    tokio::select! {
        outcome = &mut waiting => panic!("it did not wait: {outcome:?}"),
        () = until_queued(store, "word/unheard", 1) => {}
    }
    released(store, "word/unheard", first.lease_id).await;
    until_true("the grant", || async {
        let holder = store.show(&asked.lock).await.unwrap().holder;
        holder.is_some_and(|holder| holder.lease_id == asked.lease_id)
    })
    .await;
    drop(waiting);
    soon("the lock", store.acquire(request("word/unheard", LONG_MS, LONG_MS))).await.unwrap();
}

/// Of a semaphore one permit is closed; the others are there, and the size stays what it is.
pub async fn a_delay_closes_one_place_of_several(store: &Store) {
    brief(store, delayed(permit("delay/pool", 2, 0), LONG_DELAY_MS)).await;
    until_delayed(store, "delay/pool").await;
    let other = store.acquire(permit("delay/pool", 3, 0)).await.unwrap_err();
    assert_eq!(other, StoreError::OtherKind(Kind::Semaphore { size: 2 }));
    let second = take(store, permit("delay/pool", 2, 0)).await;
    refused(store, permit("delay/pool", 2, 0)).await;
    let shown = store.show(&name("delay/pool")).await.unwrap();
    assert_eq!((shown.state, shown.lease_count, shown.size), (LockState::Held, 1, Some(2)));
    assert!(shown.delayed_ms.is_some());
    assert_eq!(shown.holder.unwrap().lease_id, second.lease_id);
    released(store, "delay/pool", second.lease_id).await;
    take(store, permit("delay/pool", 2, 0)).await;
}

/// The lock-delay after a reader holds up no reader, only a writer.
pub async fn a_delay_keeps_writers_out_and_lets_readers_in(store: &Store) {
    brief(store, delayed(shared("delay/read", LONG_MS, 0), LONG_DELAY_MS)).await;
    until_delayed(store, "delay/read").await;
    let reader = take(store, shared("delay/read", LONG_MS, 0)).await;
    released(store, "delay/read", reader.lease_id).await;
    refused(store, request("delay/read", LONG_MS, 0)).await;
    until_delayed(store, "delay/read").await;
}

/// An operator lifts the lock-delay; the waiter gets the lock in the same step.
pub async fn a_delay_is_lifted_by_a_revocation(store: &Store) {
    let first = brief(store, delayed(request("lifted-delay", LONG_MS, 0), LONG_DELAY_MS)).await;
    until_delayed(store, "lifted-delay").await;
    let lock = name("lifted-delay");
    let only = Revoke { lease: Some(first.lease_id), reason: None };
    let gone = store.revoke(&lock, only).await.unwrap_err();
    assert_eq!(gone, StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true });
    until_delayed(store, "lifted-delay").await;
    let waiting = enqueue(store, request("lifted-delay", LONG_MS, LONG_MS)).await;
    assert_eq!(store.revoke(&lock, Revoke::default()).await.unwrap(), Vec::new());
    let next = granted(waiting).await;
    assert_eq!(store.show(&lock).await.unwrap().delayed_ms, None);
    released(store, "lifted-delay", next.lease_id).await;
    let nothing = store.revoke(&lock, Revoke::default()).await.unwrap_err();
    assert_eq!(nothing, StoreError::NotHeld);
    // Beside a live lease both go.
    brief(store, delayed(permit("lifted-delay/pool", 2, 0), LONG_DELAY_MS)).await;
    until_delayed(store, "lifted-delay/pool").await;
    let live = take(store, permit("lifted-delay/pool", 2, 0)).await;
    let ended = store.revoke(&name("lifted-delay/pool"), Revoke::default()).await.unwrap();
    assert_eq!((ended.len(), ended[0].lease_id), (1, live.lease_id));
    take(store, request("lifted-delay/pool", LONG_MS, 0)).await;
}

/// A group waits for a closed lock as for a held one, and its own leases close their locks.
pub async fn a_group_waits_for_a_delay(store: &Store) {
    brief(store, delayed(request("delay-group/b", LONG_MS, 0), 3 * SHORT_MS)).await;
    let mut asked = super::groups::parts(LONG_MS, &["delay-group/a", "delay-group/b"]);
    for part in &mut asked {
        part.lock_delay_ms = LONG_DELAY_MS;
    }
    let lease = asked[0].lease_id;
    soon("the group", store.acquire_all(asked)).await.unwrap();
    let before = store.show(&name("delay-group/b")).await.unwrap().history.remove(0);
    assert!(before.ended_ms_ago >= 3 * SHORT_MS, "granted in the delay: {before:?}");
    for lock in ["delay-group/a", "delay-group/b"] {
        shorten(store, lock, lease).await;
        until_delayed(store, lock).await;
        refused(store, request(lock, LONG_MS, 0)).await;
    }
}

/// State of kinds, groups and lock-delays that [`reopened`] writes and reads again.
pub(super) async fn left(store: &Store) {
    for number in 0..2 {
        let asked =
            Acquire { owner: owner(&format!("{number}")), ..shared("kept/read", LONG_MS, 0) };
        take(store, asked).await;
        take(store, permit("kept/pool", 3, 0)).await;
    }
    store.acquire_all(super::groups::parts(0, &["kept/group/a", "kept/group/b"])).await.unwrap();
    brief(store, delayed(request("kept/delay", LONG_MS, 0), LONG_DELAY_MS)).await;
    until_delayed(store, "kept/delay").await;
    // It will be live at the restart, and expire in the next life.
    let later = Ttl::from_ms(20 * SHORT_MS).unwrap();
    let later = Acquire { ttl: later, ..request("kept/delay-later", LONG_MS, 0) };
    take(store, delayed(later, LONG_DELAY_MS)).await;
    let why = Revoke { lease: None, reason: Some(owner("stuck")) };
    take(store, request("kept/revoked", LONG_MS, 0)).await;
    store.revoke(&name("kept/revoked"), why).await.unwrap();
    // The last token of this life is a minted one, right above this lease's.
    let last = take(store, request("kept/last", LONG_MS, 0)).await;
    assert!(store.mint(&name("kept/last")).await.unwrap() > last.token);
}

/// See [`left`]. Asked before anything else, so that the first token of the new life is minted
/// here.
pub(super) async fn found(store: &Store) {
    let last = store.show(&name("kept/last")).await.unwrap().holder.expect("a lease");
    let minted = store.mint(&name("kept/last")).await.unwrap();
    assert!(minted.get() > last.info.token.get() + 1, "the minted token was forgotten");
    let read = store.show(&name("kept/read")).await.unwrap();
    assert_eq!((read.lease_count, read.size), (2, None));
    let owners = [&read.holder.as_ref().unwrap().info.owner, &read.also_held[0].info.owner];
    assert_eq!(owners.map(Owner::as_str), ["0", "1"], "the oldest first");
    refused(store, request("kept/read", LONG_MS, 0)).await;
    let third = take(store, shared("kept/read", LONG_MS, 0)).await;
    assert!(third.token > minted);
    let pool = store.show(&name("kept/pool")).await.unwrap();
    assert_eq!((pool.lease_count, pool.size), (2, Some(3)));
    assert!(store.acquire(permit("kept/pool", 2, 0)).await.is_err());
    take(store, permit("kept/pool", 3, 0)).await;
    refused(store, permit("kept/pool", 3, 0)).await;
    let group = store.show(&name("kept/group/a")).await.unwrap().holder.expect("a lease");
    released(store, "kept/group/a", group.lease_id).await;
    released(store, "kept/group/b", group.lease_id).await;
    let revoked = store.show(&name("kept/revoked")).await.unwrap().history.remove(0);
    assert_eq!((revoked.reason, revoked.why), (EndReason::Revoked, Some(owner("stuck"))));
    for lock in ["kept/delay", "kept/delay-later"] {
        until_delayed(store, lock).await;
        refused(store, request(lock, LONG_MS, 0)).await;
        assert_eq!(store.revoke(&name(lock), Revoke::default()).await.unwrap(), Vec::new());
    }
    for lock in ["kept/read", "kept/pool", "kept/last"] {
        store.revoke(&name(lock), Revoke::default()).await.unwrap();
    }
}

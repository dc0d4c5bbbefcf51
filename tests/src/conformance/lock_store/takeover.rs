//! Takeover: an owner takes a lock from its earlier self, and never from another owner.

use lock_server::store::NoTakeover;

use super::*;

/// A request of one life of `worker`.
fn life(lock: &str, incarnation: &str, takeover: Takeover) -> Acquire {
    Acquire {
        owner: owner("worker"),
        incarnation: Some(owner(incarnation)),
        takeover,
        ..request(lock, LONG_MS, 0)
    }
}

async fn refusal(store: &Store, asked: Acquire) -> NoTakeover {
    match store.acquire(asked).await {
        Err(StoreError::TakeoverRefused { why, .. }) => why,
        other => panic!("expected a refused takeover: {other:?}"),
    }
}

/// The new life is granted before those who wait, its lost reply is harmless, and the old lease is
/// gone with the reason.
pub async fn a_new_life_takes_over_at_once(store: &Store) {
    let first = life("life", "boot 1", Takeover::Never);
    let old = store.acquire(first.clone()).await.unwrap();
    let waiting = enqueue(store, request("life", LONG_MS, LONG_MS)).await;
    let asked = life("life", "boot 2", Takeover::EarlierSelf);
    let new = store.acquire(asked.clone()).await.unwrap();
    assert!(new.token > old.token && new.remaining_ms <= LONG_MS);
    assert_eq!(store.acquire(asked.clone()).await.unwrap().token, new.token);
    let late = store.renew(&first.lock, first.lease_id, None).await;
    assert_eq!(lost(late), EndReason::Superseded);
    assert_eq!(lost(store.acquire(first.clone()).await), EndReason::Superseded);
    let shown = store.show(&first.lock).await.unwrap();
    assert_eq!((shown.history[0].lease_id, shown.queue_length), (first.lease_id, 1));
    assert_eq!(shown.holder.unwrap().incarnation, asked.incarnation);
    released(store, "life", new.lease_id).await;
    let next = granted(waiting).await;
    assert!(next.token > new.token);
    released(store, "life", next.lease_id).await;
    // If the lock is free there is nothing to take over, and the option has no effect.
    store.acquire(life("life", "boot 3", Takeover::EarlierSelf)).await.unwrap();
}

/// Neither by name nor by lease; a request with a wait time waits.
pub async fn takeover_never_crosses_owners(store: &Store) {
    let mine = life("theirs", "boot 1", Takeover::Never);
    let held = store.acquire(mine.clone()).await.unwrap();
    for takeover in [Takeover::EarlierSelf, Takeover::Of(mine.lease_id)] {
        let thief = Acquire { owner: owner("thief"), ..life("theirs", "boot 2", takeover) };
        assert_eq!(refusal(store, thief.clone()).await, NoTakeover::OtherOwner);
        if takeover == Takeover::EarlierSelf {
            let waiting = enqueue(store, Acquire { wait_ms: LONG_MS, ..thief }).await;
            waiting.abort();
        }
    }
    let same = store.renew(&mine.lock, mine.lease_id, None).await.unwrap();
    assert_eq!(same.token, held.token);
}

/// Two processes under one name do not take the lock in turns: the later one keeps it. And one
/// process that asks twice does not take it from itself.
pub async fn an_earlier_life_does_not_take_the_lock_back(store: &Store) {
    store.acquire(life("turns", "boot 1", Takeover::EarlierSelf)).await.unwrap();
    let second = life("turns", "boot 2", Takeover::EarlierSelf);
    let held = store.acquire(second.clone()).await.unwrap();
    let late = life("turns", "boot 1", Takeover::EarlierSelf);
    assert_eq!(refusal(store, late.clone()).await, NoTakeover::WasTakenOver);
    let patient = Acquire { wait_ms: LONG_MS, ..late };
    assert_eq!(refusal(store, patient).await, NoTakeover::WasTakenOver);
    let itself = store.acquire(life("turns", "boot 2", Takeover::EarlierSelf)).await;
    assert!(matches!(itself, Err(StoreError::Held { .. })), "{itself:?}");
    let same = store.renew(&second.lock, second.lease_id, None).await.unwrap();
    assert_eq!(same.token, held.token);
    store.acquire(life("turns", "boot 3", Takeover::EarlierSelf)).await.unwrap();
}

/// Compare and set: the lease that a supervisor saw die, and no other.
pub async fn a_named_lease_is_taken_over(store: &Store) {
    let unnamed = Acquire { incarnation: None, ..life("named", "x", Takeover::Never) };
    store.acquire(unnamed.clone()).await.unwrap();
    let by_life = life("named", "boot 2", Takeover::EarlierSelf);
    assert_eq!(refusal(store, by_life).await, NoTakeover::NoIncarnation);
    let heir = Acquire { incarnation: None, ..life("named", "x", Takeover::Of(unnamed.lease_id)) };
    let new = store.acquire(heir.clone()).await.unwrap();
    let gone = store.release(&unnamed.lock, unnamed.lease_id).await.unwrap_err();
    assert_eq!(gone, StoreError::Lost { reason: EndReason::Superseded, why: None, is_known: true });
    let again = store.acquire(life("named", "boot 3", Takeover::Of(unnamed.lease_id))).await;
    assert!(matches!(again, Err(StoreError::Held { .. })), "{again:?}");
    assert_eq!(released(store, "named", heir.lease_id).await, new.token);
}

/// It waited behind its earlier self and then asked to take over: one grant, returned to both
/// calls, and no place is left in the queue.
pub async fn a_waiting_life_takes_over_once(store: &Store) {
    store.acquire(life("waits", "boot 1", Takeover::Never)).await.unwrap();
    let second = life("waits", "boot 2", Takeover::Never);
    let waiting = enqueue(store, Acquire { wait_ms: LONG_MS, ..second.clone() }).await;
    let asked = Acquire { takeover: Takeover::EarlierSelf, ..second };
    let grant = store.acquire(asked.clone()).await.unwrap();
    assert_eq!(granted(waiting).await.token, grant.token);
    assert_eq!(store.show(&asked.lock).await.unwrap().queue_length, 0);
    released(store, "waits", grant.lease_id).await;
    until_free(store, "waits").await;
}

/// If no token can be given, the holder keeps the lock.
pub async fn a_takeover_without_a_token_changes_nothing(store: &Store) {
    let first = life("no-token", "boot 1", Takeover::Never);
    let held = store.acquire(first.clone()).await.unwrap();
    let min_token = Token::new(Token::MAX).ok();
    let wish = Acquire { min_token, ..life("no-token", "boot 2", Takeover::EarlierSelf) };
    assert_eq!(store.acquire(wish).await.unwrap_err(), StoreError::Exhausted);
    let same = store.renew(&first.lock, first.lease_id, None).await.unwrap();
    assert_eq!(same.token, held.token);
}

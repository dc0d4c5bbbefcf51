//! Revocation of one lease or of all, and tokens that no lease has.

use super::*;

fn revocation(lease: Option<LeaseId>, reason: Option<&str>) -> Revoke {
    Revoke { lease, reason: reason.map(owner) }
}

/// The others are not touched, and a lease that is not live is no reason to end another.
pub async fn one_of_several_is_revoked(store: &Store) {
    let lock = name("revoke-one");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(take(store, permit("revoke-one", 3, 0)).await);
    }
    let ended =
        store.revoke(&lock, revocation(Some(held[1].lease_id), Some("stuck"))).await.unwrap();
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].lease_id, ended[0].token), (held[1].lease_id, held[1].token));
    assert_eq!(ended[0].reason, EndReason::Revoked);
    for grant in [&held[0], &held[2]] {
        assert_eq!(store.renew(&lock, grant.lease_id, None).await.unwrap().token, grant.token);
    }
    let again =
        store.revoke(&lock, revocation(Some(held[1].lease_id), Some("again"))).await.unwrap_err();
    let why = Some(owner("stuck"));
    assert_eq!(again, StoreError::Lost { reason: EndReason::Revoked, why, is_known: true });
    let never = store.revoke(&lock, revocation(Some(lease_id()), None)).await;
    assert!(matches!(never, Err(StoreError::Lost { .. })), "{never:?}");
    assert_eq!(store.show(&lock).await.unwrap().lease_count, 2);
    let nothing = store.revoke(&name("revoke-one/idle"), revocation(Some(lease_id()), None)).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

/// Without a lease every one of them ends, in the order of their grants; waiters stay.
pub async fn everything_is_revoked_oldest_first(store: &Store) {
    let lock = name("revoke-all");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(take(store, shared("revoke-all", LONG_MS, 0)).await);
    }
    store.renew(&lock, held[0].lease_id, None).await.unwrap();
    let ended = store.revoke(&lock, revocation(None, Some("maintenance"))).await.unwrap();
    let shown: Vec<_> = ended.iter().map(|ended| (ended.lease_id, ended.token)).collect();
    let expected: Vec<_> = held.iter().map(|grant| (grant.lease_id, grant.token)).collect();
    assert_eq!(shown, expected);
    let shown = store.show(&lock).await.unwrap();
    assert_eq!((shown.lease_count, shown.history.len()), (0, 4));
    assert!(shown.history.iter().all(|ended| ended.reason == EndReason::Revoked));
    assert_eq!(shown.history[0].lease_id, held[3].lease_id, "newest first");
}

/// Every request of its holder gets the operator's reason; so does every reader.
pub async fn a_revoked_holder_learns_the_reason(store: &Store) {
    let lock = name("revoked-why");
    let asked = request("revoked-why", LONG_MS, 0);
    take(store, asked.clone()).await;
    store.revoke(&lock, revocation(None, Some("host 7 is replaced"))).await.unwrap();
    let reason = EndReason::Revoked;
    let revoked =
        StoreError::Lost { reason, why: Some(owner("host 7 is replaced")), is_known: true };
    assert_eq!(store.renew(&lock, asked.lease_id, None).await.unwrap_err(), revoked);
    assert_eq!(store.release(&lock, asked.lease_id).await.unwrap_err(), revoked);
    assert_eq!(store.acquire(asked.clone()).await.unwrap_err(), revoked);
    let history = store.show(&lock).await.unwrap().history;
    assert_eq!(history[0].why, Some(owner("host 7 is replaced")));
    // Other ends, and revocations without a word, have no such text.
    let next = take(store, request("revoked-why", LONG_MS, 0)).await;
    store.revoke(&lock, revocation(None, None)).await.unwrap();
    let late = store.renew(&lock, next.lease_id, None).await.unwrap_err();
    assert_eq!(late, StoreError::Lost { reason, why: None, is_known: true });
    let last = take(store, request("revoked-why", LONG_MS, 0)).await;
    released(store, "revoked-why", last.lease_id).await;
    let history = store.show(&lock).await.unwrap().history;
    let said: Vec<_> = history.iter().map(|ended| ended.why.is_some()).collect();
    assert_eq!(said, [false, false, true]);
}

/// A group of which a part was revoked, and that retries, gets the reason.
pub async fn the_holder_of_a_revoked_part_of_a_group_learns_the_reason(store: &Store) {
    let reason = EndReason::Revoked;
    let parts = super::groups::parts(0, &["revoked-why/a", "revoked-why/b"]);
    store.acquire_all(parts.clone()).await.unwrap();
    store.revoke(&name("revoked-why/b"), revocation(None, Some("stuck"))).await.unwrap();
    match store.acquire_all(parts).await.unwrap_err() {
        StoreError::Part { lock, refusal } => {
            assert_eq!(lock, name("revoked-why/b"));
            assert_eq!(
                *refusal,
                StoreError::Lost { reason, why: Some(owner("stuck")), is_known: true }
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Waiters get what became free, in the same step, and no more than that.
pub async fn a_revocation_lets_the_queue_in(store: &Store) {
    let lock = name("revoke-queue");
    let one = take(store, shared("revoke-queue", LONG_MS, 0)).await;
    let two = take(store, shared("revoke-queue", LONG_MS, 0)).await;
    let writer = enqueue(store, request("revoke-queue", LONG_MS, LONG_MS)).await;
    let reader = enqueue(store, shared("revoke-queue", LONG_MS, LONG_MS)).await;
    store.revoke(&lock, revocation(Some(one.lease_id), None)).await.unwrap();
    assert_eq!(queue_length(store, "revoke-queue").await, 2, "a writer beside a reader");
    store.revoke(&lock, revocation(Some(two.lease_id), None)).await.unwrap();
    let wrote = granted(writer).await;
    assert!(!reader.is_finished(), "a reader beside a writer");
    assert_eq!(store.revoke(&lock, revocation(None, None)).await.unwrap()[0].token, wrote.token);
    granted(reader).await;
}

/// A minted token is above everything before it and below everything after it, also where many mint
/// and acquire at once; it makes no lease.
pub async fn minted_tokens_rise_with_the_granted(store: &Store) {
    let mut last = grant(store, "mint/0", LONG_MS).await.token;
    let lock = name("mint/0");
    for round in 1..4 {
        let minted = store.mint(&lock).await.unwrap();
        assert!(minted > last, "{minted} after {last}");
        last = grant(store, &format!("mint/{round}"), LONG_MS).await.token;
        assert!(last > minted, "{last} after {minted}");
    }
    let tasks = (0..6).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            for round in 0..10 {
                tokens.push(match (task + round) % 2 {
                    0 => store.mint(&name("mint/0")).await.unwrap(),
                    _ => grant(&store, &format!("mint/{task}/{round}"), LONG_MS).await.token,
                });
            }
            assert!(tokens.is_sorted(), "{tokens:?}");
            tokens
        })
    });
    let mut all = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        all.extend(soon("a task", task).await.unwrap());
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 60, "a token was given twice");
    assert!(all[0] > last);
}

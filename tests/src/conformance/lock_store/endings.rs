//! Ends of leases, and that leases stay ended.

use super::*;

/// L3: whatever ended an id, the same id is never granted again.
pub async fn an_ended_id_is_never_granted_again(store: &Store) {
    let released_one = request("ended", LONG_MS, 0);
    store.acquire(released_one.clone()).await.unwrap();
    released(store, "ended", released_one.lease_id).await;
    assert_eq!(lost(store.acquire(released_one.clone()).await), EndReason::Released);
    let expired_one = request("ended", LONG_MS, 0);
    brief(store, expired_one.clone()).await;
    until_free(store, "ended").await;
    assert_eq!(lost(store.acquire(expired_one.clone()).await), EndReason::Expired);
    let revoked_one = request("ended", LONG_MS, 0);
    store.acquire(revoked_one.clone()).await.unwrap();
    store.revoke(&name("ended"), Revoke::default()).await.unwrap();
    // Waiting for it does not help, and a later holder does not blur the reason.
    grant(store, "ended", LONG_MS).await;
    for (ended, reason) in [
        (released_one, EndReason::Released),
        (expired_one, EndReason::Expired),
        (revoked_one, EndReason::Revoked),
    ] {
        let repeat = Acquire { wait_ms: LONG_MS, ..ended };
        assert_eq!(lost(soon("an answer", store.acquire(repeat)).await), reason);
    }
}

/// Releasing or renewing what has expired says so.
pub async fn an_expired_lease_is_gone_loudly(store: &Store) {
    let lock = name("expired");
    let grant = brief(store, request("expired", LONG_MS, 0)).await;
    until_free(store, "expired").await;
    let expired = StoreError::Lost { reason: EndReason::Expired, why: None, is_known: true };
    assert_eq!(store.renew(&lock, grant.lease_id, None).await.unwrap_err(), expired);
    // Last: at a node of a quorum that is behind the others it is a release.
    assert_eq!(store.release(&lock, grant.lease_id).await.unwrap_err(), expired);
}

/// A renewal gives a time to live, not more of it, and the token stays.
pub async fn a_renewal_replaces_the_time_and_keeps_the_token(store: &Store) {
    let lock = name("renewed");
    let grant = grant(store, "renewed", LONG_MS).await;
    let renewed = store.renew(&lock, grant.lease_id, None).await.unwrap();
    assert_eq!((renewed.token, renewed.lease_id), (grant.token, grant.lease_id));
    assert!(renewed.remaining_ms <= LONG_MS, "{} ms", renewed.remaining_ms);
    let shorter = Ttl::from_ms(SHORT_MS).unwrap();
    match store.renew(&lock, grant.lease_id, Some(shorter)).await {
        Ok(renewed) => assert!(renewed.remaining_ms <= SHORT_MS, "{} ms", renewed.remaining_ms),
        // The reply came so late that nothing was left.
        Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => {
            shorten(store, "renewed", grant.lease_id).await
        }
        Err(other) => panic!("{other:?}"),
    }
    until_free(store, "renewed").await;
    assert_eq!(store.show(&lock).await.unwrap().history[0].reason, EndReason::Expired);
}

/// A lease that has ended stays ended, also if the lock was not granted since.
pub async fn a_renewal_never_resurrects(store: &Store) {
    let lock = name("resurrect");
    let short = brief(store, request("resurrect", LONG_MS, 0)).await;
    until_free(store, "resurrect").await;
    let late = store.renew(&lock, short.lease_id, Ttl::from_ms(LONG_MS).ok()).await;
    assert_eq!(lost(late), EndReason::Expired);
    until_free(store, "resurrect").await;
    let next = grant(store, "resurrect", LONG_MS).await;
    assert_eq!(lost(store.renew(&lock, short.lease_id, None).await), EndReason::Expired);
    assert!(store.renew(&lock, next.lease_id, None).await.is_ok());
    let never = store.renew(&lock, lease_id(), None).await.unwrap_err();
    let unknown = |reason| StoreError::Lost { reason, why: None, is_known: false };
    assert_eq!(never, unknown(EndReason::Superseded));
    let never = store.release(&name("never"), lease_id()).await.unwrap_err();
    assert_eq!(never, unknown(EndReason::Expired));
}

/// A client that timed out releases an id whose acquire is still on its way: the acquire loses.
pub async fn a_release_that_overtakes_its_acquire_wins(store: &Store) {
    let late = request("overtaken", LONG_MS, 0);
    let outcome = store.release(&late.lock, late.lease_id).await;
    assert!(matches!(outcome, Err(StoreError::Lost { .. })), "{outcome:?}");
    assert_eq!(lost(store.acquire(late).await), EndReason::Released);
    grant(store, "overtaken", LONG_MS).await;
}

/// An old holder cannot release the new one's lease.
pub async fn a_release_takes_only_its_own_lease(store: &Store) {
    let lock = name("own");
    let old = grant(store, "own", LONG_MS).await;
    released(store, "own", old.lease_id).await;
    let new = grant(store, "own", LONG_MS).await;
    let again = store.release(&lock, old.lease_id).await.unwrap_err();
    assert_eq!(again, StoreError::Lost { reason: EndReason::Released, why: None, is_known: true });
    let holder = store.show(&lock).await.unwrap().holder.unwrap();
    assert_eq!(holder.lease_id, new.lease_id);
}

/// An operator ends what is live, and gets an error if nothing is.
pub async fn revoking_ends_whatever_is_live(store: &Store) {
    let lock = name("revoked");
    assert_eq!(store.revoke(&lock, Revoke::default()).await.unwrap_err(), StoreError::NotHeld);
    let grant = grant(store, "revoked", LONG_MS).await;
    let ended = store.revoke(&lock, Revoke::default()).await.unwrap().remove(0);
    assert_eq!((ended.lease_id, ended.token), (grant.lease_id, grant.token));
    assert_eq!(ended.reason, EndReason::Revoked);
    assert_eq!(lost(store.renew(&lock, grant.lease_id, None).await), EndReason::Revoked);
    let gone = store.release(&lock, grant.lease_id).await.unwrap_err();
    assert_eq!(gone, StoreError::Lost { reason: EndReason::Revoked, why: None, is_known: true });
    assert_eq!(store.revoke(&lock, Revoke::default()).await.unwrap_err(), StoreError::NotHeld);
}

/// The last eight endings, newest first, with token, owner and reason.
pub async fn history_is_newest_first_and_bounded(store: &Store) {
    let lock = name("history");
    let mut tokens = Vec::new();
    for _ in 0..9 {
        let grant = grant(store, "history", LONG_MS).await;
        released(store, "history", grant.lease_id).await;
        tokens.push(grant.token);
    }
    let last = grant(store, "history", LONG_MS).await;
    store.revoke(&lock, Revoke::default()).await.unwrap();
    tokens.push(last.token);
    let history = store.show(&lock).await.unwrap().history;
    let shown: Vec<Token> = history.iter().filter_map(|ended| ended.token).collect();
    tokens.reverse();
    assert_eq!(shown, tokens[..8]);
    assert_eq!(history[0].reason, EndReason::Revoked);
    assert_eq!(history[1].reason, EndReason::Released);
    assert_eq!(history[1].owner, Some(owner("conformance")));
}

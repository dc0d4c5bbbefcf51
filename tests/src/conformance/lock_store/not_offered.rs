//! Operations that a store does not offer are refused as such, and change nothing.

use lock_server::store::{NewSession, Takeover};

use super::*;

/// The refusal says which store and what, and the lock is as it was.
async fn refused_as_not_offered<T: std::fmt::Debug>(
    store: &Store,
    lock: &str,
    outcome: Result<T, StoreError>,
) {
    match outcome {
        Err(StoreError::NotOffered { store: named, what }) => {
            assert_eq!(named, store.name());
            assert!(!what.is_empty());
        }
        other => panic!("expected a refusal as not offered: {other:?}"),
    }
    let state = store.show(&name(lock)).await.expect("show");
    assert!(state.holder.is_none() && state.queue.is_empty(), "{state:?}");
}

/// Neither shared leases nor permits.
pub async fn kinds(store: &Store) {
    for wait_ms in [0, 1_000] {
        let outcome = store.acquire(shared("not/shared", LONG_MS, wait_ms)).await;
        refused_as_not_offered(store, "not/shared", outcome).await;
        let outcome = store.acquire(permit("not/permit", 3, wait_ms)).await;
        refused_as_not_offered(store, "not/permit", outcome).await;
    }
}

/// Several locks in one step are refused; one is one.
pub async fn groups(store: &Store) {
    let parts = ["not/group-1", "not/group-2"].map(|lock| request(lock, LONG_MS, 0));
    let lease_id = parts[0].lease_id;
    let parts = parts.map(|part| Acquire { lease_id, ..part });
    let outcome = store.acquire_all(parts.to_vec()).await;
    refused_as_not_offered(store, "not/group-1", outcome).await;
    let one = store.acquire_all(vec![request("not/group-3", LONG_MS, 0)]).await.expect("one lock");
    assert_eq!(one.len(), 1);
}

/// No lock-delay.
pub async fn delays(store: &Store) {
    let delayed = Acquire { lock_delay_ms: 1_000, ..request("not/delay", LONG_MS, 0) };
    refused_as_not_offered(store, "not/delay", store.acquire(delayed).await).await;
}

/// No takeover.
pub async fn takeover(store: &Store) {
    for takeover in [Takeover::EarlierSelf, Takeover::Of(lease_id())] {
        let incarnation = Some(owner("life"));
        let asked = Acquire { takeover, incarnation, ..request("not/takeover", LONG_MS, 0) };
        refused_as_not_offered(store, "not/takeover", store.acquire(asked).await).await;
    }
}

/// No sessions.
pub async fn sessions(store: &Store) {
    let session_id = "00000000-0000-4000-8000-000000000007".parse().expect("an id");
    let ttl = Ttl::from_ms(LONG_MS).expect("a time to live");
    let new = NewSession {
        session_id,
        owner: owner("conformance"),
        ttl,
        metadata: None,
        principal: None,
    };
    let lock = "not/session";
    refused_as_not_offered(store, lock, store.create_session(new).await).await;
    refused_as_not_offered(store, lock, store.heartbeat(session_id).await).await;
    refused_as_not_offered(store, lock, store.end_session(session_id).await).await;
    refused_as_not_offered(store, lock, store.show_session(session_id).await).await;
    refused_as_not_offered(store, lock, store.list_sessions(None, 10).await).await;
    let blocked = store.block_session(session_id, owner("why")).await;
    refused_as_not_offered(store, lock, blocked).await;
    let bound = Acquire { session: Some(session_id), ..request(lock, LONG_MS, 0) };
    refused_as_not_offered(store, lock, store.acquire(bound).await).await;
}

/// The tokens of one lock are no others' business: they rise lock by lock, and nothing is asserted
/// over several.
pub async fn namespace(store: &Store) {
    let mut last = None;
    for _ in 0..10 {
        let grant = grant(store, "not/namespace", LONG_MS).await;
        assert!(last < Some(grant.token), "{last:?} before {}", grant.token);
        let minted = store.mint(&name("not/namespace")).await.expect("a token");
        assert!(minted > grant.token);
        last = Some(minted);
        released(store, "not/namespace", grant.lease_id).await;
    }
}

//! Leases and waiters belong to the principal that asked for them.

use super::groups::{enqueue_all, parts};
use super::*;

const OWN: Option<&str> = Some("ci");
const RIVAL: Option<&str> = Some("rival");

fn with_principal(principal: Option<&str>, request: Acquire) -> Acquire {
    Acquire { principal: principal.map(ToOwned::to_owned), ..request }
}

fn is_anothers<T>(outcome: &Result<T, StoreError>, lease: LeaseId) -> bool {
    matches!(outcome, Err(StoreError::OtherPrincipal { lease_id }) if *lease_id == lease)
}

/// Its id, which every client is shown, renews and releases nothing for another principal, and
/// returns it no grant.
pub async fn a_lease_belongs_to_its_principal(store: &Store) {
    let metadata = Some("{\"job\":7}".to_owned());
    let asked = with_principal(OWN, Acquire { metadata, ..request("principal", LONG_MS, 0) });
    let held = take(store, asked.clone()).await;
    let lock = &asked.lock;
    let lease = asked.lease_id;
    let renewed = store.renew_as(RIVAL, lock, lease, Ttl::from_ms(1).ok()).await;
    assert!(is_anothers(&renewed, lease), "{renewed:?}");
    let released = store.release_as(RIVAL, lock, lease).await;
    assert!(is_anothers(&released, lease), "{released:?}");
    let stolen = store.acquire(with_principal(RIVAL, asked.clone())).await;
    assert_eq!(stolen.unwrap_err(), StoreError::IdConflict { owner: asked.owner.clone() });
    let holder = store.show(lock).await.unwrap().holder.expect("nothing has changed");
    assert_eq!((holder.lease_id, holder.info.token), (lease, held.token));
    assert_eq!(holder.metadata.unwrap()["job"], 7);
    assert_eq!(take(store, asked.clone()).await.token, held.token);
    for caller in [OWN, None] {
        assert_eq!(store.renew_as(caller, lock, lease, None).await.unwrap().token, held.token);
    }
    store.release_as(OWN, lock, lease).await.unwrap();
    let late = store.release_as(RIVAL, lock, lease).await.unwrap_err();
    assert!(matches!(late, StoreError::Lost { .. }), "{late:?}");
}

/// Such as one that was acquired without an access file, or by an earlier version.
pub async fn a_lease_without_a_principal_is_open(store: &Store) {
    let asked = request("no-principal", LONG_MS, 0);
    let held = take(store, asked.clone()).await;
    assert_eq!(take(store, with_principal(OWN, asked.clone())).await.token, held.token);
    let renewed = store.renew_as(RIVAL, &asked.lock, asked.lease_id, None).await.unwrap();
    assert_eq!(renewed.token, held.token);
    store.release_as(OWN, &asked.lock, asked.lease_id).await.unwrap();
}

/// Its id, which is shown too, ends it for no other principal; and what it is granted is its own.
pub async fn a_waiter_belongs_to_its_principal(store: &Store) {
    let first = grant(store, "principal-waits", LONG_MS).await;
    let asked = with_principal(OWN, request("principal-waits", LONG_MS, LONG_MS));
    let waiting = enqueue(store, asked.clone()).await;
    let lock = &asked.lock;
    let lease = asked.lease_id;
    let released = store.release_as(RIVAL, lock, lease).await;
    assert!(is_anothers(&released, lease), "{released:?}");
    let stolen = store.acquire(with_principal(RIVAL, asked.clone())).await;
    assert_eq!(stolen.unwrap_err(), StoreError::IdConflict { owner: asked.owner.clone() });
    super::released(store, "principal-waits", first.lease_id).await;
    granted(waiting).await;
    let released = store.release_as(RIVAL, lock, lease).await;
    assert!(is_anothers(&released, lease), "{released:?}");
    store.release_as(OWN, lock, lease).await.unwrap();
}

/// Neither by the owner's name, which a request claims, nor by the lease; unless the caller may.
pub async fn takeover_never_crosses_principals(store: &Store) {
    let life = |incarnation: &str, takeover| Acquire {
        incarnation: Some(owner(incarnation)),
        takeover,
        ..request("principal-life", LONG_MS, 0)
    };
    let first = with_principal(OWN, life("boot 1", Takeover::Never));
    let lease = first.lease_id;
    let held = take(store, first.clone()).await;
    for takeover in [Takeover::EarlierSelf, Takeover::Of(lease)] {
        let stolen = store.acquire(with_principal(RIVAL, life("boot 2", takeover))).await;
        assert!(is_anothers(&stolen, lease), "{stolen:?}");
    }
    let patient = Acquire { wait_ms: LONG_MS, ..life("boot 2", Takeover::EarlierSelf) };
    enqueue(store, with_principal(RIVAL, patient)).await.abort();
    let same = store.renew_as(OWN, &first.lock, lease, None).await.unwrap();
    assert_eq!(same.token, held.token);
    let may_supersede = Some(lease);
    let heir =
        with_principal(RIVAL, Acquire { may_supersede, ..life("boot 2", Takeover::Of(lease)) });
    let new = take(store, heir.clone()).await;
    let late = store.renew_as(OWN, &first.lock, lease, None).await;
    assert_eq!(lost(late), EndReason::Superseded);
    let released = store.release_as(OWN, &heir.lock, new.lease_id).await;
    assert!(is_anothers(&released, new.lease_id), "the heir's: {released:?}");
}

/// Held and waiting.
pub async fn a_group_belongs_to_its_principal(store: &Store) {
    let locks = ["principal-group/a", "principal-group/b"];
    let of_all = |principal, parts: Vec<Acquire>| -> Vec<Acquire> {
        parts.into_iter().map(|part| with_principal(principal, part)).collect()
    };
    let asked = of_all(OWN, parts(0, &locks));
    store.acquire_all(asked.clone()).await.unwrap();
    let waits = of_all(OWN, parts(LONG_MS, &locks));
    let waiting = enqueue_all(store, waits.clone()).await;
    for group in [&asked, &waits] {
        let stolen = store.acquire_all(of_all(RIVAL, group.clone())).await;
        let Err(StoreError::Part { refusal, .. }) = stolen else { panic!("{stolen:?}") };
        assert_eq!(*refusal, StoreError::IdConflict { owner: owner("conformance") });
    }
    for part in &asked {
        store.release_as(OWN, &part.lock, part.lease_id).await.unwrap();
    }
    soon("the grants", waiting).await.expect("no panic").expect("both grants");
    for part in &waits {
        let released = store.release_as(RIVAL, &part.lock, part.lease_id).await;
        assert!(is_anothers(&released, part.lease_id), "{released:?}");
    }
}

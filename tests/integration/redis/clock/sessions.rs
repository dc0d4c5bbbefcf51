//! Sessions, groups, shared leases and lock-delays under a clock that jumped.

use std::sync::Arc;

use fence_protocol::Ttl;
use fence_tests::key_file::session_id;
use fence_tests::store_options::patient;
use lock_server::store::{Acquire, LockStore, Mode, NewSession, StoreError};
use service_kit::Kit;

use super::*;
use crate::redis::kinds::{name, request};

async fn store(redis: &SteppedRedis) -> Arc<dyn LockStore> {
    let url = redis.url().parse().unwrap();
    lock_server::engines::open(&url, &patient(), &Kit::new("clock")).await.unwrap()
}

/// None of them is over because the clock says so, and none is granted before it can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_lives_outlives_a_short_jump() {
    let redis = SteppedRedis::start().await;
    let store = store(&redis).await;
    let owner = request("a", 100, 0).owner;
    let ttl = Ttl::from_ms(18_000).unwrap();
    let session = session_id();
    let new = NewSession { session_id: session, owner, ttl, metadata: None, principal: None };
    store.create_session(new).await.unwrap();
    let bound = Acquire { session: Some(session), ..request("bound", 100, 0) };
    let bound = store.acquire(bound).await.unwrap();
    let shared = |wait_ms| Acquire { mode: Mode::Shared, ..request("s", 18_000, wait_ms) };
    let shared = [store.acquire(shared(0)).await.unwrap(), store.acquire(shared(0)).await.unwrap()];
    let one = request("g/1", 18_000, 0);
    let two = Acquire { lock: name("g/2"), ..one.clone() };
    let group = store.acquire_all(vec![one, two]).await.unwrap();
    redis.step(MOMENT);

    let again = store.acquire_all(vec![request("h/1", 100, 0), request("h/2", 100, 0)]).await;
    assert!(again.is_err(), "{again:?}");
    store.heartbeat(session).await.unwrap();
    let mut lives = vec![("bound", bound), ("g/1", group[0].clone()), ("g/2", group[1].clone())];
    lives.extend(shared.map(|grant| ("s", grant)));
    for (lock, grant) in lives {
        let renewed = store.renew(&name(lock), grant.lease_id, None).await.unwrap();
        assert_eq!(renewed.token, grant.token, "{lock}");
    }
}

/// A lock-delay is real time too: the data behind it has no guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_delay_is_not_cut_short() {
    let redis = SteppedRedis::start().await;
    let store = store(&redis).await;
    let before = std::time::Instant::now();
    let delayed = Acquire { lock_delay_ms: 10_000, ..request("d", 200, 0) };
    store.acquire(delayed).await.unwrap();
    until_true("the lease to be over", || async {
        let shown = store.show(&name("d")).await.unwrap();
        shown.holder.is_none() && shown.delayed_ms.is_some()
    })
    .await;
    redis.step(MOMENT);
    let outcome = store.acquire(request("d", 200, 0)).await;
    assert!(matches!(outcome, Err(StoreError::Held { .. })), "{outcome:?}");
    store.acquire(request("d", 5_000, 60_000)).await.unwrap();
    assert!(before.elapsed().as_millis() >= 10_200, "closed for {:?}", before.elapsed());
}

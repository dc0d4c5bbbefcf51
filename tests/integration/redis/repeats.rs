//! One id asked for more than once at one time.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Owner, Ttl};
use fence_tests::key_file::session_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::soon;
use lock_server::store::{Acquire, NewSession, StoreError};

use super::forged::forge;
use super::kinds::{name, queue_of, request, server};

const LONG_MS: u64 = 60_000;

/// A caller hangs up and retries with the same id at once. Its first request is withdrawn, and
/// never the lease that its second one received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawal_takes_nothing_from_a_repeat() {
    let redis = Redis::with(&[("appendfsync", "everysec")]).await;
    let one = server(&redis).await;
    for round in 0..200 {
        let lock = format!("again/{round}");
        let first = one.acquire(request(&lock, LONG_MS, 0)).await.unwrap();
        let asked = request(&lock, LONG_MS, LONG_MS);
        let waits = |asked: Acquire| {
            let own = one.clone();
            tokio::spawn(async move { own.acquire(asked).await })
        };
        let hangs_up = waits(asked.clone());
        queue_of(&one, &lock, 1).await;
        hangs_up.abort();
        let again = waits(asked.clone());
        for _ in 0..round % 7 {
            tokio::task::yield_now().await;
        }
        one.release(&name(&lock), first.lease_id).await.unwrap();
        // Handed to the first request, it is rolled back with that, and the repeat gets that reply.
        let grant = match soon("the repeat", again).await.unwrap() {
            Err(StoreError::Lost { reason: EndReason::Released, .. }) => continue,
            outcome => outcome.unwrap(),
        };
        for _ in 0..3 {
            let holder = one.show(&name(&lock)).await.unwrap().holder;
            assert_eq!(holder.map(|holder| holder.info.token), Some(grant.token), "round {round}");
        }
    }
}

/// Another server's word of a hand-over comes late, when the id has been granted in another way and
/// its caller has the reply: it ends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_word_ends_no_acknowledged_lease() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let first = one.acquire(request("late", LONG_MS, 0)).await.unwrap();
    let own = one.clone();
    let asked = request("late", LONG_MS, LONG_MS);
    let waiting = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(&one, "late", 1).await;
    one.release(&name("late"), first.lease_id).await.unwrap();
    let granted = soon("the hand-over", waiting).await.unwrap().unwrap();
    one.acquire(request("marker", LONG_MS, 0)).await.unwrap();
    let own = one.clone();
    let asked = request("marker", LONG_MS, LONG_MS);
    let marks = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(&one, "marker", 1).await;
    forge(&redis, &["lock:late".to_owned()], "marker").await;
    soon("the marker", marks).await.unwrap().unwrap();
    let held = one.renew(&name("late"), granted.lease_id, None).await.unwrap();
    assert_eq!(held.token, granted.token);
}

/// All waiters under one id have one patience, the last that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_without_patience_answers_both() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    one.acquire(request("short", LONG_MS, 0)).await.unwrap();
    let asked = request("short", LONG_MS, LONG_MS);
    let own = one.clone();
    let first = asked.clone();
    let first = tokio::spawn(async move { own.acquire(first).await });
    queue_of(&one, "short", 1).await;
    let again = one.acquire(Acquire { wait_ms: 20, ..asked }).await;
    assert!(matches!(again, Err(StoreError::Held { .. })), "{again:?}");
    let first = soon("the first caller", first).await.unwrap();
    assert!(matches!(first, Err(StoreError::Held { .. })), "{first:?}");
}

/// A repeat that names another session stays bound to the first one, which ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_does_not_change_its_session() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let owner = Owner::new("shared").unwrap();
    let ttl = Ttl::from_ms(LONG_MS).unwrap();
    let sessions = [session_id(), session_id()];
    for session_id in sessions {
        let owner = owner.clone();
        let new = NewSession { session_id, owner, ttl, metadata: None, principal: None };
        one.create_session(new).await.unwrap();
    }
    let first = one.acquire(request("moves", LONG_MS, 0)).await.unwrap();
    let asked = Acquire { session: Some(sessions[0]), ..request("moves", LONG_MS, LONG_MS) };
    let mut waiting = Vec::new();
    for session in sessions {
        let own = one.clone();
        let asked = Acquire { session: Some(session), ..asked.clone() };
        waiting.push(tokio::spawn(async move { own.acquire(asked).await }));
        queue_of(&one, "moves", 1).await;
    }
    one.release(&name("moves"), first.lease_id).await.unwrap();
    for waiting in waiting {
        soon("the grant", waiting).await.unwrap().unwrap();
    }
    for (session, leases) in sessions.into_iter().zip([1, 0]) {
        assert_eq!(one.show_session(session).await.unwrap().lease_count, leases);
    }
}

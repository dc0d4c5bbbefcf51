//! Those who wait are granted when the pause is over, and not before, whatever makes room for them.

use fence_protocol::{LeaseId, SessionId};
use tokio::task::JoinHandle;

use super::*;
use crate::redis::kinds::queue_of;

type Waiting = JoinHandle<Result<Grant, StoreError>>;

async fn wait_for(store: &Store, lock: &str) -> Waiting {
    let own = store.clone();
    let asked = request(lock, 60_000, PATIENT_MS);
    let waiting = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(store, lock, 1).await;
    waiting
}

async fn hold(store: &Store, asked: Acquire) -> LeaseId {
    store.acquire(asked).await.unwrap().lease_id
}

async fn begin_session(store: &Store) -> SessionId {
    store.create_session(new_session(60_000)).await.unwrap().session_id
}

/// Every way in which a lock passes on: a release, a revocation, the end of a session, of a lease's
/// time and of a lock-delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_passes_on_in_a_pause() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let session = begin_session(&store).await;
    let released = hold(&store, request("release", 60_000, 0)).await;
    hold(&store, request("revoke", 60_000, 0)).await;
    hold(&store, Acquire { session: Some(session), ..request("session", 100, 0) }).await;
    hold(&store, request("expiry", 12_000, 0)).await;
    hold(&store, Acquire { lock_delay_ms: 200, ..request("delay", 12_000, 0) }).await;
    let mut waiting = Vec::new();
    for lock in ["release", "revoke", "session", "expiry", "delay"] {
        waiting.push((lock, wait_for(&store, lock).await));
    }
    // What is in use is an hour too long for a test: the waiters asked for it.
    begin_pause(&redis, 13_000).await;
    let (until, _) = pause(&redis).await;

    store.release(&name("release"), released).await.unwrap();
    store.revoke(&name("revoke"), Revoke::default()).await.unwrap();
    store.end_session(session).await.unwrap();
    for (lock, waiting) in waiting {
        let grant = fence_tests::wait::soon(lock, waiting).await.unwrap().unwrap();
        let (still, now) = pause(&redis).await;
        assert!(still <= until && now >= until, "{lock}: {grant:?} at {now}, before {until}");
    }
}

/// No lease held these locks; only the queue is left to go by, and the server serves it by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_is_served_when_the_pause_is_over() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    hold(&store, request("forgotten", 8_000, 0)).await;
    forget(&redis).await;
    let left_ms = left(store.acquire(request("a", 2_000, 0)).await);
    assert!(left_ms <= 8_000 + LATE_MS, "{left_ms}");
    let (until, _) = pause(&redis).await;

    let ask = |asked: Acquire| {
        let own = store.clone();
        tokio::spawn(async move { own.acquire(asked).await })
    };
    let first = ask(request("a", 3_000, PATIENT_MS));
    queue_of(&store, "a", 1).await;
    let second = ask(request("a", 3_000, PATIENT_MS));
    queue_of(&store, "a", 2).await;
    let shared = ask(Acquire { mode: Mode::Shared, ..request("s", 60_000, PATIENT_MS) });
    let permit = Mode::Permit { size: 2 };
    let permit = ask(Acquire { mode: permit, ..request("p", 60_000, PATIENT_MS) });
    let one = request("g/1", 60_000, PATIENT_MS);
    let parts = vec![one.clone(), Acquire { lock: name("g/2"), ..one }];
    let own = store.clone();
    let group = tokio::spawn(async move { own.acquire_all(parts).await });

    let first = first.await.unwrap().unwrap();
    assert!(pause(&redis).await.1 >= until);
    let second = second.await.unwrap().unwrap();
    assert!(first.token < second.token, "out of order: {first:?} {second:?}");
    for other in [shared, permit] {
        other.await.unwrap().unwrap();
    }
    assert_eq!(group.await.unwrap().unwrap().len(), 2);
}

const LOCKS: usize = 100;

/// Has a request wait for each lock, all of them in one pause, and awaits its end.
async fn wait_in_a_pause(redis: &Redis, store: &Store) -> Vec<Waiting> {
    begin_pause(redis, 1_500).await;
    let (end, _) = pause(redis).await;
    let mut waiting = Vec::new();
    for at in 0..LOCKS {
        let own = store.clone();
        let asked = request(&format!("l/{at}"), 60_000, 600_000);
        waiting.push(tokio::spawn(async move { own.acquire(asked).await }));
    }
    for at in 0..LOCKS {
        queue_of(store, &format!("l/{at}"), 1).await;
    }
    until_true("the end of the pause", || async { pause(redis).await.1 >= end }).await;
    waiting
}

/// Number of scripts that Redis has run.
async fn scripts_run(redis: &Redis) -> u64 {
    let stats: String = redis.run(&["INFO", "commandstats"]).await;
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|calls| calls.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Locks that are held, and waited for since the pause, are looked at once when it is over: the
/// server does not spin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_due_at_the_end_of_a_pause_does_not_stay_due() {
    const ROUNDS: u64 = 3;
    /// In each round the server is asked three times, and reads what it waits for.
    const SCRIPTS_A_ROUND_MAX: u64 = 40;
    let redis = Redis::start().await;
    let store = server(&redis).await;
    for at in 0..LOCKS {
        hold(&store, request(&format!("l/{at}"), 600_000, 0)).await;
    }
    let waiting = wait_in_a_pause(&redis, &store).await;
    let before = scripts_run(&redis).await;
    for round in 0..ROUNDS {
        // The holder is dead: its lease expires.
        let lock = format!("short/{round}");
        hold(&store, request(&lock, 3_000, 0)).await;
        let next = store.acquire(request(&lock, 60_000, 600_000));
        fence_tests::wait::soon("the grant", next).await.unwrap();
    }
    let run = scripts_run(&redis).await - before;
    assert!(run <= ROUNDS * SCRIPTS_A_ROUND_MAX, "{run} scripts in {ROUNDS} rounds");
    waiting.iter().for_each(Waiting::abort);
}

/// A takeover that waits in the pause is one when the pause is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_waits_for_the_end_of_the_pause() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let held = hold(&store, request("t", 60_000, 0)).await;
    begin_pause(&redis, 800).await;
    let (until, _) = pause(&redis).await;
    let takeover = Takeover::Of(held);
    let taken = Acquire { takeover, ..request("t", 60_000, PATIENT_MS) };
    let taken = fence_tests::wait::soon("the takeover", store.acquire(taken)).await.unwrap();
    assert!(pause(&redis).await.1 >= until);
    let outcome = store.renew(&name("t"), held, None).await;
    assert!(matches!(outcome, Err(StoreError::Lost { .. })), "{outcome:?}");
    store.renew(&name("t"), taken.lease_id, None).await.unwrap();
}

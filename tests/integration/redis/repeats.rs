//! One id asked for more than once at one time, and steps in which two things happen at once.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{Owner, Ttl};
use fence_tests::key_file::session_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::soon;
use lock_server::store::{Acquire, Mode, NewSession, Revoke, StoreError};

use super::forged::forge;
use super::kinds::{name, queue_of, request, server};

const LONG_MS: u64 = 60_000;

/// A caller hangs up and asks again with the same id at once. Its first request is withdrawn, and
/// never what its second one was told of.
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
        // Handed to the first request, it is taken back with that, and the repeat is told so.
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

/// Another server's word of a hand-over comes late, when the id has been granted in another way and its
/// caller was told: it ends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_word_ends_no_lease_that_was_told_of() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let first = one.acquire(request("late", LONG_MS, 0)).await.unwrap();
    let (own, asked) = (one.clone(), request("late", LONG_MS, LONG_MS));
    let waiting = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(&one, "late", 1).await;
    one.release(&name("late"), first.lease_id).await.unwrap();
    let told = soon("the hand-over", waiting).await.unwrap().unwrap();
    one.acquire(request("marker", LONG_MS, 0)).await.unwrap();
    let (own, asked) = (one.clone(), request("marker", LONG_MS, LONG_MS));
    let marker = asked.lease_id;
    let marks = tokio::spawn(async move { own.acquire(asked).await });
    queue_of(&one, "marker", 1).await;
    forge(&redis, &[format!("late\t{}", told.lease_id)], ("marker", marker)).await;
    marks.abort();
    let held = one.renew(&name("late"), told.lease_id, None).await.unwrap();
    assert_eq!(held.token, told.token);
}

/// Who waits under one id has one patience, the last that was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_without_patience_answers_both() {
    let redis = Redis::start().await;
    let one = server(&redis).await;
    one.acquire(request("short", LONG_MS, 0)).await.unwrap();
    let asked = request("short", LONG_MS, LONG_MS);
    let (own, first) = (one.clone(), asked.clone());
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
    let (owner, ttl) = (Owner::new("shared").unwrap(), Ttl::from_ms(LONG_MS).unwrap());
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
        let (own, asked) = (one.clone(), Acquire { session: Some(session), ..asked.clone() });
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

/// A closed place that opens in the very step of a revocation is not lifted once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_opened_is_not_lifted_again() {
    const KEY: &str = "{fence:default}:l:opens";
    let redis = Redis::start().await;
    let one = server(&redis).await;
    let permit =
        |wait_ms| Acquire { mode: Mode::Permit { size: 2 }, ..request("opens", LONG_MS, wait_ms) };
    let mut waiting = Vec::new();
    for place in 0..4 {
        if place < 2 {
            one.acquire(permit(0)).await.unwrap();
            continue;
        }
        let (own, asked) = (one.clone(), permit(LONG_MS));
        waiting.push(tokio::spawn(async move { own.acquire(asked).await }));
        queue_of(&one, "opens", place - 1).await;
    }
    // The first becomes a place that was closed until long ago, and nobody has looked since.
    let raw: String = redis.run(&["GET", KEY]).await;
    let mut lines: Vec<String> = raw.split('\n').map(ToOwned::to_owned).collect();
    let mut fields: Vec<String> = lines[1].split('\t').map(ToOwned::to_owned).collect();
    (fields[0], fields[4]) = (format!("*{}", fields[1]), "1".to_owned());
    lines[1] = fields.join("\t");
    let _: () = redis.run(&["SET", KEY, &lines.join("\n")]).await;
    // The first waiter has that place by now, and loses it with the others; the second is let in.
    assert_eq!(one.revoke(&name("opens"), Revoke::default()).await.unwrap().len(), 2);
    soon("the second waiter", waiting.remove(1)).await.unwrap().unwrap();
}

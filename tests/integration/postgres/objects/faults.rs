//! A server that is killed, cut off or replaced under the guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fence_protocol::Code;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until_true};
use tokio_util::sync::CancellationToken;

/// The server's default is not to wait for the disk: the guard waits all the same.
const ASYNCHRONOUS: (&str, &str) = ("synchronous_commit", "off");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kills_under_load() {
    let mut postgres = Postgres::with(&[ASYNCHRONOUS]).await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let stop = CancellationToken::new();
    let done = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let guard = server.guard();
            let stop = stop.clone();
            let done = done.clone();
            tokio::spawn(async move {
                let key = format!("w/{writer}");
                let mut acknowledged = 0;
                let mut number = 0;
                while !stop.is_cancelled() {
                    number += 1;
                    let token = unsigned(number, &key, lease_id());
                    if guard.put(&key, &token, number.to_string()).await.status < 300 {
                        acknowledged = number;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
                (key, acknowledged)
            })
        })
        .collect();
    for round in 1..=3 {
        until_true("writes", || async { done.load(Ordering::Relaxed) > round * 100 }).await;
        postgres.kill();
        postgres.start_again().await;
    }
    // Its reads have a connection of their own.
    until_true("reads", || async { server.guard().0.get("/v1/fences/w/0").await.status == 200 })
        .await;
    let before = done.load(Ordering::Relaxed);
    until_true("writes again", || async { done.load(Ordering::Relaxed) > before + 100 }).await;
    stop.cancel();
    for writer in writers {
        let (key, acknowledged) = soon("a writer", writer).await.unwrap();
        let guard = server.guard();
        let mark = guard.fence(&key).await.mark.map_or(0, |mark| mark.get());
        assert!(mark >= acknowledged, "{key}: mark {mark} below {acknowledged}");
        let last = unsigned(mark + 1, &key, lease_id());
        let found = guard.fenced_get(&key, &last).await.expect(200);
        let value: u64 = String::from_utf8(found.body.to_vec()).unwrap().parse().unwrap();
        assert!(value >= acknowledged, "{key}: {value} is older than {acknowledged}");
    }
}

/// A write whose reply was lost is reported as unknown, never as done or not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_the_commit_is_unknown() {
    let postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let server = Setup::fenced_store(&url).start().await;
    let other = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "one").await.expect(201);
    proxy.set(Fault::DropRepliesAfter("COMMIT\0"));
    let write = tokio::spawn(async move {
        let problem = guard.put("a", &token, "two").await.problem(Code::OutcomeUnknown);
        (problem.extension::<String>("outcome"), guard, token)
    });
    until_true("a swallowed reply", || async { proxy.dropped() > 0 }).await;
    proxy.set(Fault::None);
    proxy.cut();
    let (outcome, guard, token) = soon("a reply", write).await.unwrap();
    assert_eq!(outcome.as_deref(), Some("unknown"));
    // PostgreSQL has the COMMIT, and may be at work on it.
    until_true("the write, of which only the reply was lost", || async {
        other.guard().fenced_get("a", &token).await.expect(200).body.as_ref() == b"two"
    })
    .await;
    until_true("the guard to work again", || async {
        guard.put("a", &token, "three").await.status == 204
    })
    .await;
}

/// Before the COMMIT nothing can be applied, so that the outcome is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_before_the_commit_changes_nothing() {
    let postgres = Postgres::start().await;
    let proxy = FaultProxy::before(&postgres.address()).await;
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let server = Setup::fenced_store(&url).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "kept").await.expect(201);
    proxy.set(Fault::DropRepliesAfter("fence.admit_all"));
    let write = tokio::spawn(async move {
        guard.put("a", &token, "lost").await.problem(Code::StoreUnavailable);
        (guard, token)
    });
    until_true("a swallowed reply", || async { proxy.dropped() > 0 }).await;
    proxy.set(Fault::None);
    proxy.cut();
    let (guard, token) = soon("a reply", write).await.unwrap();
    until_true("the guard to work again", || async {
        let reply = guard.fenced_get("a", &token).await;
        assert!(reply.status != 200 || reply.body.as_ref() == b"kept", "{reply:?}");
        reply.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_refuses_and_changes_nothing() {
    let mut postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "kept").await.expect(201);
    postgres.kill();
    until_true("503", || async {
        let reply = guard.put("a", &token, "lost").await;
        if reply.status == 503 {
            reply.problem(Code::StoreUnavailable);
        }
        reply.status == 503
    })
    .await;
    until_true("no readiness", || async { guard.0.get("/readyz").await.status == 503 }).await;
    postgres.start_again().await;
    until_true("the guard to work again", || async {
        guard.fenced_get("a", &token).await.status == 200
    })
    .await;
    assert_eq!(guard.fenced_get("a", &token).await.body.as_ref(), b"kept");
    until_true("readiness", || async { guard.0.get("/readyz").await.status == 200 }).await;
}

/// A replica that did not get the last commits has lost marks and objects together. The guard
/// presents the marks that it remembers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_has_lost_marks_with_their_objects() {
    let mut primary = Postgres::start().await;
    let proxy = FaultProxy::before(&primary.address()).await;
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let server = Setup::fenced_store(&url).start().await;
    let guard = server.guard();
    let mut replica = Postgres::replica_of(&primary, "one").await;
    guard.put("a", &unsigned(33, "a", lease_id()), "replicated").await.expect(201);
    let replayed = "SELECT count(*) FROM pg_stat_replication \
                    WHERE replay_lsn = pg_current_wal_lsn()";
    until_true("the replica", || async { primary.sql(replayed).await == "1" }).await;
    replica.stop().await;
    guard.put("a", &unsigned(34, "a", lease_id()), "lost").await.expect(204);
    primary.kill();
    replica.start_again().await;
    replica.promote().await;
    proxy.move_to(&replica.address());
    let late = unsigned(33, "a", lease_id());
    until_true("a refusal by what was acknowledged", || async {
        guard.put("a", &late, "late").await.status == 412
    })
    .await;
    until_true("reads", || async { guard.0.get("/v1/fences/a").await.status == 200 }).await;
    let token = unsigned(35, "a", lease_id());
    assert_eq!(guard.fence("a").await.mark.map(|mark| mark.get()), Some(34));
    assert_eq!(guard.fenced_get("a", &token).await.expect(200).body.as_ref(), b"replicated");
    let floor = serde_json::json!({"floor": 100});
    guard.0.post("/v1/floor", &floor).await.expect(200);
    guard.put("a", &unsigned(99, "a", lease_id()), "late").await.problem(Code::StaleToken);
    guard.put("a", &unsigned(100, "a", lease_id()), "new").await.expect(204);
}

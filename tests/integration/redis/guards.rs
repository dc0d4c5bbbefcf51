//! fenced-store on Redis: two guards are as safe as one, and the marks are Redis'.

use fence_protocol::Code;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until, until_true};

#[tokio::test]
async fn what_one_guard_saw_the_other_refuses() {
    let redis = Redis::start().await;
    let setup = Setup::fenced_store(&redis.url());
    let one = setup.start().await;
    let two = setup.start().await;
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    one.guard().put("a", &old, "old").await.expect(201);
    two.guard().fenced_get("a", &new).await.expect(200);
    one.guard().put("a", &old, "late").await.problem(Code::StaleToken);
    two.guard().put("a", &new, "new").await.expect(204);
    let found = one.guard().fenced_get("a", &new).await.expect(200);
    assert_eq!((found.body.as_ref(), found.header("fencing-mark")), (&b"new"[..], "34"));
    assert_eq!(found.header("fencing-guarantee"), "atomic");
}

#[tokio::test]
async fn marks_and_data_survive_kill_9_of_redis() {
    let mut redis = Redis::start().await;
    let server = Setup::fenced_store(&redis.url()).start().await;
    let guard = server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &new, "new").await.expect(201);
    redis.kill();
    redis.start_again().await;
    until_true("the guard to answer again", || async {
        let reply = guard.put("a", &old, "late").await;
        !matches!(reply.status, 503 | 504) && {
            reply.problem(Code::StaleToken);
            true
        }
    })
    .await;
    assert_eq!(guard.fenced_get("a", &new).await.expect(200).body.as_ref(), b"new");
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let redis = Redis::start().await;
    let server = Setup::fenced_store(&redis.url()).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "one").await.expect(201);
    let _: () = redis.run(&["SCRIPT", "FLUSH"]).await;
    until_true("a write", || async { guard.put("a", &token, "two").await.status == 204 }).await;
    let _: () = redis.run(&["SCRIPT", "FLUSH"]).await;
    let stale = unsigned(32, "a", lease_id());
    until_true("a refusal", || async { guard.put("a", &stale, "x").await.status == 412 }).await;
}

/// A write whose reply was lost is reported as unknown, never as done or not done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_unknown() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = Setup::fenced_store(&format!("redis://{}", proxy.address())).start().await;
    let other = Setup::fenced_store(&redis.url()).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "one").await.expect(201);
    let works = || async { guard.put("a", &token, "one").await.status == 204 };
    let problem = until("a write that is sent", || async {
        proxy.set(Fault::DropReplies);
        let reply = soon("an answer", guard.put("a", &token, "two")).await;
        if reply.status == 503 {
            // Redis was slow to answer before, and its connection was given up.
            proxy.heal();
            proxy.cut();
            until_true("the guard to work", works).await;
            return None;
        }
        Some(reply.problem(Code::OutcomeUnknown))
    })
    .await;
    assert_eq!(problem.extension::<String>("outcome").as_deref(), Some("unknown"));
    until_true("the write: it was applied; only the reply was lost", || async {
        let found = other.guard().fenced_get("a", &token).await;
        found.status == 200 && found.body.as_ref() == b"two"
    })
    .await;
    proxy.set(Fault::None);
    proxy.cut();
    until_true("the guard to work again", || async {
        guard.put("a", &token, "three").await.status == 204
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_redis_refuses_and_changes_nothing() {
    let mut redis = Redis::start().await;
    let server = Setup::fenced_store(&redis.url()).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    guard.put("a", &token, "kept").await.expect(201);
    redis.kill();
    until_true("503", || async {
        let reply = guard.put("a", &token, "lost").await;
        if reply.status == 503 {
            reply.problem(Code::StoreUnavailable);
        }
        reply.status == 503
    })
    .await;
    redis.start_again().await;
    until_true("the guard to answer again", || async {
        guard.fenced_get("a", &token).await.status == 200
    })
    .await;
    assert_eq!(guard.fenced_get("a", &token).await.body.as_ref(), b"kept");
}

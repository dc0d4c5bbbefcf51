//! `Idempotency-Key`: a repeat after a lost reply gives the first outcome.

use fence_protocol::Code;
use fence_protocol::wire::fence::WriteOutcome;
use fence_tests::api::{Guard, Reply};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::wait::until_true;
use http::Method;

use super::memory;

async fn put(guard: &Guard, token: &str, name: &str, body: &'static str) -> Reply {
    let headers = [("fencing-token", token), ("idempotency-key", name)];
    guard.with(Method::PUT, "a", &headers, body).await
}

fn is_replayed(reply: &Reply) -> bool {
    reply.header("idempotency-replayed") == "true"
}

#[tokio::test]
async fn a_repeat_gives_the_first_answer() {
    let server = memory().await;
    let guard = server.guard();
    let old = unsigned(33, "a", lease_id());
    let first = put(&guard, &old, "\"op 1\"", "one").await.expect(201);
    assert!(!is_replayed(&first));
    guard.put("a", &old, "two").await.expect(204);
    let again = put(&guard, &old, "\"op 1\"", "one").await.expect(201);
    assert!(is_replayed(&again));
    assert_eq!(again.header("etag"), first.header("etag"), "the first tag");
    assert_eq!(again.header("fencing-mark"), "33");
    assert_eq!(guard.fenced_get("a", &old).await.expect(200).body.as_ref(), b"two");
    let taken = put(&guard, &old, "\"op 1\"", "other").await.problem(Code::OpIdReused);
    assert_eq!(taken.extension::<WriteOutcome>("outcome"), Some(WriteOutcome::NotApplied));
    assert_eq!(guard.fenced_get("a", &old).await.expect(200).body.as_ref(), b"two");

    let headers = [("fencing-token", old.as_str()), ("idempotency-key", "delete-1")];
    guard.with(Method::DELETE, "a", &headers, "").await.expect(204);
    guard.put("a", &old, "three").await.expect(201);
    let again = guard.with(Method::DELETE, "a", &headers, "").await.expect(204);
    assert!(is_replayed(&again));
    assert_eq!(guard.fenced_get("a", &old).await.expect(200).body.as_ref(), b"three");

    let new = unsigned(34, "a", lease_id());
    guard.sealed("a", &new).await;
    let reply = put(&guard, &old, "\"op 1\"", "one").await;
    let stale = reply.problem(Code::StaleToken);
    assert!(is_replayed(&reply));
    assert_eq!(
        stale.extension::<WriteOutcome>("outcome"),
        Some(WriteOutcome::Applied),
        "it was, once"
    );
    assert_eq!(stale.extension::<String>("etag").as_deref(), Some(first.header("etag")));
    assert_eq!(stale.extension::<u64>("min_token"), Some(34));
    let never = put(&guard, &old, "op-2", "late").await.problem(Code::StaleToken);
    assert_eq!(never.extension::<WriteOutcome>("outcome"), Some(WriteOutcome::NotApplied));
    assert_eq!(guard.fenced_get("a", &new).await.expect(200).body.as_ref(), b"three");
    put(&guard, &new, "\"op 1\"", "one").await.expect(201);
    assert_eq!(guard.fenced_get("a", &new).await.expect(200).body.as_ref(), b"three");
}

/// The case that names are for: the reply was lost behind the guard, and the write was done.
#[tokio::test]
async fn a_lost_reply_is_found_again() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let server = Setup::fenced_store(&format!("redis://{}", proxy.address())).start().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    proxy.set(Fault::DropReplies);
    put(&guard, &token, "op-1", "one").await.problem(Code::OutcomeUnknown);
    proxy.set(Fault::None);
    proxy.cut();
    // Another client writes before the repeat comes: it must not be overwritten.
    until_true("the store is back", || async {
        guard.with(Method::PUT, "a", &[("fencing-token", token.as_str())], "two").await.status < 300
    })
    .await;
    let found = put(&guard, &token, "op-1", "one").await.expect(201);
    assert!(is_replayed(&found));
    assert_eq!(guard.fenced_get("a", &token).await.expect(200).body.as_ref(), b"two");
}

/// A guard that is killed knows its names when it is back.
#[tokio::test]
async fn names_survive_a_kill() {
    let data = DataDir::new();
    let setup = Setup::fenced_store(&data.store());
    let token = unsigned(33, "a", lease_id());
    let mut server = setup.start().await;
    let first = put(&server.guard(), &token, "op-1", "one").await.expect(201);
    server.process.kill();
    let server = setup.start().await;
    let again = put(&server.guard(), &token, "op-1", "one").await.expect(201);
    assert_eq!(again.header("etag"), first.header("etag"));
    assert!(is_replayed(&again));
}

/// A condition that failed once has failed: the repeat does not find another answer.
#[tokio::test]
async fn a_failed_condition_is_an_outcome() {
    let server = memory().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    let update = async || {
        let headers =
            [("fencing-token", token.as_str()), ("idempotency-key", "u"), ("if-match", "*")];
        guard.with(Method::PUT, "a", &headers, "new").await
    };
    update().await.problem(Code::PreconditionFailed);
    guard.put("a", &token, "there").await.expect(201);
    let again = update().await;
    again.problem(Code::PreconditionFailed);
    assert!(is_replayed(&again));
    assert_eq!(guard.fenced_get("a", &token).await.expect(200).body.as_ref(), b"there");
}

#[tokio::test]
async fn names_are_words_or_strings() {
    let server = memory().await;
    let guard = server.guard();
    let token = unsigned(33, "a", lease_id());
    let long = "x".repeat(129);
    let quoted = format!("\"{long}\"");
    for bad in ["", "\"\"", "\"open", "two words", "a,b", "\"a\";b=1", "\"a\\b\"", &long, &quoted] {
        let problem = put(&guard, &token, bad, "x").await.problem(Code::InvalidRequest);
        assert!(problem.detail.contains("Idempotency-Key"), "{}", problem.detail);
    }
    assert_eq!(guard.fence("a").await.mark, None, "a bad request raised the mark");
    put(&guard, &token, "op:1.a_b-c", "x").await.expect(201);
    // A word is a string without its quotes.
    assert!(is_replayed(&put(&guard, &token, "\"op:1.a_b-c\"", "x").await.expect(201)));
    put(&guard, &token, "\"a \\\" \\\\ b\"", "x").await.expect(204);
    put(&guard, &token, &"x".repeat(128), "x").await.expect(204);
    // A read needs no name, and is the same with one.
    let headers = [("fencing-token", token.as_str()), ("idempotency-key", "op:1.a_b-c")];
    let read = guard.with(Method::GET, "a", &headers, "").await.expect(200);
    assert!(!is_replayed(&read));
}

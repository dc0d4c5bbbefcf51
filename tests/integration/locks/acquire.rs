//! Acquire: the grant, the repeat, the refusal.

use fence_protocol::wire::lock::HolderInfo;
use fence_protocol::{Code, FencingToken};
use fence_tests::key_file::{KeyFile, lease_id};
use fence_tests::servers::Setup;
use serde_json::json;

use super::memory;

#[tokio::test]
async fn a_grant_carries_everything_that_its_holder_needs() {
    let server = memory().await;
    let locks = server.locks();
    let reply = locks.acquire("orders/42", json!({"ttl_ms": 20_000, "owner": "web-1"})).await;
    assert!(!reply.header("x-request-id").is_empty());
    assert_eq!(reply.header("content-type"), "application/json");
    let lease = reply.lease();
    assert_eq!((lease.lock.as_str(), lease.owner.as_str()), ("orders/42", "web-1"));
    assert!(lease.ttl_ms <= 20_000 && lease.ttl_ms > 0);
    assert_eq!(lease.waited_ms, 0);
    let header: FencingToken = lease.fencing_token.parse().unwrap();
    assert_eq!((header.token, header.lease), (lease.token, lease.lease_id));
    assert_eq!(lease.fencing_credential, header.credential());
    assert_eq!((header.lock, header.signature), (lease.lock, None));
}

#[tokio::test]
async fn without_a_body_the_defaults_hold() {
    let server = memory().await;
    let path = "/v1/locks/plain/acquire";
    let reply = server.locks().0.send(http::Method::POST, path, &[], "").await;
    let lease = reply.lease();
    assert!(lease.ttl_ms > 10_000 && lease.ttl_ms <= 15_000, "{}", lease.ttl_ms);
}

#[tokio::test]
async fn a_name_with_slashes_may_be_typed_as_it_is() {
    let server = memory().await;
    let locks = server.locks();
    let lease = locks.0.post("/v1/locks/orders/42/acquire", &json!({})).await.lease();
    assert_eq!(lease.lock.as_str(), "orders/42");
    locks.acquire("orders/42", json!({})).await.problem(Code::LockHeld);
    locks.0.get("/v1/locks/orders/42").await.expect(200);
}

#[tokio::test]
async fn what_curl_sends_by_default_is_understood() {
    let server = memory().await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let path = "/v1/locks/curl/acquire";
    let body = r#"{"ttl_ms": 1000}"#;
    server.locks().0.send(http::Method::POST, path, &form, body).await.lease();
}

#[tokio::test]
async fn with_a_key_file_the_token_is_signed() {
    let keys = KeyFile::new("k1", 7);
    let server = Setup::lock_server("memory:").keys(&keys.path()).in_process().await;
    let lease = server.locks().grant("signed", 1_000).await;
    assert_eq!(lease.fencing_token, keys.sign(lease.token.get(), "signed", lease.lease_id));
    let header: FencingToken = lease.fencing_token.parse().unwrap();
    assert_eq!(lease.fencing_credential, header.credential());
}

#[tokio::test]
async fn a_repeat_with_the_same_id_gets_the_same_grant() {
    let server = memory().await;
    let locks = server.locks();
    let ask = json!({"lease_id": lease_id(), "ttl_ms": 30_000, "owner": "me"});
    let first = locks.acquire("once", ask.clone()).await.lease();
    let again = locks.acquire("once", ask.clone()).await.lease();
    assert_eq!((first.token, first.lease_id), (again.token, again.lease_id));
    assert_eq!(first.fencing_token, again.fencing_token);
    assert!(again.ttl_ms <= 30_000);
    let mut theirs = ask;
    theirs["owner"] = json!("another client");
    locks.acquire("once", theirs).await.problem(Code::LeaseIdConflict);
}

#[tokio::test]
async fn a_held_lock_answers_423_with_its_holder() {
    let server = memory().await;
    let locks = server.locks();
    let held = locks.acquire("held", json!({"ttl_ms": 30_000, "owner": "first"})).await.lease();
    let reply = locks.acquire("held", json!({})).await;
    let problem = reply.problem(Code::LockHeld);
    let holder: HolderInfo = problem.extension("holder").unwrap();
    assert_eq!((holder.owner.as_str(), holder.token), ("first", held.token));
    assert!(holder.expires_in_ms > 0 && holder.expires_in_ms <= 30_000);
    assert_eq!(problem.extension::<usize>("queue_length"), Some(0));
    assert!(problem.retryable);
    let seconds: u64 = reply.header("retry-after").parse().expect("Retry-After in seconds");
    assert!((1..=30).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_minimum_lifts_the_counter() {
    let server = memory().await;
    let locks = server.locks();
    let first = locks.grant("a", 30_000).await.token.get();
    // The ceiling of a minimum rises by 1000 a millisecond, and begins below the first token.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let lifted = locks.acquire("b", json!({"min_token": first + 1_000})).await.lease();
    assert!(lifted.token.get() > first + 1_000);
    assert!(locks.grant("c", 30_000).await.token > lifted.token);
}

#[tokio::test]
async fn one_request_cannot_use_up_the_tokens() {
    let server = memory().await;
    let locks = server.locks();
    let reply = locks.acquire("greedy", json!({"min_token": 999_999_999_999_998_u64})).await;
    assert!(reply.status >= 400, "{reply:?}");
    locks.grant("greedy", 1_000).await;
}

//! Objects: what a token may do, and what each refusal says.

use fence_protocol::wire::fence::WriteOutcome;
use fence_protocol::{Code, LeaseId};
use fence_tests::key_file::{KeyFile, lease_id, unsigned};
use fence_tests::servers::Setup;
use http::Method;

use super::memory;

#[tokio::test]
async fn a_write_then_a_read_with_the_mark_in_the_headers() {
    let server = memory().await;
    let guard = server.guard();
    let token = unsigned(33, "orders/42", lease_id());
    let headers = [("fencing-token", token.as_str()), ("content-type", "text/plain")];
    let created = guard.with(Method::PUT, "orders/42", &headers, "paid").await.expect(201);
    assert_eq!(created.header("fencing-mark"), "33");
    assert_eq!(created.header("fencing-guarantee"), "atomic");
    let found = guard.fenced_get("orders/42", &token).await.expect(200);
    assert_eq!((found.body.as_ref(), found.header("content-type")), (&b"paid"[..], "text/plain"));
    assert_eq!(found.header("etag"), created.header("etag"));
    assert_eq!(found.header("fencing-mark"), "33");
    guard.put("orders/42", &token, "shipped").await.expect(204);
    guard.delete("orders/42", &token).await.expect(204);
    guard.fenced_get("orders/42", &token).await.problem(Code::NotFound);
}

#[tokio::test]
async fn a_stale_token_is_refused_and_nothing_changes() {
    let server = memory().await;
    let guard = server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &old, "old").await.expect(201);
    guard.put("a", &new, "new").await.expect(204);
    for reply in [
        guard.put("a", &old, "late").await,
        guard.delete("a", &old).await,
        guard.fenced_get("a", &old).await,
        guard.seal("a", &old).await,
    ] {
        let problem = reply.problem(Code::StaleToken);
        assert_eq!(problem.extension::<u64>("presented"), Some(33));
        assert_eq!(problem.extension::<u64>("mark"), Some(34));
        assert_eq!(problem.extension::<WriteOutcome>("outcome"), Some(WriteOutcome::NotApplied));
        assert!(!problem.retryable);
    }
    assert_eq!(guard.fenced_get("a", &new).await.expect(200).body.as_ref(), b"new");
}

#[tokio::test]
async fn one_token_from_two_leases_is_an_alarm() {
    let server = memory().await;
    let guard = server.guard();
    let mine = unsigned(33, "a", lease_id());
    guard.put("a", &mine, "mine").await.expect(201);
    let theirs = unsigned(33, "a", lease_id());
    for reply in [guard.put("a", &theirs, "x").await, guard.fenced_get("a", &theirs).await] {
        reply.problem(Code::TokenCollision);
    }
    assert_eq!(guard.fenced_get("a", &mine).await.expect(200).body.as_ref(), b"mine");
}

#[tokio::test]
async fn without_a_token_nothing_is_written() {
    let server = memory().await;
    let guard = server.guard();
    for method in [Method::PUT, Method::DELETE] {
        let problem = guard.with(method, "a/b", &[], "x").await.problem(Code::TokenRequired);
        assert!(problem.detail.contains("a/b"), "{}", problem.detail);
        assert_eq!(problem.extension::<String>("lock").as_deref(), Some("a/b"));
    }
    assert_eq!(guard.fence("a/b").await.mark, None);
}

#[tokio::test]
async fn a_fenced_read_raises_the_mark() {
    let server = memory().await;
    let guard = server.guard();
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    guard.put("a", &old, "old").await.expect(201);
    guard.fenced_get("a", &new).await.expect(200);
    guard.put("a", &old, "late").await.problem(Code::StaleToken);
}

#[tokio::test]
async fn rules_say_which_lock_protects_what() {
    let server = Setup::fenced_store("memory:")
        .args(&["--rule", "orders/{id}/**=orders/{id}", "--rule", "public/**=@open"])
        .in_process()
        .await;
    let guard = server.guard();
    let token = unsigned(5, "orders/42", lease_id());
    guard.put("orders/42/item/7", &token, "x").await.expect(201);
    guard.put("orders/42", &token, "x").await.expect(201);
    let problem = guard.put("orders/43/item", &token, "x").await.problem(Code::WrongLock);
    assert!(problem.detail.contains("orders/43"), "{}", problem.detail);
    let newer = unsigned(6, "orders/42", lease_id());
    guard.fenced_get("orders/42", &newer).await.expect(200);
    guard.put("orders/42/item/7", &token, "late").await.problem(Code::StaleToken);
    guard.with(Method::PUT, "public/page", &[], "open").await.expect(201);
    assert_eq!(guard.get("public/page").await.expect(200).body.as_ref(), b"open");
    guard.with(Method::PUT, "private", &[], "x").await.problem(Code::TokenRequired);
}

#[tokio::test]
async fn a_token_of_another_namespace_is_refused() {
    let server = memory().await;
    let token = format!("33;lock=\"a\";lease=\"{}\";ns=\"other\"", lease_id());
    server.guard().put("a", &token, "x").await.problem(Code::WrongLock);
}

#[tokio::test]
async fn conditions_are_judged_after_the_fence() {
    let server = memory().await;
    let guard = server.guard();
    let lease: LeaseId = lease_id();
    let token = unsigned(2, "a", lease);
    let send = async |token: &str, name: &'static str, value: &str, body: &'static str| {
        let headers = [("fencing-token", token), (name, value)];
        guard.with(Method::PUT, "a", &headers, body).await
    };
    send(&token, "if-match", "*", "x").await.problem(Code::PreconditionFailed);
    let created = send(&token, "if-none-match", "*", "one").await.expect(201);
    let tag = created.header("etag").to_owned();
    send(&token, "if-none-match", "*", "x").await.problem(Code::PreconditionFailed);
    send(&token, "if-match", &tag, "two").await.expect(204);
    send(&token, "if-match", &tag, "x").await.problem(Code::PreconditionFailed);
    let stale = unsigned(1, "a", lease_id());
    send(&stale, "if-match", "*", "x").await.problem(Code::StaleToken);
    // A condition that failed was answered to a newer holder: the old one is out.
    let newer = unsigned(3, "a", lease_id());
    send(&newer, "if-none-match", "*", "x").await.problem(Code::PreconditionFailed);
    send(&token, "if-match", "*", "x").await.problem(Code::StaleToken);
    assert_eq!(guard.fenced_get("a", &newer).await.expect(200).body.as_ref(), b"two");
    let tag = guard.fenced_get("a", &newer).await.header("etag").to_owned();
    let headers = [("fencing-token", newer.as_str()), ("if-none-match", tag.as_str())];
    guard.with(Method::GET, "a", &headers, "").await.expect(304);
    send(&newer, "if-match", "W/\"weak\"", "x").await.problem(Code::InvalidRequest);
}

#[tokio::test]
async fn values_are_bytes_up_to_the_limit() {
    let server =
        Setup::fenced_store("memory:").args(&["--max-object-bytes", "1000000"]).in_process().await;
    let guard = server.guard();
    let token = unsigned(1, "blob", lease_id());
    let body: Vec<u8> = (0..=255_u8).cycle().take(1_000_000).collect();
    guard.put("blob", &token, body.clone()).await.expect(201);
    assert!(guard.fenced_get("blob", &token).await.expect(200).body == body);
    let problem = guard.put("blob", &token, vec![0; 1_000_001]).await;
    assert!(problem.problem(Code::PayloadTooLarge).detail.contains("1000000"));
    assert!(guard.fenced_get("blob", &token).await.expect(200).body == body);
}

#[tokio::test]
async fn signatures_are_checked() {
    let keys = KeyFile::new("k1", 1);
    let forged = KeyFile::new("k1", 2);
    let unknown = KeyFile::new("k2", 1);
    let server = Setup::fenced_store("memory:").keys(&keys.path()).in_process().await;
    let guard = server.guard();
    let lease = lease_id();
    for (header, shown) in [
        (forged.sign(33, "a", lease), "signature"),
        (unknown.sign(33, "a", lease), "k2"),
        (unsigned(33, "a", lease), "no signature"),
        (keys.sign(33, "a", lease).replacen("33", "34", 1), "signature"),
        (keys.sign(33, "b", lease).replace("\"b\"", "\"a\""), "signature"),
        (
            keys.sign(33, "a", lease).replace(&lease.to_string(), &lease_id().to_string()),
            "signature",
        ),
    ] {
        let detail = guard.put("a", &header, "x").await.problem(Code::BadSignature).detail;
        assert!(detail.contains(shown), "{header}: {detail}");
    }
    assert_eq!(guard.fence("a").await.mark, None, "a forged token raised the mark");
    guard.put("a", &keys.sign(33, "a", lease), "x").await.expect(201);
    guard.put("b", &keys.sign(34, "a", lease), "x").await.problem(Code::WrongLock);
}

//! `fence serve`: its lock server knows its guard.

use fence_protocol::Code;
use fence_tests::api::{Api, Guard, Locks};
use fence_tests::process::{Process, command};
use fence_tests::redis_server::Redis;
use fence_tests::wait::{until, until_true};
use http::Method;
use serde_json::Value;

use super::serve;

/// A lease is revoked: the guard refuses its holder before any other client has been there.
async fn a_revocation_is_sealed(locks: &str, guard: &str) {
    let locks = Locks::new(locks);
    let at_guard = Guard::new(guard);
    let (old, revoked) = until("a guard that replies in time", || async {
        let old = locks.grant("orders/42", 60_000).await;
        let revoked: Value = locks.revoke("orders/42", "by the test").await.expect(200).json();
        let problem = revoked["guards"][0]["problem"].as_str().unwrap_or_default();
        (!problem.contains(" within ")).then_some((old, revoked))
    })
    .await;
    assert!(revoked["guards"][0]["mark"].as_u64() > Some(old.token.get()), "{revoked}");
    assert_eq!(revoked["guards"][0]["guard"], guard, "{revoked}");
    at_guard.put("orders/42", &old.fencing_token, "late").await.problem(Code::StaleToken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_consoles_address_is_printed() {
    let (process, locks, _guard) = serve().await;
    let line = format!("console in a browser: {locks}/ui\n");
    until_true("the address", || async { process.stdout().contains(&line) }).await;
    let page = Api::new(&locks).send(Method::GET, "/ui/", &[], String::new()).await;
    assert!(page.header("content-type").starts_with("text/html"), "{page:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_seals_its_own_guard() {
    let (_process, locks, guard) = serve().await;
    a_revocation_is_sealed(&locks, &guard).await;
}

/// Two services on one Redis, which is empty at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_seals_its_own_guard_before_a_redis() {
    let redis = Redis::start().await;
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["serve", "--redis", &redis.url(), "--redis-listen", "127.0.0.1:0"]);
    command.args(["--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"]);
    let mut process = Process::spawn("fence serve", command);
    let locks = process.line_after("lock-server listening on ").await;
    let guard = process.line_after("fenced-store listening on ").await;
    a_revocation_is_sealed(&locks, &guard).await;
}

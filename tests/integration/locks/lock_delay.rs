//! `--lock-delay PREFIX=DURATION`: a lock stays closed after a lease whose holder fell silent.

use fence_protocol::wire::lock::{LockState, RevokedReply};
use fence_protocol::{Code, LeaseId};
use fence_tests::api::Locks;
use fence_tests::in_process::InProcess;
use fence_tests::key_file::lease_id;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

use super::site::{Kind, Site};

/// A server with this delay; what a delay does on each store is in `conformance`.
async fn delayed(delay: &str) -> InProcess {
    Setup::lock_server("memory:").args(&["--lock-delay", delay]).in_process().await
}

async fn silent(locks: &Locks, lock: &str) -> LeaseId {
    let lease = locks.grant(lock, 15_000).await;
    until_true("the end of the lease", || async { locks.show(lock).await.lease_count == 0 }).await;
    lease.lease_id
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_holder_fell_silent_stays_closed_and_opens() {
    let server = delayed("slow/=30s").await;
    let locks = server.locks();
    silent(&locks, "slow/job").await;
    let shown = locks.show("slow/job").await;
    assert_eq!(shown.state, LockState::Delayed, "{shown:?}");
    assert!(shown.delayed_ms.is_some_and(|ms| ms > 0 && ms <= 30_000), "{shown:?}");
    locks.acquire("slow/job", json!({})).await.problem(Code::LockHeld);
    let next = locks.acquire("slow/job", json!({"wait_ms": 60_000})).await.lease();
    assert!(next.waited_ms > 0);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_says_so_opens_the_lock_at_once() {
    let server = delayed("*=5m").await;
    let locks = server.locks();
    let first = locks.grant("job", 60_000).await;
    locks.release("job", first.lease_id).await.expect(200);
    let second = locks.grant("job", 60_000).await;
    locks.revoke("job", "by the test").await.expect(200);
    locks.renew("job", second.lease_id).await.problem(Code::LeaseLost);
    locks.grant("job", 60_000).await;
}

#[tokio::test(start_paused = true)]
async fn other_prefixes_and_exceptions_have_none() {
    let server = delayed("slow/=5m").await;
    let locks = server.locks();
    silent(&locks, "job").await;
    locks.grant("job", 60_000).await;
    let args = ["--lock-delay", "*=5m", "--lock-delay", "quick/=0s"];
    let server = Setup::lock_server("memory:").args(&args).in_process().await;
    silent(&server.locks(), "quick/job").await;
    server.locks().grant("quick/job", 60_000).await;
}

/// Locks that were acquired in one step stay closed each for itself.
#[tokio::test(start_paused = true)]
async fn several_at_once_stay_closed_too() {
    let server = delayed("slow/=5m").await;
    let locks = server.locks();
    let lease = lease_id();
    let body =
        json!({"locks": [{"lock": "slow/a"}, {"lock": "b"}], "ttl_ms": 15_000, "lease_id": lease});
    locks.0.post("/v1/acquire", &body).await.expect(200);
    until_true("the end of both", || async {
        locks.show("slow/a").await.lease_count + locks.show("b").await.lease_count == 0
    })
    .await;
    locks.acquire("slow/a", json!({})).await.problem(Code::LockHeld);
    locks.grant("b", 60_000).await;
}

/// An operator who knows that nothing is under way opens the lock.
#[tokio::test(start_paused = true)]
async fn a_revocation_lifts_the_delay() {
    let server = delayed("*=5m").await;
    let locks = server.locks();
    silent(&locks, "job").await;
    let reply: RevokedReply = locks.revoke("job", "nothing is left").await.expect(200).read();
    assert!(reply.delay_lifted && reply.ended.is_none(), "{reply:?}");
    locks.grant("job", 60_000).await;
}

/// With a guard it is lifted behind a seal.
#[tokio::test]
async fn a_delay_is_lifted_behind_a_seal() {
    let site = Site::new(Kind::Embedded, 1, &["--lock-delay", "*=5m"]).await;
    let locks = site.locks();
    let first = locks.brief("job", 100).await;
    until_true("the delay", || async { locks.show("job").await.state == LockState::Delayed }).await;
    let reply: RevokedReply = locks.revoke("job", "nothing is left").await.expect(200).read();
    let mark = reply.guards[0].mark.expect("a seal");
    assert!(reply.delay_lifted && reply.ended.is_none() && mark > first.token, "{reply:?}");
    site.write(0, &first).await.problem(Code::StaleToken);
    let next = locks.grant("job", 60_000).await;
    site.writes(0, &next).await;
}

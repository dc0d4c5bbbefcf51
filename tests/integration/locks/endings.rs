//! Renew, release, revoke, and every reason of a 410.

use fence_protocol::wire::lock::{EndReason, EndedReply, LockState};
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Locks, Reply};
use fence_tests::key_file::lease_id;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use serde_json::json;

use super::memory;

fn lost(reply: &Reply) -> EndReason {
    reply.problem(Code::LeaseLost).extension("reason").expect("a reason")
}

async fn until_free(locks: &Locks, lock: &str) {
    until_true("the lock to be free", || async { locks.show(lock).await.state == LockState::Free })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_keeps_the_token_and_replaces_the_time() {
    let server = memory().await;
    let locks = server.locks();
    let lease = locks.grant("renewed", 30_000).await;
    let renewed = locks.renew("renewed", lease.lease_id).await.lease();
    assert_eq!((renewed.token, renewed.waited_ms), (lease.token, 0));
    assert_eq!(renewed.fencing_token, lease.fencing_token);
    assert_eq!(renewed.fencing_credential, lease.fencing_credential);
    assert!(renewed.ttl_ms <= 30_000);
    let body = json!({"lease_id": lease.lease_id, "ttl_ms": 15_000});
    let path = "/v1/locks/renewed/renew";
    assert!(locks.0.post(path, &body).await.lease().ttl_ms <= 15_000);
    until_free(&locks, "renewed").await;
    assert_eq!(lost(&locks.renew("renewed", lease.lease_id).await), EndReason::Expired);
}

#[tokio::test]
async fn releasing_twice_is_loud() {
    let server = memory().await;
    let locks = server.locks();
    let lease = locks.grant("twice", 30_000).await;
    let ended: EndedReply = locks.release("twice", lease.lease_id).await.expect(200).read();
    assert_eq!((ended.token, ended.reason), (lease.token, EndReason::Released));
    assert_eq!(lost(&locks.release("twice", lease.lease_id).await), EndReason::Released);
    assert_eq!(lost(&locks.renew("twice", lease.lease_id).await), EndReason::Released);
}

#[tokio::test(start_paused = true)]
async fn every_reason_of_a_lost_lease_is_reported() {
    let server = memory().await;
    let locks = server.locks();
    let expired = locks.grant("reasons", 15_000).await;
    until_free(&locks, "reasons").await;
    assert_eq!(lost(&locks.release("reasons", expired.lease_id).await), EndReason::Expired);
    let revoked = locks.grant("reasons", 30_000).await;
    let ended: EndedReply = locks.revoke("reasons", "maintenance").await.expect(200).read();
    assert_eq!((ended.lease_id, ended.reason), (revoked.lease_id, EndReason::Revoked));
    assert_eq!(lost(&locks.renew("reasons", revoked.lease_id).await), EndReason::Revoked);
    locks.grant("reasons", 30_000).await;
    assert_eq!(lost(&locks.renew("reasons", lease_id()).await), EndReason::Superseded);
    for (lease, reason) in [(expired, EndReason::Expired), (revoked, EndReason::Revoked)] {
        let again = json!({"lease_id": lease.lease_id, "wait_ms": 60_000});
        assert_eq!(lost(&locks.acquire("reasons", again).await), reason);
    }
}

/// An id that was mixed up is not said to have expired: the server knows nothing of it.
#[tokio::test]
async fn a_lease_that_was_never_granted_is_not_known() {
    let server = memory().await;
    let locks = server.locks();
    locks.grant("held", 60_000).await;
    for (lock, reason) in [("free", EndReason::Expired), ("held", EndReason::Superseded)] {
        for reply in [
            locks.renew(lock, lease_id()).await,
            locks.release(lock, lease_id()).await,
            locks.0.post(&format!("/v1/locks/{lock}/revoke"), &one(lease_id())).await,
        ] {
            let problem = reply.problem(Code::LeaseLost);
            assert_eq!(problem.extension("known"), Some(false), "{problem:?}");
            assert_eq!(problem.extension("reason"), Some(reason), "{problem:?}");
            let text = format!("lock {lock} knows no such lease: it was never granted");
            assert!(problem.detail.starts_with(&text), "{problem:?}");
        }
    }
    let lease = locks.grant("known", 60_000).await;
    locks.release("known", lease.lease_id).await.expect(200);
    let again = locks.release("known", lease.lease_id).await.problem(Code::LeaseLost);
    assert_eq!(again.extension::<bool>("known"), None, "{again:?}");
    assert_eq!(again.detail, "the lease on lock known has ended: released");
}

fn one(lease_id: LeaseId) -> serde_json::Value {
    json!({"reason": "by the test", "lease_id": lease_id})
}

#[tokio::test]
async fn revoking_a_free_lock_is_an_error() {
    let server = memory().await;
    let reply = server.locks().revoke("free", "no reason").await;
    assert!((400..500).contains(&reply.status), "{reply:?}");
}

#[tokio::test]
async fn an_early_release_wins_over_its_late_acquire() {
    let server = memory().await;
    let locks = server.locks();
    let id: LeaseId = lease_id();
    assert_eq!(locks.release("early", id).await.status, 410);
    let late = locks.acquire("early", json!({"lease_id": id})).await;
    assert_eq!(lost(&late), EndReason::Released);
    locks.grant("early", 1_000).await;
}

#[tokio::test]
async fn a_late_duplicate_is_never_granted_again() {
    let server = memory().await;
    let locks = server.locks();
    let ask = json!({"lease_id": lease_id(), "ttl_ms": 30_000});
    let lease = locks.acquire("late", ask.clone()).await.lease();
    locks.release("late", lease.lease_id).await.expect(200);
    assert_eq!(lost(&locks.acquire("late", ask.clone()).await), EndReason::Released);
    let next = locks.grant("late", 30_000).await;
    assert!(next.token > lease.token);
    assert_eq!(lost(&locks.acquire("late", ask).await), EndReason::Released);
}

#[tokio::test(start_paused = true)]
async fn nothing_remains_of_idle_locks() {
    let server = Setup::lock_server("memory:").args(&["--ended-retention", "10s"]);
    let server = server.in_process().await;
    let locks = server.locks();
    let lease = locks.grant("idle", 30_000).await;
    locks.release("idle", lease.lease_id).await.expect(200);
    assert_eq!(locks.show("idle").await.history.len(), 1);
    until_true("the lock to be forgotten", || async {
        locks.show("idle").await.history.is_empty()
    })
    .await;
}

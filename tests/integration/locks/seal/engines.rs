//! The promises of seals, on every engine.

use super::*;

/// Locks enough that an engine with several counters gives the same token more than once.
const LOCKS: usize = 40;

async fn every_grant_is_sealed(kind: Kind) {
    let mut site = Site::new(kind, 1, REQUIRED).await;
    let locks = site.locks();
    let guard = site.guards[0].guard();
    for number in 0..LOCKS {
        let lock = format!("job/{number}");
        let lease = locks.grant(&lock, 60_000).await;
        assert_eq!(mark(&guard, &lock).await, Some(lease.token.get()), "{lock}");
    }
    let first = locks.grant("handed/on", 60_000).await;
    site.writes(0, &first).await;
    locks.release("handed/on", first.lease_id).await.expect(200);
    let body = json!({"lease_id": lease_id(), "ttl_ms": 60_000});
    let next = locks.acquire("handed/on", body.clone()).await.lease();
    site.write(0, &first).await.problem(Code::StaleToken);
    site.writes(0, &next).await;
    site.guards[0].process.kill();
    // Its holder has the reply already.
    assert_eq!(locks.acquire("handed/on", body).await.lease().token, next.token);
    unsealed(&locks.acquire("late", json!({})).await);
    until_true("the lock to be free", || async {
        locks.show("late").await.state == LockState::Free
    })
    .await;
}

#[tokio::test]
async fn embedded() {
    every_grant_is_sealed(Kind::Embedded).await;
}

#[tokio::test]
async fn redis() {
    every_grant_is_sealed(Kind::Redis).await;
}

#[tokio::test]
async fn postgres() {
    every_grant_is_sealed(Kind::Postgres).await;
}

#[tokio::test]
async fn etcd() {
    every_grant_is_sealed(Kind::Etcd).await;
}

#[tokio::test]
async fn quorum() {
    every_grant_is_sealed(Kind::Quorum).await;
}

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

/// A repeat of an acknowledged acquire at another server, while a guard stalls: that server has not
/// sealed the grant itself.
async fn a_repeat_ends_no_lease(kind: Kind) {
    let (site, another) = Site::with_another(kind, 1, REQUIRED).await;
    let locks = site.locks();
    let others = Locks(another.api());
    let body = json!({"lease_id": lease_id(), "ttl_ms": 60_000});
    let held = until("a grant", || async {
        let reply = locks.acquire("job", body.clone()).await;
        (reply.status == 200).then(|| reply.lease())
    })
    .await;
    until("the other server", || async {
        (others.acquire("x", json!({})).await.status == 200).then_some(())
    })
    .await;
    site.guards[0].process.pause();
    let detail = unsealed(&others.acquire("job", body.clone()).await);
    assert!(detail.contains("the lease of an earlier request with this id stays"), "{detail}");
    locks.renew("job", held.lease_id).await.expect(200);
    site.guards[0].process.resume();
    assert_eq!(others.acquire("job", body).await.lease().token, held.token);
    site.writes(0, &held).await;
}

#[tokio::test]
async fn embedded() {
    every_grant_is_sealed(Kind::Embedded).await;
}

#[tokio::test]
async fn redis() {
    every_grant_is_sealed(Kind::Redis).await;
    a_repeat_ends_no_lease(Kind::Redis).await;
}

#[tokio::test]
async fn postgres() {
    every_grant_is_sealed(Kind::Postgres).await;
    a_repeat_ends_no_lease(Kind::Postgres).await;
}

#[tokio::test]
async fn etcd() {
    every_grant_is_sealed(Kind::Etcd).await;
    a_repeat_ends_no_lease(Kind::Etcd).await;
}

#[tokio::test]
async fn quorum() {
    every_grant_is_sealed(Kind::Quorum).await;
    a_repeat_ends_no_lease(Kind::Quorum).await;
}

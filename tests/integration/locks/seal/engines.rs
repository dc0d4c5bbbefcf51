//! The promises of seals, on every engine.

use fence_protocol::Problem;

use super::*;

/// Locks enough that an engine with several counters gives the same token more than once.
const LOCKS: usize = 40;

/// Repeats a request until the store has answered it: a busy one may not in time.
async fn answered<F: Future<Output = Reply>>(request: impl Fn() -> F) -> Reply {
    until("an answer of the store", || async {
        let reply = request().await;
        let code = (reply.status >= 500).then(|| reply.read::<Problem>().code);
        let is_busy = matches!(code, Some(Code::StoreUnavailable | Code::OutcomeUnknown));
        (!is_busy).then_some(reply)
    })
    .await
}

async fn acquired(locks: &Locks, lock: &str, body: &Value) -> Reply {
    answered(|| locks.acquire(lock, body.clone())).await
}

async fn every_grant_is_sealed(kind: Kind) {
    let mut site = Site::new(kind, 1, REQUIRED).await;
    let locks = site.locks();
    let guard = site.guards[0].guard();
    for number in 0..LOCKS {
        let lock = format!("job/{number}");
        let lease = acquired(&locks, &lock, &body()).await.lease();
        assert_eq!(mark(&guard, &lock).await, Some(lease.token.get()), "{lock}");
    }
    let first = acquired(&locks, "handed/on", &body()).await.lease();
    site.writes(0, &first).await;
    let ended = answered(|| locks.release("handed/on", first.lease_id)).await;
    // 410: the reply to the first one was lost.
    assert!(matches!(ended.status, 200 | 410), "{ended:?}");
    let body = body();
    let next = acquired(&locks, "handed/on", &body).await.lease();
    site.write(0, &first).await.problem(Code::StaleToken);
    site.writes(0, &next).await;
    site.guards[0].process.kill();
    // Its holder has the reply already.
    assert_eq!(acquired(&locks, "handed/on", &body).await.lease().token, next.token);
    unsealed(&acquired(&locks, "late", &self::body()).await);
    until_true("the lock to be free", || async {
        locks.show("late").await.state == LockState::Free
    })
    .await;
}

fn body() -> Value {
    json!({"lease_id": lease_id(), "ttl_ms": 60_000})
}

/// A repeat of an acknowledged acquire at another server, while a guard stalls: that server has not
/// sealed the grant itself.
async fn a_repeat_ends_no_lease(kind: Kind) {
    let (site, another) = Site::with_another(kind, 1, REQUIRED).await;
    let locks = site.locks();
    let others = Locks(another.api());
    let body = body();
    let held = acquired(&locks, "job", &body).await.lease();
    // The other server works.
    acquired(&others, "x", &self::body()).await.lease();
    site.guards[0].process.pause();
    let detail = unsealed(&acquired(&others, "job", &body).await);
    assert!(detail.contains("the lease of an earlier request with this id stays"), "{detail}");
    answered(|| locks.renew("job", held.lease_id)).await.expect(200);
    site.guards[0].process.resume();
    assert_eq!(acquired(&others, "job", &body).await.lease().token, held.token);
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

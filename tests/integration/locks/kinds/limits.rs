//! Bad input about kinds and groups: one clear error each, and nothing is lost.

use fence_tests::in_process::InProcess;
use fence_tests::wait::soon;

use super::*;

/// A lock that is held and a counter that is known; [`Witness::check`] shows that both are as they
/// were.
struct Witness {
    server: InProcess,
    lease: LeaseReply,
}

impl Witness {
    async fn new() -> Self {
        let server = memory().await;
        let lease = server.locks().grant("witness", 60_000).await;
        Self { server, lease }
    }

    async fn refused(&self, body: &Value, code: Code) -> String {
        all(&self.server.locks().0, body).await.problem(code).detail
    }

    async fn check(self) {
        let locks = self.server.locks();
        let renewed = locks.renew("witness", self.lease.lease_id).await.lease();
        assert_eq!(renewed.token, self.lease.token);
        let page = locks.0.get("/v1/locks").await.expect(200).json();
        assert_eq!(page["locks"].as_array().unwrap().len(), 1, "{page}");
        let next = locks.grant("next", 1_000).await;
        assert_eq!(next.token.get(), self.lease.token.get() + 1, "refused requests spent tokens");
    }
}

fn wish(count: usize) -> Value {
    json!({"locks": (0..count).map(|n| json!({"lock": format!("many/{n}")})).collect::<Vec<_>>()})
}

#[tokio::test]
async fn one_to_sixty_four_locks_each_once() {
    let witness = Witness::new().await;
    for (body, shown) in [
        (wish(65), "locks has 65 entries: one request acquires 1 to 64"),
        (wish(0), "locks has 0 entries"),
        (json!({}), "locks has 0 entries"),
        (json!({"locks": [{"lock": "a"}, {"lock": "b"}, {"lock": "a"}]}), "lock a is named twice"),
        (
            json!({"locks": [{"lock": "a"}, {"lock": "a", "mode": "permit", "size": 2}]}),
            "lock a is named twice",
        ),
    ] {
        let detail = witness.refused(&body, Code::InvalidRequest).await;
        assert!(detail.contains(shown), "{detail}");
    }
    witness.check().await;
    let server = memory().await;
    assert_eq!(leases(all(&server.locks().0, &wish(64)).await).len(), 64);
}

#[tokio::test]
async fn bad_values_of_a_group() {
    let witness = Witness::new().await;
    let with = |more: Value| {
        let mut body = json!({"locks": [{"lock": "a"}, {"lock": "b"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let of = |lock: Value| json!({"locks": [{"lock": "a"}, lock]});
    for (body, shown) in [
        (with(json!({"ttl_ms": 0})), "ttl_ms"),
        (with(json!({"ttl_ms": 3_600_001})), "3600001"),
        (with(json!({"wait_ms": 300_001})), "300001"),
        (with(json!({"lease_id": "nope"})), "nope"),
        (with(json!({"owner": "a\nb"})), "owner"),
        (with(json!({"takeover": true})), "takeover"),
        (with(json!({"min_token": 5})), "min_token"),
        (of(json!({"lock": "../b"})), ".."),
        (of(json!({"lock": ""})), ""),
        (of(json!({})), "lock"),
        (of(json!({"lock": "b", "kind": "x"})), "kind"),
        (of(json!({"lock": "b", "min_token": 999_999_999_999_999_u64})), "lock b: min_token"),
        (of(json!({"lock": "b", "mode": "permit"})), "lock b: mode permit needs size"),
        (of(json!({"lock": "b", "mode": "permit", "size": 0})), "lock b: size 0 is out of range"),
        (json!({"locks": "a"}), ""),
        (json!([]), ""),
    ] {
        let detail = witness.refused(&body, Code::InvalidRequest).await;
        assert!(detail.contains(shown), "{body}: {detail}");
    }
    let large = with(json!({"metadata": "x".repeat(5_000)}));
    witness.refused(&large, Code::PayloadTooLarge).await;
    witness.check().await;
}

#[tokio::test]
async fn sizes_belong_to_permits_and_have_a_range() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    let id = lease_id();
    for (body, shown) in [
        (json!({"mode": "permit"}), "mode permit needs size: how many there are in all, 1 to 1024"),
        (json!({"mode": "permit", "size": 0}), "size 0 is out of range"),
        (json!({"mode": "permit", "size": 1_025}), "size 1025 is out of range"),
        (json!({"mode": "permit", "size": 1_000_000_000}), "size 1000000000 is out of range"),
        (json!({"mode": "permit", "size": 1_000_000_000_000_u64}), "1000000000000"),
        (json!({"mode": "permit", "size": -1}), "-1"),
        (json!({"mode": "permit", "size": 1.5}), "1.5"),
        (json!({"size": 2}), "size 2 goes with mode permit alone; this request is exclusive"),
        (json!({"mode": "shared", "size": 2}), "this request is shared"),
        (json!({"mode": "exclusif"}), "exclusif"),
        (
            json!({"mode": "shared", "takeover": true, "owner": "a", "incarnation": "1"}),
            "mode shared is not",
        ),
        (
            json!({"mode": "permit", "size": 2, "takeover_of": id, "owner": "a"}),
            "mode permit is not",
        ),
    ] {
        let detail = locks.acquire("bad", body.clone()).await.problem(Code::InvalidRequest).detail;
        assert!(detail.contains(shown), "{body}: {detail}");
    }
    locks.acquire("edge/1", json!({"mode": "permit", "size": 1})).await.expect(200);
    let most = locks.acquire("edge/1024", json!({"mode": "permit", "size": 1_024})).await.lease();
    locks.release("edge/1024", most.lease_id).await.expect(200);
    let edge = locks.show("edge/1").await.holder.unwrap();
    locks.release("edge/1", edge.lease_id).await.expect(200);
}

/// One lock as two kinds, by the client that comes second, at once or after waiting.
#[tokio::test]
async fn one_lock_as_two_kinds() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    for body in [
        json!({"mode": "permit", "size": 1}),
        json!({"mode": "permit", "size": 3, "wait_ms": 60_000}),
    ] {
        let asked = soon("an answer at once", locks.acquire("witness", body));
        let problem = asked.await.problem(Code::LockKindConflict);
        assert!(problem.detail.contains("a lock with exclusive and shared leases"), "{problem:?}");
    }
    let wish = json!([{"lock": "free"}, {"lock": "witness", "mode": "permit", "size": 2}]);
    let detail = witness.refused(&json!({"locks": wish}), Code::LockKindConflict).await;
    assert!(detail.contains("lock witness is in use"), "{detail}");
    witness.check().await;
}

/// As many share a lock as the server allows, and the next one is refused like any other.
#[tokio::test]
async fn shared_leases_are_as_many_as_the_server_allows() {
    let server =
        Setup::lock_server("memory:").args(&["--max-shared-per-lock", "2"]).in_process().await;
    let locks = server.locks();
    let shared = json!({"mode": "shared", "ttl_ms": 60_000});
    let one = locks.acquire("few", shared.clone()).await.lease();
    locks.acquire("few", shared.clone()).await.lease();
    locks.acquire("few", shared.clone()).await.problem(Code::LockHeld);
    locks.release("few", one.lease_id).await.expect(200);
    locks.acquire("few", shared).await.lease();
}

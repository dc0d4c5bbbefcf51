//! Seals, and what can be read of fences.

use fence_protocol::Code;
use fence_protocol::wire::fence::{FencePage, Guarantee};
use fence_tests::key_file::{lease_id, unsigned};

use super::memory;

#[tokio::test]
async fn a_seal_shuts_out_everything_lower() {
    let server = memory().await;
    let guard = server.guard();
    let old = unsigned(33, "a/b", lease_id());
    let new = unsigned(34, "a/b", lease_id());
    guard.put("a/b", &old, "old").await.expect(201);
    for _ in 0..2 {
        let sealed = guard.sealed("a/b", &new).await;
        assert_eq!((sealed.lock.as_str(), sealed.mark.get()), ("a/b", 34));
    }
    guard.put("a/b", &old, "late").await.problem(Code::StaleToken);
    guard.seal("a/b", &unsigned(40, "other", lease_id())).await.problem(Code::WrongLock);
    let unfenced = guard.0.send(http::Method::POST, "/v1/fences/a%2Fb/seal", &[], "").await;
    unfenced.problem(Code::TokenRequired);
    guard
        .0
        .send(http::Method::POST, "/v1/fences/a/b/seal", &[("fencing-token", &new)], "")
        .await
        .expect(200);
}

#[tokio::test]
async fn a_fence_shows_its_mark_and_who_was_refused() {
    let server = memory().await;
    let guard = server.guard();
    let fresh = guard.fence("a").await;
    assert_eq!((fresh.mark, fresh.refused_total), (None, 0));
    let old_lease = lease_id();
    let new_lease = lease_id();
    let old = unsigned(33, "a", old_lease);
    let new = unsigned(34, "a", new_lease);
    guard.put("a", &new, "new").await.expect(201);
    let headers = [("fencing-token", old.as_str()), ("fence-owner", "worker-1")];
    guard.with(http::Method::PUT, "a", &headers, "late").await.problem(Code::StaleToken);
    guard.delete("a", &old).await.problem(Code::StaleToken);
    let fence = guard.fence("a").await;
    assert_eq!((fence.mark.map(|t| t.get()), fence.lease_id), (Some(34), Some(new_lease)));
    assert_eq!((fence.guarantee, fence.refused_total), (Guarantee::Atomic, 2));
    let last = &fence.last_refusals[0];
    assert_eq!((last.token.get(), last.lease_id, last.mark.get()), (33, old_lease, 34));
    assert!(last.operation.contains("DELETE") && last.operation.contains('a'));
    assert_eq!(last.code, "stale-token");
    assert_eq!(fence.last_refusals[1].owner.as_ref().map(|o| o.as_str()), Some("worker-1"));
}

#[tokio::test]
async fn fences_are_listed_in_pages() {
    let server = memory().await;
    let guard = server.guard();
    for lock in ["orders/1", "orders/2", "orders/3", "other"] {
        guard.sealed(lock, &unsigned(5, lock, lease_id())).await;
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    for _ in 0..4 {
        let path = format!("/v1/fences?prefix=orders/&limit=2{after}");
        let page: FencePage = guard.0.get(&path).await.expect(200).read();
        seen.extend(page.fences.iter().map(|line| line.lock.to_string()));
        let Some(next) = page.next_after else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, ["orders/1", "orders/2", "orders/3"]);
    for bad in ["limit=0", "limit=x", "after=a//b", "colour=red"] {
        guard.0.get(&format!("/v1/fences?{bad}")).await.problem(Code::InvalidRequest);
    }
}

#[tokio::test]
async fn operational_paths_answer() {
    let server = memory().await;
    let api = server.guard().0;
    for path in ["/livez", "/readyz", "/readyz?verbose"] {
        api.get(path).await.expect(200);
    }
    assert_eq!(api.get("/version").await.expect(200).json()["name"], "fenced-store");
    let metrics = String::from_utf8(api.get("/metrics").await.expect(200).body.to_vec()).unwrap();
    assert!(metrics.contains("fencepost_http_requests_total"), "{metrics}");
}

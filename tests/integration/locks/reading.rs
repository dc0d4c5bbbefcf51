//! Show, list, and the operational paths.

use fence_protocol::Code;
use fence_protocol::wire::lock::{LockPage, LockState};
use serde_json::json;

use super::memory;

#[tokio::test]
async fn show_has_holder_queue_and_history() {
    let server = memory().await;
    let locks = server.locks();
    assert_eq!(locks.show("a").await.state, LockState::Free);
    let first = locks.grant("a", 30_000).await;
    locks.release("a", first.lease_id).await.expect(200);
    let ask = json!({"owner": "web-1", "metadata": {"job": 7}, "ttl_ms": 30_000});
    let held = locks.acquire("a", ask).await.lease();
    let shown = locks.show("a").await;
    let holder = shown.holder.unwrap();
    assert_eq!((holder.lease_id, holder.info.token), (held.lease_id, held.token));
    assert_eq!(holder.metadata, Some(json!({"job": 7})));
    assert_eq!(shown.history.len(), 1);
    assert_eq!(shown.history[0].token, Some(first.token));
}

#[tokio::test]
async fn a_listing_has_pages() {
    let server = memory().await;
    let locks = server.locks();
    for lock in ["orders/1", "orders/2", "orders/3", "other"] {
        locks.grant(lock, 30_000).await;
    }
    let mut seen = Vec::new();
    let mut after = String::new();
    for _ in 0..4 {
        let path = format!("/v1/locks?prefix=orders/&limit=2{after}");
        let page: LockPage = locks.0.get(&path).await.expect(200).read();
        seen.extend(page.locks.iter().map(|line| line.lock.to_string()));
        let Some(next) = page.next_after else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, ["orders/1", "orders/2", "orders/3"]);
    for bad in ["limit=0", "limit=x", "limit=1000000", "after=a//b", "colour=red"] {
        locks.0.get(&format!("/v1/locks?{bad}")).await.problem(Code::InvalidRequest);
    }
}

#[tokio::test]
async fn operational_paths_answer() {
    let server = memory().await;
    let api = server.locks().0;
    for path in ["/livez", "/readyz", "/readyz?verbose"] {
        api.get(path).await.expect(200);
    }
    assert_eq!(api.get("/version").await.expect(200).json()["name"], "lock-server");
    server.locks().grant("counted", 1_000).await;
    let metrics = String::from_utf8(api.get("/metrics").await.expect(200).body.to_vec()).unwrap();
    assert!(metrics.contains("fencepost_http_requests_total"), "{metrics}");
    assert!(metrics.trim_end().ends_with("# EOF"), "{metrics}");
}

#[tokio::test]
async fn a_request_id_is_taken_over_or_made() {
    let server = memory().await;
    let api = server.locks().0;
    let sane = [("x-request-id", "trace-42")];
    let reply = api.send(http::Method::GET, "/v1/nothing", &sane, "").await;
    assert_eq!(reply.header("x-request-id"), "trace-42");
    let problem = reply.problem(Code::NotFound);
    assert_eq!(problem.extension::<String>("request_id").as_deref(), Some("trace-42"));
    let long = "x".repeat(65);
    for bad in ["a b", long.as_str(), "<script>"] {
        let reply = api.send(http::Method::GET, "/livez", &[("x-request-id", bad)], "").await;
        assert_ne!(reply.header("x-request-id"), bad);
        assert!(!reply.header("x-request-id").is_empty());
    }
}

//! Show, list, and the operational paths.

use fence_protocol::wire::lock::{LeaseMode, LockPage, LockState};
use fence_protocol::{Code, LockName};
use fence_tests::api::Locks;
use fence_tests::key_file::lease_id;
use fence_tests::wait::until_true;
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
    let refused = locks.0.get("/v1/locks?limit=x").await.problem(Code::InvalidRequest);
    let why = "the query \"limit=x\" is not valid: limit: it is no whole number from 0";
    assert_eq!(refused.detail, why);
    let refused = locks.0.post("/v1/locks/a/acquire", &json!({"ttl_ms": -1})).await;
    let refused = refused.problem(Code::InvalidRequest);
    assert!(refused.detail.contains("`-1`, expected a whole number from 0 at"), "{refused:?}");
}

async fn page(locks: &Locks, query: &str) -> LockPage {
    locks.0.get(&format!("/v1/locks?{query}")).await.expect(200).read()
}

fn names(page: &LockPage) -> Vec<&str> {
    page.locks.iter().map(|line| line.lock.as_str()).collect()
}

fn next(page: &LockPage) -> Option<&str> {
    page.next_after.as_ref().map(LockName::as_str)
}

/// Refusals as a guard reports them.
async fn report_refusals(locks: &Locks, lock: &str, count: usize) {
    let refusal = json!({"lock": lock, "token": 1, "lease_id": lease_id(), "mark": 2,
                         "operation": "PUT x: stale-token"});
    let report = json!({"refusals": vec![refusal; count]});
    locks.0.post("/v1/refusals", &report).await.expect(200);
}

#[tokio::test]
async fn a_listing_shows_kinds_and_counts() {
    let server = memory().await;
    let locks = server.locks();
    for _ in 0..3 {
        let permit = json!({"mode": "permit", "size": 5, "ttl_ms": 60_000, "owner": "api-1"});
        locks.acquire("limit", permit).await.lease();
    }
    for owner in ["r1", "r2"] {
        let shared = json!({"mode": "shared", "ttl_ms": 60_000, "owner": owner});
        locks.acquire("report", shared).await.lease();
    }
    locks.grant("single", 60_000).await;
    report_refusals(&locks, "single", 2).await;
    let all = page(&locks, "").await;
    let seen: Vec<_> = all
        .locks
        .iter()
        .map(|line| (line.lock.as_str(), line.mode, line.lease_count, line.size, line.refusals))
        .collect();
    let expected = [
        ("limit", LeaseMode::Permit, 3, Some(5), 0),
        ("report", LeaseMode::Shared, 2, None, 0),
        ("single", LeaseMode::Exclusive, 1, None, 2),
    ];
    assert_eq!(seen, expected);
    // The line is of the owner that is searched for, also if it is not the first.
    let of_second = page(&locks, "owner=r2").await;
    assert_eq!(names(&of_second), ["report"]);
    assert_eq!(of_second.locks[0].holder.as_ref().unwrap().owner.as_str(), "r2");
    assert_eq!(names(&page(&locks, "owner=api").await), ["limit"]);
}

/// Each filter finds the sick ones, and pages have the same bounds with a filter as without.
#[tokio::test]
async fn a_listing_is_filtered_and_sorted_page_by_page() {
    let server = memory().await;
    let locks = server.locks();
    for lock in ["a", "b", "c", "d"] {
        locks.grant(lock, 60_000).await;
    }
    let free = locks.grant("free", 60_000).await;
    locks.release("free", free.lease_id).await.expect(200);
    let mut waiting = Vec::new();
    for lock in ["b", "d", "d"] {
        let locks = locks.clone();
        let wait = json!({"wait_ms": 60_000});
        waiting.push(tokio::spawn(async move { locks.acquire(lock, wait).await }));
    }
    until_true("three waiters", || async {
        let all = page(&locks, "").await;
        all.locks.iter().map(|line| line.queue_length).sum::<usize>() == 3
    })
    .await;
    report_refusals(&locks, "c", 1).await;
    report_refusals(&locks, "free", 3).await;

    assert_eq!(names(&page(&locks, "filter=waiting").await), ["b", "d"]);
    assert_eq!(names(&page(&locks, "filter=waiting&sort=queue").await), ["d", "b"]);
    assert_eq!(names(&page(&locks, "filter=held").await), ["a", "b", "c", "d"]);
    assert_eq!(names(&page(&locks, "sort=refusals").await)[0], "c");
    // A lock whose late writes were refused may be free by now.
    let refused = page(&locks, "filter=refused&sort=refusals").await;
    assert_eq!(names(&refused), ["free", "c"]);
    assert!(refused.locks[0].holder.is_none() && refused.locks[0].lease_count == 0);
    assert_eq!(names(&page(&locks, "filter=refused&prefix=f").await), ["free"]);
    let first = page(&locks, "filter=refused&limit=1").await;
    assert_eq!((names(&first), next(&first)), (vec!["c"], Some("c")));
    let second = page(&locks, "filter=refused&limit=1&after=c").await;
    assert_eq!((names(&second), next(&second)), (vec!["free"], None));

    // Of the two that are read, the first has no waiter.
    let first = page(&locks, "filter=waiting&limit=2").await;
    assert_eq!((names(&first), next(&first)), (vec!["b"], Some("b")));
    let age = page(&locks, "sort=age").await;
    assert_eq!(age.locks.len(), 4);
    let held: Vec<_> = age.locks.iter().map(|line| line.holder.as_ref().unwrap().held_ms).collect();
    assert!(held.is_sorted_by(|a, b| a >= b), "{held:?}");
    for bad in ["filter=sick", "sort=colour", "owner="] {
        locks.0.get(&format!("/v1/locks?{bad}")).await.problem(Code::InvalidRequest);
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
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

//! Several servers: one begins the lineage, and all keep the pause.

use fence_protocol::Code;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::servers::Setup;
use serde_json::json;

use super::*;
use crate::locks::guards::readiness;

/// A server that knows of nothing begins the lineage; one that knows more makes the pause longer,
/// for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_of_more_makes_the_pause_longer() {
    let redis = Redis::start().await;
    let proxy = FaultProxy::before(&redis.address()).await;
    let url = format!("redis://{}", proxy.address());
    let knows = server_at(&url, AfterLoss::Wait).await;
    knows.acquire(request("a", 30_000, 0)).await.unwrap();
    proxy.set(Fault::Refuse);
    forget(&redis).await;
    let begins = server(&redis).await;
    begins.acquire(request("unused/waited", 100, 0)).await.unwrap();
    assert_eq!(pause(&redis).await.0, 0);
    proxy.set(Fault::None);
    let left_ms = until("an answer", || async {
        match knows.acquire(request("b", 100, 0)).await {
            Err(StoreError::Paused { left_ms }) => Some(left_ms),
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert!((20_000..=30_000 + LATE_MS).contains(&left_ms), "{left_ms}");
    let same = left(begins.acquire(request("c", 100, 0)).await);
    // Each reads its own milliseconds.
    assert!(same <= left_ms + 10 && same > 15_000, "{same} of {left_ms}");
}

/// Redis passes the knowledge of one server on to the others: the one that granted need not be
/// there any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_server_granted_is_waited_for() {
    let redis = Redis::start().await;
    let mut granted = Setup::lock_server(&redis.url()).start().await;
    granted.locks().grant("a", 30_000).await;
    until_true("word of the lease", || async { redis.run::<u64>(&["EXISTS", LIVES]).await == 1 })
        .await;
    granted.process.kill();
    // It starts while Redis still knows, and continues when Redis does not.
    let other = server(&redis).await;
    forget(&redis).await;
    let left_ms = left(other.acquire(request("b", 100, 0)).await);
    assert!((20_000..=30_000 + LATE_MS).contains(&left_ms), "{left_ms}");
}

/// Replies to a caller and reports to an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_reported() {
    let redis = Redis::start().await;
    let patient = ["--store-timeout", "20s"];
    let server = Setup::lock_server(&redis.url()).args(&patient).start().await;
    let locks = server.locks();
    locks.grant("a", 15_000).await;
    forget(&redis).await;
    let reply = locks.acquire("b", json!({})).await;
    let problem = reply.problem(Code::StoreUnavailable);
    assert!(problem.detail.contains("no lock is granted for another"), "{problem:?}");
    let left_ms = reply.json()["paused_ms"].as_u64().unwrap();
    // The bound in Redis is ahead by an eighth of the lease.
    assert!(left_ms <= 15_000 + 2_000, "{reply:?}");
    let retry_after = reply.header("retry-after").parse::<u64>();
    assert_eq!(retry_after, Ok(left_ms.div_ceil(1_000).max(1)), "{reply:?}");
    let text = readiness(&server).await;
    assert!(text.contains("[!]grants warning: no lock is granted") && text.ends_with("ready\n"));
    let metrics = locks.0.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let paused =
        metrics.lines().find_map(|line| line.strip_prefix("fencepost_lock_grants_paused_seconds "));
    assert!(paused.is_some_and(|left| left.parse::<f64>().unwrap() > 0.0), "{metrics}");
    locks.acquire("b", json!({"wait_ms": PATIENT_MS})).await.lease();
    until_true("the word of the pause to be gone", || async {
        !readiness(&server).await.contains("grants")
    })
    .await;
}

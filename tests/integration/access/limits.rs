//! Limits of a principal.

use fence_protocol::Code;
use fence_tests::api::Endpoint;
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::wait::until_true;
use http::Method;
use serde_json::json;

use super::{As, Site, on_redis};

#[tokio::test]
async fn locks_held_are_limited_and_nothing_is_lost() {
    let site = Site::with("max-locks = 2");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let a = team.acquire("team/a").await.lease();
    let b = team.acquire("team/b").await.lease();
    let full = team.acquire("team/c").await;
    let problem = full.problem(Code::LimitReached);
    assert!(problem.detail.contains("team: locks held: the limit is 2"), "{problem:?}");
    assert_eq!(problem.extension::<u64>("limit"), Some(2));
    let retry_after: u64 = full.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    // The same request again, a renewal and a release are no third lock.
    let repeat = json!({"ttl_ms": 60_000, "lease_id": b.lease_id});
    assert_eq!(team.lock("team/b", "acquire", &repeat).await.lease().token, b.token);
    let held = json!({"lease_id": a.lease_id});
    team.lock("team/a", "renew", &held).await.expect(200);
    // A refusal by the lock's holder costs nothing either.
    team.lock("team/a", "release", &held).await.expect(200);
    team.acquire("team/b").await.problem(Code::LockHeld);
    team.acquire("team/c").await.lease();
    team.acquire("team/d").await.problem(Code::LimitReached);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_expired_counts_no_more() {
    let site = Site::with("max-locks = 1");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    team.lock("team/a", "acquire", &json!({"ttl_ms": 15_000})).await.lease();
    team.acquire("team/b").await.problem(Code::LimitReached);
    until_true("the lease to expire", || async { team.acquire("team/b").await.status == 200 })
        .await;
}

/// Sends a request of "team" that Redis keeps waiting, hangs up, and lets Redis go on.
async fn hang_up(redis: &Redis, server: &impl Endpoint, path: &str, body: &str) {
    let team = As::new(server, "team");
    let eye = As::new(server, "eye");
    let _: String = redis.run(&["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let arrived = until_true("the request to be there", || async {
        // This one, and the one for the metrics.
        eye.has_metric("fencepost_http_requests_in_flight 2").await
    });
    tokio::select! {
        reply = team.send(Method::POST, path, body) => panic!("{reply:?}"),
        () = arrived => {}
    }
    let _: String = redis.run(&["CLIENT", "UNPAUSE"]).await;
}

/// The room of a release, and the metric of both, come after the reply of the store: whether the
/// route was found or searched for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_a_release_count_though_their_client_hung_up() {
    let site = Site::with("max-locks = 1");
    let redis = Redis::start().await;
    let server = site.arm(on_redis(&redis)).in_process().await;
    let team = As::new(&server, "team");
    let eye = As::new(&server, "eye");
    for (name, count) in [("team/a", 1), ("team%2fb", 2)] {
        let lease = lease_id();
        let body = json!({"ttl_ms": 600_000, "lease_id": lease}).to_string();
        let acquire = format!("/v1/locks/{name}/acquire");
        until_true("room for a lock", || async {
            team.send(Method::POST, &acquire, &body).await.status == 200
        })
        .await;
        let body = json!({"lease_id": lease}).to_string();
        for verb in ["renew", "release"] {
            hang_up(&redis, &server, &format!("/v1/locks/{name}/{verb}"), &body).await;
            let labels = format!("operation=\"{verb}\",outcome=\"ok\"");
            let line = format!("fencepost_lock_operations_total{{{labels}}} {count}");
            until_true("the metric", || async { eye.has_metric(&line).await }).await;
        }
    }
    team.acquire("team/c").await.lease();
}

/// Its lease is rolled back, for no client knows its id: the room is free again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hangs_up_without_an_id_holds_nothing() {
    let site = Site::with("max-locks = 1");
    let redis = Redis::start().await;
    let server = site.arm(on_redis(&redis)).in_process().await;
    let team = As::new(&server, "team");
    let eye = As::new(&server, "eye");
    let body = json!({"ttl_ms": 600_000}).to_string();
    hang_up(&redis, &server, "/v1/locks/team/a/acquire", &body).await;
    until_true("room for a lock", || async { team.acquire("team/b").await.status == 200 }).await;
    until_true("the end of the other", || async {
        eye.get("/v1/locks/team%2Fa").await.json()["state"] == "free"
    })
    .await;
}

#[tokio::test]
async fn waiters_are_limited() {
    let site = Site::with("max-waiters = 1");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let held = team.acquire("team/a").await.lease();
    let waiting = async || team.lock("team/a", "acquire", &json!({"wait_ms": 60_000})).await;
    let first = waiting();
    let others = async {
        until_true("the first to wait", || async {
            team.get("/v1/locks/team%2Fa").await.json()["queue_length"] == 1
        })
        .await;
        let full = waiting().await;
        full.problem(Code::LimitReached);
        assert_eq!(full.header("retry-after"), "1");
        team.acquire("team/b").await.expect(200);
        team.lock("team/a", "release", &json!({"lease_id": held.lease_id})).await.expect(200);
    };
    let (granted, ()) = tokio::join!(first, others);
    let granted = granted.lease();
    // It waits no more, so another may.
    let body = json!({"wait_ms": 1, "lease_id": granted.lease_id});
    team.lock("team/a", "acquire", &body).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn requests_a_second_are_limited_at_both_servers() {
    let site = Site::with("max-requests-per-second = 1");
    for server in [site.lock_server().await, site.guard().await] {
        let team = As::new(&server, "team");
        let eye = As::new(&server, "eye");
        let mut statuses = Vec::new();
        for _ in 0..50 {
            let reply = team.get("/version").await;
            statuses.push(reply.status);
            if reply.status == 429 {
                reply.problem(Code::LimitReached);
                assert_eq!(reply.header("retry-after"), "1");
                break;
            }
        }
        assert_eq!((statuses[0], statuses.last()), (200, Some(&429)), "{statuses:?}");
        eye.get("/version").await.expect(200);
        until_true("the rate to allow one again", || async {
            team.get("/version").await.status == 200
        })
        .await;
    }
}

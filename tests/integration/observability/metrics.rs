//! Metrics of real servers: they are right after restarts, and with several servers on one store.

use fence_protocol::Code;
use fence_tests::api::{Api, Locks};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::resp_client::RespClient;
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::until_true;
use http::Method;
use serde_json::{Value, json};

use super::{metrics, value};
use crate::redis_port::{self, port};

const LOCKS: &str = "fencepost_lock_held";
const SESSIONS: &str = "fencepost_lock_sessions";

async fn held(server: &Server) -> (u64, u64) {
    (server.metric(LOCKS).await, server.metric(SESSIONS).await)
}

async fn session(locks: &Locks, ttl_ms: u64) -> Value {
    let body = json!({ "ttl_ms": ttl_ms, "owner": "me" });
    locks.0.post("/v1/sessions", &body).await.expect(200).json()["session_id"].clone()
}

#[tokio::test]
async fn held_locks_and_sessions_are_right_after_a_restart() {
    let data = DataDir::new();
    let setup = Setup::lock_server(&data.store());
    let mut server = setup.start().await;
    let locks = server.locks();
    let session = session(&locks, 60_000).await;
    let first = locks.grant("a", 60_000).await;
    locks.grant("b", 60_000).await;
    let shared = json!({ "ttl_ms": 60_000, "mode": "shared" });
    locks.acquire("c", shared.clone()).await.expect(200);
    locks.acquire("c", shared).await.expect(200);
    locks.acquire("d", json!({ "session_id": session })).await.expect(200);
    assert_eq!(held(&server).await, (4, 1), "a lock with two leases is one lock");
    locks.release("a", first.lease_id).await.expect(200);
    locks.grant("short", 3_000).await;
    until_true("the short lease to expire", || async { held(&server).await == (3, 1) }).await;
    server.process.kill();
    let server = setup.start().await;
    assert_eq!(held(&server).await, (3, 1));
    let path = format!("/v1/sessions/{}", session.as_str().unwrap());
    server.locks().0.send(Method::DELETE, &path, &[], "").await.expect(200);
    assert_eq!(held(&server).await, (2, 0), "the lease ended with its session");
}

/// Each server shows what it wrote last, so that they add up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_servers_on_one_redis_hold_adds_up() {
    let redis = Redis::start().await;
    let setup = Setup::lock_server(&redis.url());
    let one = setup.start().await;
    let mut two = setup.start().await;
    let moving = one.locks().grant("moving", 6_000).await;
    one.locks().grant("one", 600_000).await;
    let staying = two.locks().grant("two", 600_000).await;
    session(&two.locks(), 600_000).await;
    two.locks().acquire("one", json!({})).await.problem(Code::LockHeld);
    assert_eq!((held(&one).await, held(&two).await), ((2, 0), (1, 1)), "reading is not holding");
    until_true("the renewed lock to be the other's", || async {
        two.locks().renew("moving", moving.lease_id).await.expect(200);
        (held(&one).await, held(&two).await) == ((1, 0), (2, 1))
    })
    .await;
    two.process.kill();
    let two = setup.start().await;
    assert_eq!(held(&two).await, (0, 0));
    two.locks().renew("two", staying.lease_id).await.expect(200);
    assert_eq!((held(&one).await, held(&two).await), ((1, 0), (1, 0)));
}

#[tokio::test]
async fn ends_renewals_and_the_disk_are_timed() {
    let data = DataDir::new();
    let server = Setup::lock_server(&data.store()).in_process().await;
    let locks = server.locks();
    let lease = locks.grant("a", 60_000).await;
    locks.renew("a", lease.lease_id).await.expect(200);
    assert_eq!(value(&server, "fencepost_lock_renewal_slack_ratio_count").await, 1.0);
    let slack = value(&server, "fencepost_lock_renewal_slack_ratio_sum").await;
    assert!(slack > 0.5 && slack <= 1.0, "{slack}");
    locks.release("a", lease.lease_id).await.expect(200);
    locks.grant("a", 3_000).await;
    let ended = |end: &str| format!("fencepost_lock_hold_seconds_count{{end=\"{end}\"}}");
    until_true("the end to be counted", || async {
        value(&server, &ended("expired")).await == 1.0
    })
    .await;
    assert_eq!(value(&server, &ended("released")).await, 1.0);
    let expired = value(&server, "fencepost_lock_hold_seconds_sum{end=\"expired\"}").await;
    assert!(expired >= 3.0, "{expired}");
    let commits = value(&server, "fencepost_lock_store_seconds_count{call=\"commit\"}").await;
    let syncs = value(&server, "fencepost_lock_fsync_seconds_count").await;
    assert!(commits >= 3.0 && syncs >= 3.0, "{commits} commits, {syncs} syncs");
}

#[tokio::test]
async fn refusals_are_counted_by_rule_at_every_door() {
    let upstream = Upstream::start().await;
    let state = DataDir::new();
    let objects = Setup::fenced_store("memory:").arg("--rule").arg("orders/{id}/**=orders/{id}");
    let objects = objects.in_process().await;
    let data = state.path().to_str().unwrap().to_owned();
    let proxy = Setup::bare("fenced-store").args(&[
        "--unsigned",
        "--upstream",
        upstream.base(),
        "--proxy-listen",
        "127.0.0.1:0",
        "--max-request-lifetime",
        "1s",
        "--state",
        &data,
    ]);
    let proxy = proxy.arg("--rule").arg("orders/{id}/**=orders/{id}");
    let mut proxy = proxy.start().await;
    let door = Api::new(&proxy.proxy().await);
    let path = "/orders/7/state";
    let old = unsigned(33, "orders/7", lease_id());
    let new = unsigned(34, "orders/7", lease_id());
    objects.guard().put("orders/7/state", &new, "new").await.expect(201);
    objects.guard().put("orders/7/state", &old, "old").await.problem(Code::StaleToken);
    objects.guard().with(Method::PUT, "orders/7/x", &[], "x").await.problem(Code::TokenRequired);
    objects.guard().seal("orders/7", &old).await.problem(Code::StaleToken);
    let put =
        async |token: &str| door.send(Method::PUT, path, &[("fencing-token", token)], "x").await;
    put(&new).await.expect(204);
    put(&old).await.problem(Code::StaleToken);
    let refused = |code: &str, rule: &str| {
        format!("fencepost_fence_refused_total{{code=\"{code}\",rule=\"{rule}\"}}")
    };
    let rule = "orders/{id}/**=orders/{id}";
    assert_eq!(value(&objects, &refused("stale-token", rule)).await, 1.0);
    assert_eq!(value(&objects, &refused("token-required", rule)).await, 1.0);
    assert_eq!(value(&objects, &refused("stale-token", "seal")).await, 1.0);
    assert_eq!(value(&proxy, &refused("stale-token", rule)).await, 1.0);
    let calls = |call: &str| format!("fencepost_fence_store_seconds_count{{call=\"{call}\"}}");
    assert_eq!(value(&objects, &calls("put")).await, 2.0);
    assert_eq!(value(&proxy, &calls("forward")).await, 1.0);
}

#[tokio::test]
async fn refusals_of_the_redis_port_are_counted_as_those_of_connections() {
    let redis = Redis::start().await;
    let lock_server = Setup::lock_server("memory:").in_process().await;
    let guard = port(&redis_port::setup(&redis.url())).await;
    let locks = lock_server.locks();
    let old = locks.grant("orders/1", 60_000).await;
    let mut stalled = RespClient::fenced(&guard.address, &old.fencing_credential).await;
    locks.release("orders/1", old.lease_id).await.expect(200);
    let new = locks.grant("orders/1", 60_000).await;
    let _next = RespClient::fenced(&guard.address, &new.fencing_credential).await;
    stalled.call(&["SET", "orders:1:a", "late"]).await.expect_error("FENCED");
    let refused = "fencepost_fence_refused_total{code=\"stale-token\",rule=\"connection\"}";
    let stale = "fencepost_fence_operations_total{operation=\"redis\",verdict=\"stale\"}";
    assert_eq!(value(&guard.server, refused).await, value(&guard.server, stale).await);
    assert!(value(&guard.server, refused).await >= 1.0);
}

#[tokio::test]
async fn both_services_show_their_process() {
    let lock_server = Setup::lock_server("memory:").start().await;
    let guard = Setup::fenced_store("memory:").start().await;
    for server in [&lock_server, &guard] {
        let resident = value(server, "process_resident_memory_bytes").await;
        let actual = server.process.resident_bytes() as f64;
        assert!(resident > actual / 2.0 && resident < actual * 2.0, "{resident}, not {actual}");
        assert!(value(server, "process_start_time_seconds").await > 1.7e9);
        assert!(value(server, "process_open_fds").await > 5.0);
        let text = metrics(server).await;
        let foreign = text.lines().filter(|line| !line.starts_with('#'));
        let is_ours = |line: &&str| line.starts_with("fencepost_") || line.starts_with("process_");
        assert_eq!(foreign.filter(|line| !is_ours(line)).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}

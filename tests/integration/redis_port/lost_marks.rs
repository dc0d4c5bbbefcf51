//! The guard's state in Redis, deleted or overwritten under it: it is refused, and never taken for
//! a lock that was never held.

use fence_protocol::Code;
use fence_tests::quorum_nodes::QuorumNodes;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient};
use fence_tests::servers::Setup;
use fence_tests::wait::until;
use serde_json::json;
use tokio::task::JoinSet;

use super::{Port, port, setup};

const MARKS: &str = "{fence:default}:guard:marks";
const LOCKS: &str = "{fence:default}:guard:locks";
const STATE: &str = "{fence:default}:guard:state";
const CONNS: &str = "{fence:default}:guard:conns:orders/1";

/// Damage to the guard's keys, each as commands.
const DAMAGES: [&[&[&str]]; 8] = [
    &[&["DEL", MARKS]],
    &[&["DEL", MARKS, LOCKS]],
    &[&["SET", MARKS, "x"]],
    &[&["HDEL", MARKS, "orders/1"]],
    &[&["HDEL", MARKS, "#"]],
    &[&["DEL", LOCKS]],
    &[&["SET", LOCKS, "x"]],
    &[&["HDEL", MARKS, "orders/1"], &["ZREM", LOCKS, "orders/2"]],
];

/// A guard that has admitted token 50 of `orders/1` and `orders/2`.
async fn guarded(redis: &Redis) -> (Port, Grant) {
    let guard = port(&setup(&redis.url())).await;
    let new = Grant::new(50, "1");
    let api = guard.server.guard();
    api.put("orders/1", &new.credential, "new").await.expect(201);
    api.put("orders/2", &Grant::new(50, "2").credential, "new").await.expect(201);
    (guard, new)
}

/// Nothing is admitted: no token that was stale, and no other.
async fn refuses(guard: &Port, damage: &[&[&str]]) {
    let api = guard.server.guard();
    for token in [40, 60] {
        let grant = Grant::new(token, "1");
        let reply = api.put("orders/1", &grant.credential, "late").await;
        assert_eq!(reply.status, 503, "{damage:?}: {reply:?}");
        let mut client = RespClient::connect(&guard.address).await;
        let reply = client.call(&["AUTH", "fence", &grant.credential]).await;
        assert!(reply.is_error("UNAVAILABLE"), "{damage:?}: {reply:?}");
    }
}

/// States a floor, which the guard takes as soon as it has one above what was admitted.
async fn repaired(guard: &Port, damage: &[&[&str]]) {
    let api = guard.server.guard();
    // A floor that a lost mark may exceed changes nothing.
    api.0.post("/v1/floor", &json!({"floor": 50})).await;
    let late = api.put("orders/1", &Grant::new(60, "1").credential, "late").await;
    assert_eq!(late.status, 503, "{damage:?}: {late:?}");
    until("the floor to be in force", || async {
        (api.0.post("/v1/floor", &json!({"floor": 51})).await.status == 200).then_some(())
    })
    .await;
    let stale = api.put("orders/1", &Grant::new(45, "1").credential, "late").await;
    assert_eq!(stale.status, 412, "{damage:?}: {stale:?}");
    let next = api.put("orders/1", &Grant::new(60, "1").credential, "next").await;
    assert_eq!(next.status, 204, "{damage:?}: {next:?}");
}

/// On a quorum each bucket of locks has its own counter, so no lock's token is a floor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_server_on_a_quorum_states_the_floor() {
    let nodes = QuorumNodes::start(3).await;
    let patient = ["--store-timeout", "30s"];
    let locks = Setup::lock_server(&nodes.url()).args(&patient).start().await;
    let mut issued = locks.locks().grant("orders/1", 60_000).await.token;
    for number in 0..20 {
        let wish = json!({"min_token": issued});
        issued = locks.locks().acquire(&format!("busy/{number}"), wish).await.lease().token;
    }
    let redis = Redis::start().await;
    let guard = setup(&redis.url()).args(&["--report-to", &locks.base]);
    let guard = port(&guard).await;
    let api = guard.server.guard();
    let old = Grant::new(issued.get(), "1");
    api.put("orders/1", &old.credential, "old").await.expect(201);
    let _: () = redis.run(&["FLUSHALL"]).await;
    until("a floor", || async {
        let reply = api.0.post("/v1/floor", &json!({})).await;
        (reply.status == 200).then(|| reply.json()["floor"].as_u64().expect("a token"))
    })
    .await;
    let stale = api.put("orders/1", &old.credential, "late").await;
    assert_eq!(stale.status, 412, "{stale:?}");
    for lock in ["orders/2", "orders/3"] {
        let next = locks.locks().grant(lock, 60_000).await.token;
        api.put(lock, &Grant::new(next.get(), &lock[7..]).credential, "next").await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_marks_are_refused_until_a_floor_is_stated() {
    let mut damaged = JoinSet::new();
    for damage in DAMAGES {
        damaged.spawn(async move {
            let redis = Redis::start().await;
            let (guard, _) = guarded(&redis).await;
            for words in damage {
                let _: redis::Value = redis.run(words).await;
            }
            refuses(&guard, damage).await;
            repaired(&guard, damage).await;
        });
    }
    // Each waits for its guard to try Redis again.
    damaged.join_all().await;
}

/// A guard that starts on damaged marks does not take them for new, and says what to do.
#[tokio::test]
async fn a_guard_does_not_start_on_damaged_marks_without_a_floor() {
    for damage in [&["DEL", MARKS][..], &["DEL", STATE], &["SET", STATE, "x"]] {
        let redis = Redis::start().await;
        drop(guarded(&redis).await);
        let _: redis::Value = redis.run(damage).await;
        let said = setup(&redis.url()).refused().await;
        assert!(said.stderr.contains("--floor"), "{damage:?}: {}", said.stderr);
        let guard = port(&setup(&redis.url()).args(&["--floor", "51"])).await;
        let api = guard.server.guard();
        let stale = api.put("orders/1", &Grant::new(40, "1").credential, "late").await;
        assert_eq!(stale.status, 412, "{damage:?}: {stale:?}");
        api.put("orders/1", &Grant::new(60, "1").credential, "next").await.expect(204);
    }
}

/// The lock server's counter is a floor, too, where it is in the same Redis.
#[tokio::test]
async fn the_lock_servers_counter_repairs_damaged_marks() {
    let redis = Redis::start().await;
    let locks = fence_tests::servers::Setup::lock_server(&redis.url()).start().await;
    let first = locks.locks().grant("orders/1", 60_000).await;
    let guard = port(&setup(&redis.url())).await;
    let api = guard.server.guard();
    let header = first.fencing_token.as_str();
    api.put("orders/1", header, "first").await.expect(201);
    let _: i64 = redis.run(&["DEL", MARKS]).await;
    let stale = api.put("orders/1", header, "late").await;
    assert_eq!(stale.status, 412, "{stale:?}");
    locks.locks().release("orders/1", first.lease_id).await.expect(200);
    let next = locks.locks().grant("orders/1", 60_000).await;
    api.put("orders/1", &next.fencing_token, "next").await.expect(204);
}

/// A state of version 0.1 has neither stamp nor a word of it; the guard takes it over.
#[tokio::test]
async fn a_state_without_a_stamp_is_taken_over_with_its_marks() {
    let redis = Redis::start().await;
    drop(guarded(&redis).await);
    let _: i64 = redis.run(&["HDEL", MARKS, "#"]).await;
    let _: i64 = redis.run(&["HDEL", STATE, "stamped"]).await;
    let guard = port(&setup(&redis.url())).await;
    let api = guard.server.guard();
    api.put("orders/1", &Grant::new(40, "1").credential, "late").await.problem(Code::StaleToken);
    api.put("orders/1", &Grant::new(60, "1").credential, "next").await.expect(204);
    let stamp: String = redis.run(&["HGET", MARKS, "#"]).await;
    assert_eq!(stamp, redis.run::<String>(&["HGET", STATE, "id"]).await);
}

/// Without its registrations a connection cannot be named; all of the port are ended instead.
#[tokio::test]
async fn a_connection_whose_registration_is_gone_is_ended_all_the_same() {
    for (damage, again) in
        [(&["DEL", CONNS][..], false), (&["DEL", CONNS], true), (&["SET", CONNS, "x"], false)]
    {
        let redis = Redis::start().await;
        let guard = port(&setup(&redis.url())).await;
        let old = Grant::new(40, "1");
        let new = Grant::new(50, "1");
        let mut late = RespClient::fenced(&guard.address, &old.credential).await;
        assert_eq!(late.call(&["SET", &old.key("a"), "old"]).await, Resp::simple("OK"));
        let _: redis::Value = redis.run(damage).await;
        if again {
            // Another connection of the same token does not stand in for those that are not known.
            let mut other = RespClient::connect(&guard.address).await;
            let _ = other.try_call(&["HELLO", "3", "AUTH", "fence", &old.credential]).await;
        }
        let mut next = RespClient::fenced(&guard.address, &new.credential).await;
        assert_eq!(next.call(&["SET", &new.key("a"), "new"]).await, Resp::simple("OK"));
        if let Ok(reply) = late.try_call(&["SET", &old.key("a"), "late"]).await {
            assert!(reply.error().is_some(), "{damage:?}: {reply:?}");
        }
        assert_eq!(next.call(&["GET", &new.key("a")]).await, Resp::bulk("new"), "{damage:?}");
    }
}

/// One connection of the port alone is ended when a new state opens, without a second try.
#[tokio::test]
async fn a_state_opens_over_exactly_one_connection() {
    let redis = Redis::start().await;
    let mut guard = port(&setup(&redis.url()).args(&["--lost-marks", "accept"])).await;
    let old = Grant::new(40, "1");
    let mut late = RespClient::fenced(&guard.address, &old.credential).await;
    assert_eq!(late.call(&["SET", &old.key("a"), "old"]).await, Resp::simple("OK"));
    let _: () = redis.run(&["FLUSHALL"]).await;
    let new = Grant::new(50, "1");
    guard.server.guard().put("orders/1", &new.credential, "new").await.expect(201);
    let _ = &mut guard;
}

//! Sessions over HTTP.

use fence_protocol::wire::session::{SessionEndedReply, SessionPage, SessionReply};
use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Api, Reply};
use fence_tests::key_file::session_id;
use http::Method;
use serde_json::{Value, json};

use super::memory;

async fn begin(api: &Api, body: Value) -> SessionReply {
    api.post("/v1/sessions", &body).await.expect(200).read()
}

async fn end(api: &Api, session: &str) -> Reply {
    api.send(Method::DELETE, &format!("/v1/sessions/{session}"), &[], "").await
}

/// The whole life: two leases under one heartbeat, and one end for both.
#[tokio::test]
async fn one_heartbeat_and_one_end_for_every_lease() {
    let server = memory().await;
    let locks = server.locks();
    let api = &locks.0;
    let ask = json!({"owner": "web-1", "ttl_ms": 30_000, "metadata": {"pod": 7}});
    let session = begin(api, ask).await;
    let id = session.session_id.to_string();
    let a = locks.acquire("s/a", json!({"session_id": id})).await.lease();
    let b = locks.acquire("s/b", json!({"session_id": id, "owner": "web-1"})).await.lease();
    assert_eq!((a.owner.as_str(), b.owner.as_str()), ("web-1", "web-1"));
    assert!(a.ttl_ms > 15_000, "{} ms: the time of the session, not the default", a.ttl_ms);
    let beat = api.post(&format!("/v1/sessions/{id}/heartbeat"), &json!({})).await.expect(200);
    let beat: SessionReply = beat.read();
    assert_eq!((beat.heartbeats, beat.lease_count), (1, 2));
    let shown: SessionReply = api.get(&format!("/v1/sessions/{id}")).await.expect(200).read();
    let held: Vec<LeaseId> = shown.leases.iter().map(|lease| lease.lease_id).collect();
    assert_eq!(held, [a.lease_id, b.lease_id]);
    let page: SessionPage = api.get("/v1/sessions?limit=10").await.expect(200).read();
    assert_eq!(page.sessions.len(), 1);
    let ended: SessionEndedReply = end(api, &id).await.expect(200).read();
    assert_eq!(ended.lease_count, 2);
    for (lock, lease) in [("s/a", a.lease_id), ("s/b", b.lease_id)] {
        let lost = locks.renew(lock, lease).await.problem(Code::LeaseLost);
        assert_eq!(lost.extension::<String>("reason").as_deref(), Some("session-ended"));
    }
    let again = end(api, &id).await.problem(Code::SessionEnded);
    assert_eq!(again.extension::<String>("reason").as_deref(), Some("ended"));
}

#[tokio::test]
async fn a_blocked_session_learns_why_and_until_when() {
    let server = memory().await;
    let locks = server.locks();
    let api = &locks.0;
    let id = begin(api, json!({"owner": "web-1"})).await.session_id.to_string();
    let lease = locks.acquire("blocked", json!({"session_id": id})).await.lease();
    let path = format!("/v1/sessions/{id}/block");
    api.post(&path, &json!({})).await.problem(Code::InvalidRequest);
    api.post(&path, &json!({"reason": "host is replaced"})).await.expect(200);
    let beat = api.post(&format!("/v1/sessions/{id}/heartbeat"), &json!({})).await;
    let problem = beat.problem(Code::SessionBlocked);
    assert_eq!(problem.extension::<String>("reason").as_deref(), Some("host is replaced"));
    assert!(problem.extension::<u64>("ends_in_ms").unwrap() <= 15_000);
    let more = locks.acquire("more", json!({"session_id": id})).await;
    more.problem(Code::SessionBlocked);
    // It holds what it holds until its time has passed.
    assert_eq!(locks.renew("blocked", lease.lease_id).await.lease().token, lease.token);
}

/// Each says what is wrong, and changes nothing.
#[tokio::test]
async fn bad_sessions_are_refused() {
    let server = memory().await;
    let locks = server.locks();
    let api = &locks.0;
    for (ask, reason) in [
        (json!({}), "owner"),
        (json!({"owner": "a", "ttl_ms": 10}), "ttl_ms 10 is out of range"),
        (json!({"owner": "a", "ttl_ms": 80_000_000}), "ttl_ms 80000000 is out of range"),
        (json!({"owner": "a", "session_id": "x"}), "is not a UUID"),
        (json!({"owner": "a", "ttl": 10}), "ttl"),
    ] {
        let problem = api.post("/v1/sessions", &ask).await.problem(Code::InvalidRequest);
        assert!(problem.detail.contains(reason), "{}", problem.detail);
    }
    let large = json!({"owner": "a", "metadata": "x".repeat(5_000)});
    api.post("/v1/sessions", &large).await.problem(Code::PayloadTooLarge);
    api.get("/v1/sessions/x").await.problem(Code::InvalidRequest);
    api.get("/v1/sessions?limit=0").await.problem(Code::InvalidRequest);
    let unknown = session_id().to_string();
    let beat = api.post(&format!("/v1/sessions/{unknown}/heartbeat"), &json!({})).await;
    beat.problem(Code::SessionUnknown);
    end(api, &unknown).await.problem(Code::SessionUnknown);
    for ask in [json!({"session_id": unknown}), json!({"session_id": unknown, "owner": "a"})] {
        locks.acquire("bad", ask).await.problem(Code::SessionUnknown);
    }
    let page: SessionPage = api.get("/v1/sessions").await.expect(200).read();
    assert_eq!(page.sessions, [], "a refused request left a session");

    let mine = begin(api, json!({"owner": "mine"})).await.session_id;
    let theirs = json!({"owner": "theirs", "session_id": mine});
    api.post("/v1/sessions", &theirs).await.problem(Code::SessionConflict);
    locks.acquire("bad", theirs).await.problem(Code::SessionConflict);
    let lease = locks.acquire("bad", json!({"session_id": mine})).await.lease();
    let longer = json!({"lease_id": lease.lease_id, "ttl_ms": 60_000});
    api.post("/v1/locks/bad/renew", &longer).await.problem(Code::SessionConflict);
}

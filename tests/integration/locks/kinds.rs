//! Shared leases, semaphores and several locks at once over HTTP, on every store.

mod at_the_guard;
mod limits;

use fence_protocol::wire::event::EventKind;
use fence_protocol::wire::lock::{EndReason, HolderInfo, LeaseMode, LeaseReply, LockState};
use fence_protocol::wire::lock_set::LeasesReply;
use fence_protocol::{Code, FencingToken, LeaseId, Token};
use fence_tests::api::{Api, Locks, Reply};
use fence_tests::event_stream::EventStream;
use fence_tests::key_file::{KeyFile, lease_id};
use fence_tests::raw_http;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::memory;
use super::witness::Witness;

async fn all(api: &Api, body: &Value) -> Reply {
    api.post("/v1/acquire", body).await
}

fn leases(reply: Reply) -> Vec<LeaseReply> {
    reply.expect(200).read::<LeasesReply>().leases
}

/// The story on memory, whose rules are those of every store.
macro_rules! on_memory {
    ($($story:ident)*) => {
        $(mod $story {
            #[tokio::test]
            async fn memory() {
                super::$story(&super::memory().await.locks()).await;
            }
        })*
    };
}

on_memory! {
    readers_share_and_a_writer_waits_its_turn
    a_semaphore_has_its_size
    several_locks_are_acquired_as_one
    a_session_holds_a_group
}

/// The story on each store that reports its events in a way of its own.
macro_rules! on_every_store {
    ($($story:ident)*) => {
        $(mod $story {
            use super::*;

            #[tokio::test(start_paused = true)]
            async fn memory() {
                super::$story(&super::memory().await.locks(), 7_500).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn embedded() {
                let data = DataDir::new();
                let server = Setup::lock_server(&data.store()).in_process().await;
                super::$story(&server.locks(), 3_000).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn redis() {
                let redis = Redis::start().await;
                let server = Setup::lock_server(&redis.url()).in_process().await;
                super::$story(&server.locks(), 3_000).await;
            }
        })*
    };
}

on_every_store! {
    every_lock_of_a_group_has_its_events
    those_who_share_a_lock_are_followed_one_by_one
}

async fn readers_share_and_a_writer_waits_its_turn(locks: &Locks) {
    let shared = json!({"mode": "shared", "ttl_ms": 60_000});
    let one = locks.acquire("doc", shared.clone()).await.lease();
    let two = locks.acquire("doc", json!({"mode": "shared", "ttl_ms": 30_000})).await.lease();
    assert_eq!((one.mode, two.mode), (LeaseMode::Shared, LeaseMode::Shared));
    assert!(one.token < two.token);
    let held = locks.acquire("doc", json!({})).await.problem(Code::LockHeld);
    assert_eq!(held.extension::<HolderInfo>("holder").unwrap().token, two.token);
    let shown = locks.show("doc").await;
    assert_eq!((shown.state, shown.lease_count), (LockState::Held, 2));
    assert_eq!(shown.holder.unwrap().lease_id, one.lease_id);
    assert_eq!(shown.also_held[0].lease_id, two.lease_id);
    let wire = locks.0.get("/v1/locks/doc").await.json();
    assert_eq!(
        (&wire["also_held"][0]["mode"], &wire["lease_count"]),
        (&json!("shared"), &json!(2))
    );

    let own = locks.clone();
    let writer = tokio::spawn(async move { own.acquire("doc", json!({"wait_ms": 60_000})).await });
    locks.queue_of("doc", 1).await;
    locks.acquire("doc", shared).await.problem(Code::LockHeld);
    locks.release("doc", one.lease_id).await.expect(200);
    assert!(!writer.is_finished());
    locks.release("doc", two.lease_id).await.expect(200);
    let wrote = soon("the writer", writer).await.unwrap();
    assert!(wrote.json().get("mode").is_none(), "exclusive goes without saying");
    assert!(wrote.lease().token > two.token);
}

async fn a_semaphore_has_its_size(locks: &Locks) {
    let permit = |size: u32| json!({"mode": "permit", "size": size, "ttl_ms": 60_000});
    let one = locks.acquire("pool", permit(2)).await.lease();
    assert_eq!(one.mode, LeaseMode::Permit);
    locks.acquire("pool", permit(2)).await.lease();
    locks.acquire("pool", permit(2)).await.problem(Code::LockHeld);
    for other in [permit(3), json!({}), json!({"mode": "shared"}), json!({"wait_ms": 60_000})] {
        let problem = locks.acquire("pool", other).await.problem(Code::LockKindConflict);
        assert!(
            problem.detail.contains("lock pool is in use as a semaphore of size 2"),
            "{problem:?}"
        );
    }
    let group = json!({"locks": [{"lock": "free"}, {"lock": "pool", "mode": "permit", "size": 5}]});
    let problem = all(&locks.0, &group).await.problem(Code::LockKindConflict);
    assert_eq!(problem.extension::<String>("lock").as_deref(), Some("pool"));
    let shown = locks.show("pool").await;
    assert_eq!((shown.size, shown.lease_count, shown.queue_length), (Some(2), 2, 0));
    assert_eq!(locks.show("free").await.state, LockState::Free);
    locks.renew("pool", one.lease_id).await.expect(200);
    locks.revoke("pool", "maintenance").await.expect(200);
    assert_eq!(locks.show("pool").await.lease_count, 0);
    locks.acquire("pool", permit(3)).await.lease();
}

/// A token and a header each, acquire-once, nothing where one is held, and a wait for all of them.
async fn several_locks_are_acquired_as_one(locks: &Locks) {
    let body = json!({
        "lease_id": lease_id(), "owner": "mover", "ttl_ms": 60_000,
        "locks": [{"lock": "stock/b"}, {"lock": "stock/a", "mode": "shared"}, {"lock": "dock", "mode": "permit", "size": 4}],
    });
    let first = leases(all(&locks.0, &body).await);
    let names: Vec<&str> = first.iter().map(|lease| lease.lock.as_str()).collect();
    assert_eq!(names, ["stock/b", "stock/a", "dock"], "in the order of the request");
    assert!(first.windows(2).all(|pair| pair[0].token < pair[1].token));
    for lease in &first {
        let fencing: FencingToken = lease.fencing_token.parse().unwrap();
        assert_eq!((fencing.lock, fencing.token), (lease.lock.clone(), lease.token));
        assert_eq!((fencing.lease, lease.owner.as_str()), (first[0].lease_id, "mover"));
    }
    let tokens = |leases: &[LeaseReply]| leases.iter().map(|lease| lease.token).collect::<Vec<_>>();
    assert_eq!(tokens(&leases(all(&locks.0, &body).await)), tokens(&first), "a repeat");

    let next = json!({"ttl_ms": 60_000, "locks": [{"lock": "other"}, {"lock": "stock/b"}]});
    let refused = all(&locks.0, &next).await;
    assert!(!refused.header("retry-after").is_empty());
    let problem = refused.problem(Code::LockHeld);
    assert_eq!(problem.extension::<String>("lock").as_deref(), Some("stock/b"));
    assert_eq!(problem.extension::<HolderInfo>("holder").unwrap().token, first[0].token);
    assert_eq!(locks.show("other").await.state, LockState::Free);

    let own = locks.clone();
    let mut patient = next.clone();
    patient["wait_ms"] = json!(60_000);
    let waiting = tokio::spawn(async move { all(&own.0, &patient).await });
    locks.queue_of("other", 1).await;
    locks.acquire("other", json!({})).await.problem(Code::LockHeld);
    locks.release("stock/b", first[0].lease_id).await.expect(200);
    let second = leases(soon("the group", waiting).await.unwrap());
    assert!(second[0].token > first[2].token && second[1].token > second[0].token);
    // From here on each lease goes its own way, and half a group is no group.
    locks.renew("stock/a", first[1].lease_id).await.expect(200);
    let lost = all(&locks.0, &body).await.problem(Code::LeaseLost);
    assert_eq!(lost.extension::<String>("lock").as_deref(), Some("stock/b"));
    assert_eq!(lost.extension::<String>("reason").as_deref(), Some("released"));
    locks.release("other", second[0].lease_id).await.expect(200);
    locks.renew("stock/b", second[1].lease_id).await.expect(200);
}

/// The owner is the session's, one heartbeat keeps all, and one end frees all.
async fn a_session_holds_a_group(locks: &Locks) {
    let ask = json!({"owner": "web-1", "ttl_ms": 60_000});
    let session = locks.0.post("/v1/sessions", &ask).await.expect(200).json();
    let id = session["session_id"].as_str().unwrap();
    let body = json!({"session_id": id, "locks": [{"lock": "g/a"}, {"lock": "g/b"}]});
    let held = leases(all(&locks.0, &body).await);
    assert!(held.iter().all(|lease| lease.owner.as_str() == "web-1" && lease.ttl_ms > 30_000));
    let beat = locks.0.post(&format!("/v1/sessions/{id}/heartbeat"), &json!({})).await;
    assert_eq!(beat.expect(200).json()["lease_count"], 2);
    let theirs = json!({"session_id": id, "owner": "web-2", "locks": [{"lock": "g/c"}]});
    all(&locks.0, &theirs).await.problem(Code::SessionConflict);
    let path = format!("/v1/sessions/{id}");
    locks.0.send(http::Method::DELETE, &path, &[], "").await.expect(200);
    for lock in ["g/a", "g/b"] {
        let lost = locks.renew(lock, held[0].lease_id).await.problem(Code::LeaseLost);
        assert_eq!(lost.extension::<String>("reason").as_deref(), Some("session-ended"));
    }
    all(&locks.0, &body).await.problem(Code::SessionEnded);
    let unknown = json!({"session_id": lease_id(), "locks": [{"lock": "g/c"}]});
    all(&locks.0, &unknown).await.problem(Code::SessionUnknown);
    assert_eq!(locks.show("g/c").await.state, LockState::Free);
}

/// Each lock of a group has its own events, though the leases share an id: granted, each end once,
/// queued and left.
async fn every_lock_of_a_group_has_its_events(locks: &Locks, brief_ms: u64) {
    let mut stream = EventStream::open(&locks.0, "", "").await;
    let body =
        json!({"ttl_ms": 60_000, "locks": [{"lock": "e/a", "mode": "shared"}, {"lock": "e/b"}]});
    let held = leases(all(&locks.0, &body).await);
    for lease in &held {
        let event = stream.next().await;
        assert_eq!((event.kind, event.lock.as_ref()), (EventKind::Granted, Some(&lease.lock)));
        assert_eq!((event.token, event.mode), (Some(lease.token), lease.mode));
        assert_eq!(event.lease_id, Some(lease.lease_id));
    }
    let own = locks.clone();
    let waiting = tokio::spawn(async move {
        let wish = [json!({"lock": "e/b"}), json!({"lock": "e/c"})];
        all(&own.0, &json!({"wait_ms": brief_ms, "locks": wish})).await
    });
    for kind in [EventKind::Queued, EventKind::Left] {
        for lock in ["e/b", "e/c"] {
            let event = stream.next().await;
            assert_eq!((event.kind, event.lock.unwrap().as_str()), (kind, lock));
        }
    }
    soon("the end of patience", waiting).await.unwrap().problem(Code::LockHeld);
    for lease in &held {
        locks.release(lease.lock.as_str(), lease.lease_id).await.expect(200);
        let event = stream.next().await;
        assert_eq!((event.kind, event.token), (EventKind::Released, Some(lease.token)));
        assert_eq!(event.lock.as_ref(), Some(&lease.lock));
        assert!(event.held_ms.is_some());
    }
    // Of several that share a lock, and of a group, each expiry is its own event.
    let brief =
        json!({"ttl_ms": brief_ms, "locks": [{"lock": "e/a", "mode": "shared"}, {"lock": "e/b"}]});
    let mut ends: Vec<(String, Token)> = Vec::new();
    for _ in 0..2 {
        let brief = match ends.len() {
            0 => leases(all(&locks.0, &brief).await),
            _ => vec![
                locks.acquire("e/a", json!({"mode": "shared", "ttl_ms": brief_ms})).await.lease(),
            ],
        };
        ends.extend(brief.into_iter().map(|lease| (lease.lock.to_string(), lease.token)));
    }
    assert_eq!(stream.kinds(3).await, [EventKind::Granted; 3]);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = stream.next().await;
        assert_eq!(event.kind, EventKind::Expired);
        seen.push((event.lock.unwrap().to_string(), event.token.unwrap()));
    }
    seen.sort();
    ends.sort();
    assert_eq!(seen, ends);
}

/// One who shares a lock and was renewed lives, also where another one is the oldest.
async fn those_who_share_a_lock_are_followed_one_by_one(locks: &Locks, brief_ms: u64) {
    let mut stream = EventStream::open(&locks.0, "", "").await;
    locks.acquire("f/a", json!({"mode": "shared", "ttl_ms": 60_000})).await.lease();
    let second = locks.acquire("f/a", json!({"mode": "shared", "ttl_ms": brief_ms})).await.lease();
    let longer = json!({"lease_id": second.lease_id, "ttl_ms": 60_000});
    locks.0.post("/v1/locks/f/a/renew", &longer).await.expect(200);
    // Its end shows that the time at which the second one would have ended is over.
    locks.grant("f/clock", 2 * brief_ms).await;
    assert_eq!(stream.kinds(3).await, [EventKind::Granted; 3]);
    assert_eq!(stream.next().await.kind, EventKind::Expired);
    locks.release("f/a", second.lease_id).await.expect(200);
    let released = stream.next().await;
    assert_eq!((released.kind, released.token), (EventKind::Released, Some(second.token)));
}

async fn send_and_stay(server: &Server, body: &Value) -> tokio::net::TcpStream {
    let body = body.to_string();
    let mut stream = raw_http::connect(&server.base).await;
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn until_idle(locks: &Locks, names: &[&str]) {
    for name in names {
        until_true(&format!("{name} to be free"), || async {
            let shown = locks.show(name).await;
            (shown.lease_count, shown.queue_length) == (0, 0)
        })
        .await;
    }
}

/// A client that hangs up while it waits blocks no other client, at none of its locks.
#[tokio::test]
async fn a_group_that_disconnects_leaves_every_queue() {
    let server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    let wish = json!([{"lock": "gone/a"}, {"lock": "gone/b"}, {"lock": "gone/c"}]);
    for id in [Value::Null, json!(lease_id())] {
        let busy = locks.grant("gone/b", 60_000).await;
        let mut body = json!({"wait_ms": 60_000, "ttl_ms": 60_000, "locks": wish});
        if !id.is_null() {
            body["lease_id"] = id;
        }
        let stream = send_and_stay(&server, &body).await;
        locks.queue_of("gone/c", 1).await;
        let own = locks.clone();
        let behind = tokio::spawn(async move {
            own.acquire("gone/c", json!({"wait_ms": 60_000, "ttl_ms": 60_000})).await.lease()
        });
        locks.queue_of("gone/c", 2).await;
        drop(stream);
        let behind = soon("the waiter behind", behind).await.unwrap();
        locks.release("gone/c", behind.lease_id).await.expect(200);
        locks.release("gone/b", busy.lease_id).await.expect(200);
        until_idle(&locks, &["gone/a", "gone/b", "gone/c"]).await;
    }
}

/// Grants under an id that no client received do not stay for the time of their lease.
#[tokio::test]
async fn undelivered_grants_are_rolled_back() {
    let server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    let body = json!({"ttl_ms": 3_600_000, "locks": [{"lock": "lost/a"}, {"lock": "lost/b"}]});
    for _ in 0..40 {
        drop(send_and_stay(&server, &body).await);
    }
    // If the reply was written before the client left, nothing is known of it.
    let mut patient = body.clone();
    patient["wait_ms"] = json!(60_000);
    let busy = locks.grant("lost/busy", 60_000).await;
    patient["locks"] = json!([{"lock": "lost/c"}, {"lock": "lost/busy"}]);
    let stream = send_and_stay(&server, &patient).await;
    locks.queue_of("lost/c", 1).await;
    drop(stream);
    locks.release("lost/busy", busy.lease_id).await.expect(200);
    until_idle(&locks, &["lost/c", "lost/busy"]).await;
}

/// The client hangs up between the grants and the reply, which a guard that is slow to be sealed
/// holds back: no lease stays under an id that no client received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_whose_reply_never_left_are_rolled_back() {
    let guard = Witness::start().await;
    let args = ["--guard", guard.base.as_str(), "--seal", "unsaid/=required"];
    let server = Setup::lock_server("memory:").args(&args).start().await;
    let locks = server.locks();
    guard.hold();
    let body = json!({"ttl_ms": 3_600_000, "locks": [{"lock": "unsaid/a"}, {"lock": "unsaid/b"}]});
    let stream = send_and_stay(&server, &body).await;
    guard.asked().await;
    for lock in ["unsaid/a", "unsaid/b"] {
        assert_eq!(locks.show(lock).await.lease_count, 1);
    }
    drop(stream);
    until_idle(&locks, &["unsaid/a", "unsaid/b"]).await;
    let history = locks.show("unsaid/b").await.history;
    assert_eq!(history[0].reason, EndReason::Released);
}

/// A signed header each, for its own lock and no other.
#[tokio::test]
async fn every_lease_of_a_group_has_a_signature_of_its_own() {
    let keys = KeyFile::new("k1", 7);
    let server = Setup::lock_server("memory:").keys(&keys.path()).in_process().await;
    let store = Setup::fenced_store("memory:").keys(&keys.path()).in_process().await;
    let guard = store.guard();
    let body = json!({"locks": [{"lock": "signed/a"}, {"lock": "signed/b"}]});
    let held = leases(all(&server.locks().0, &body).await);
    for lease in &held {
        guard.put(lease.lock.as_str(), &lease.fencing_token, "x").await.expect(201);
    }
    guard.put("signed/a", &held[1].fencing_token, "y").await.problem(Code::WrongLock);
}

/// Names with plain slashes work as everywhere; `acquire` itself is a fine name.
#[tokio::test]
async fn names_in_paths_are_folded_as_before() {
    let server = memory().await;
    let api = server.locks().0;
    let body = json!({"mode": "shared"});
    api.post("/v1/locks/a/b/acquire", &body).await.expect(200);
    api.post("/v1/locks/a%2Fb/acquire", &body).await.expect(200);
    assert_eq!(api.get("/v1/locks/a/b").await.json()["lease_count"], 2);
    let body = json!({"locks": [{"lock": "acquire"}, {"lock": "a/acquire"}]});
    leases(all(&api, &body).await);
    let id: LeaseId = lease_id();
    let wrong = api.post("/v1/acquire/a", &json!({"lease_id": id})).await;
    assert!(matches!(wrong.status, 404 | 405), "{wrong:?}");
    let get = api.get("/v1/acquire").await;
    get.problem(Code::MethodNotAllowed);
}

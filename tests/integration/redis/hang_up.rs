//! Clients that hang up while the reply of Redis to their request is on its way.

use std::sync::Arc;

use fence_protocol::Code;
use fence_protocol::wire::event::{Event, EventKind};
use fence_tests::api::{Locks, Reply};
use fence_tests::event_stream::EventStream;
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::key_file::{lease_id, session_id};
use fence_tests::raw_http;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Longer than anything is awaited here: what waits or lives so long is ended by something else.
const WAIT_MS: u64 = 60_000;
const LONG_MS: u64 = 600_000;

/// A server whose replies from Redis can be held for as long as a test wants.
struct Held {
    redis: Arc<Redis>,
    proxy: FaultProxy,
    server: Server,
}

impl Held {
    async fn start() -> Self {
        let redis = Arc::new(Redis::start().await);
        let proxy = FaultProxy::before(&redis.address()).await;
        let url = format!("redis://{}", proxy.address());
        let server = Setup::lock_server(&url).args(&["--store-timeout", "60s"]).start().await;
        Self { redis, proxy, server }
    }

    /// Sends a request whose reply from Redis is held, on a connection of its own.
    async fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let mut stream = raw_http::connect(&self.server.base).await;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.server.address());
        let kind = format!("content-type: application/json\r\ncontent-length: {}", body.len());
        stream.write_all(format!("{head}{kind}\r\n\r\n{body}").as_bytes()).await.unwrap();
        stream
    }

    async fn until_gone(&self, key: &str) {
        let key = format!("{{fence:default}}:{key}");
        until_true("the script to run", || async {
            self.redis.run::<u64>(&["EXISTS", &key]).await == 0
        })
        .await;
    }

    /// Until the server handles so many requests, beside the one that asks.
    async fn until_in_flight(&self, count: usize) {
        let line = format!("fencepost_http_requests_in_flight {}", count + 1);
        let api = self.server.locks().0;
        until_true("the clients to be gone", || async {
            let text = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
            text.lines().any(|other| other == line)
        })
        .await;
    }
}

/// A request in the queue of a lock.
async fn waiter(locks: &Locks, lock: &'static str) -> JoinHandle<Reply> {
    let own = locks.clone();
    let body = json!({"ttl_ms": LONG_MS, "wait_ms": WAIT_MS});
    let waiting = tokio::spawn(async move { own.acquire(lock, body).await });
    locks.queue_of(lock, 1).await;
    settled(locks, lock).await;
    waiting
}

/// The server has the reply to what Redis shows of a lock: it decides one request about it after
/// the other.
async fn settled(locks: &Locks, lock: &str) {
    locks.renew(lock, lease_id()).await.problem(Code::LeaseLost);
}

/// The hand-over to a waiter is in the reply to another client's request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_grant_of_a_reply_whose_client_hung_up() {
    let held = Held::start().await;
    let locks = held.server.locks();
    let session = session_id();
    let begin = json!({"session_id": session, "owner": "me", "ttl_ms": LONG_MS});
    locks.0.post("/v1/sessions", &begin).await.expect(200);
    let released = locks.grant("released", LONG_MS).await.lease_id;
    locks.grant("revoked", LONG_MS).await;
    locks.acquire("bound", json!({"session_id": session})).await.lease();
    for (lock, method, path, body) in [
        ("released", "POST", "/v1/locks/released/release", json!({"lease_id": released})),
        ("revoked", "POST", "/v1/locks/revoked/revoke", json!({"reason": "test"})),
        ("bound", "DELETE", &format!("/v1/sessions/{session}"), json!({})),
    ] {
        let waiting = waiter(&locks, lock).await;
        held.proxy.set(Fault::HoldReplies);
        let gone = held.send(method, path, &body).await;
        held.until_gone(&format!("lock:{lock}#")).await;
        drop(gone);
        held.until_in_flight(1).await;
        held.proxy.heal();
        soon("the grant", waiting).await.unwrap().lease();
    }
}

/// A waiter hangs up, which lets the one behind it have the lock. No request waits for the reply to
/// that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_the_grant_of_a_reply_to_a_waiter_that_left() {
    let held = Held::start().await;
    let locks = held.server.locks();
    let shared = |wait_ms: u64| json!({"ttl_ms": LONG_MS, "mode": "shared", "wait_ms": wait_ms});
    locks.acquire("a", shared(0)).await.lease();
    let exclusive = json!({"ttl_ms": LONG_MS, "wait_ms": WAIT_MS});
    let first = held.send("POST", "/v1/locks/a/acquire", &exclusive).await;
    locks.queue_of("a", 1).await;
    let own = locks.clone();
    let second = tokio::spawn(async move { own.acquire("a", shared(WAIT_MS)).await });
    locks.queue_of("a", 2).await;
    settled(&locks, "a").await;
    held.proxy.set(Fault::HoldReplies);
    drop(first);
    held.until_gone("lock:a#").await;
    held.until_in_flight(1).await;
    held.proxy.heal();
    soon("the grant", second).await.unwrap().lease();
}

/// Work after the reply of Redis is done as well: the event of a release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_client_hung_up_is_an_event() {
    let held = Held::start().await;
    let locks = held.server.locks();
    let mut events = EventStream::open(&held.server.base, "", "").await;
    let lease = locks.grant("a", LONG_MS).await;
    let record = async || held.redis.run::<redis::Value>(&["GET", "{fence:default}:lock:a"]).await;
    let before = record().await;
    held.proxy.set(Fault::HoldReplies);
    let body = json!({"lease_id": lease.lease_id});
    let gone = held.send("POST", "/v1/locks/a/release", &body).await;
    until_true("the release", || async { record().await != before }).await;
    drop(gone);
    held.until_in_flight(0).await;
    held.proxy.heal();
    let is_release = |event: &Event| event.kind == EventKind::Released;
    let event = loop {
        let event = events.next().await;
        if is_release(&event) {
            break event;
        }
    };
    assert_eq!(event.lease_id, Some(lease.lease_id));
}

//! Bad input to lock-server: one clear error each, and nothing is lost.

use fence_protocol::{Code, LeaseId};
use fence_tests::api::{Api, Endpoint, Locks};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::session_id;
use fence_tests::raw_http::{connect, exchange, read_reply, status};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::until_true;
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::memory;

/// A server with a lock that is held; [`Witness::check`] shows that it still is.
struct Witness<S> {
    server: S,
    lease: LeaseId,
    token: u64,
}

impl Witness<InProcess> {
    async fn new() -> Self {
        Self::at(memory().await).await
    }
}

impl Witness<Server> {
    async fn with_socket() -> Self {
        Self::at(Setup::lock_server("memory:").start().await).await
    }
}

impl<S: Endpoint> Witness<S> {
    async fn at(server: S) -> Self {
        let lease = Locks(server.api()).grant("witness", 60_000).await;
        Self { server, lease: lease.lease_id, token: lease.token.get() }
    }

    /// The lease lives, and no token was spent since.
    async fn check(self) {
        let locks = Locks(self.server.api());
        let renewed = locks.renew("witness", self.lease).await.lease();
        assert_eq!(renewed.token.get(), self.token);
        let next = locks.grant("next", 1_000).await;
        assert_eq!(next.token.get(), self.token + 1, "refused requests spent tokens");
    }
}

#[tokio::test]
async fn bad_names() {
    let witness = Witness::new().await;
    let api = witness.server.api();
    let long = "a".repeat(257);
    for (name, shown) in [
        (long.as_str(), "257 bytes"),
        ("a%2F..%2Fb", ".."),
        ("a/%2e%2e/b", ".."),
        ("%2e%2e", ".."),
        ("..", ".."),
        ("a%00b", "\\0"),
        ("a%0Ab", "\\n"),
        ("a%7Fb", "7f"),
        ("a%20b", "' '"),
        ("a%2F%2Fb", "empty segment"),
        ("%2Fa", "empty segment"),
        ("%C3%A4", "ä"),
        ("%FF", ""),
    ] {
        // The router gets the path as it is; a well-behaved client would resolve a dotted one.
        let reply = api.post(&format!("/v1/locks/{name}/acquire"), &json!({})).await;
        let detail = reply.problem(Code::InvalidRequest).detail;
        assert!(detail.contains("lock") && detail.contains(shown), "{name}: {detail}");
        assert!(detail.len() < 400 && !detail.contains(char::is_control), "{name}: {detail:?}");
    }
    let empty = api.post("/v1/locks//acquire", &json!({})).await;
    assert!(matches!(empty.status, 400 | 404), "{empty:?}");
    witness.check().await;
}

#[tokio::test]
async fn bad_values() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    let nil = "00000000-0000-0000-0000-000000000000";
    for (body, shown) in [
        (json!({"ttl_ms": 0}), "ttl_ms"),
        (json!({"ttl_ms": 86_400_001}), "86400001"),
        (json!({"ttl_ms": 99}), "99"),
        (json!({"ttl_ms": 3_600_001}), "3600001"),
        (json!({"ttl_ms": -1}), "-1"),
        (json!({"ttl_ms": 1.5}), "1.5"),
        (json!({"ttl_ms": "10"}), "10"),
        (json!({"ttl_ms": null}), "null"),
        (json!({"wait_ms": 300_001}), "300001"),
        (json!({"wait_ms": -1}), "-1"),
        (json!({"lease_id": "nope"}), "nope"),
        (json!({"lease_id": nil}), "nil"),
        (json!({"lease_id": 5}), "5"),
        (json!({"owner": ""}), "owner"),
        (json!({"owner": "a\nb"}), "owner"),
        (json!({"owner": "x".repeat(257)}), "owner"),
        (json!({"min_token": 0}), "token"),
        (json!({"min_token": -3}), "-3"),
        (json!({"min_token": 1_000_000_000_000_000_u64}), "1000000000000000"),
        (json!({"tll_ms": 5}), "tll_ms"),
        (json!([1, 2]), ""),
        (json!("text"), ""),
        (json!(null), ""),
    ] {
        let reply = locks.acquire("bad", body.clone()).await;
        let detail = reply.problem(Code::InvalidRequest).detail;
        assert!(detail.contains(shown), "{body}: {detail}");
    }
    for (verb, body) in [
        ("renew", json!({})),
        ("renew", json!({"lease_id": "nope"})),
        ("renew", json!({"lease_id": witness.lease, "ttl_ms": 0})),
        ("renew", json!({"lease_id": witness.lease, "ttl": 5})),
        ("release", json!({})),
        ("release", json!({"lease_id": 7})),
        ("revoke", json!({})),
        ("revoke", json!({"reason": ""})),
    ] {
        let path = format!("/v1/locks/witness/{verb}");
        locks.0.post(&path, &body).await.problem(Code::InvalidRequest);
    }
    witness.check().await;
}

#[tokio::test]
async fn bad_bodies() {
    let witness = Witness::new().await;
    let api = witness.server.locks().0;
    let send = async |kind: &'static str, body: String| {
        let headers = [("content-type", kind)];
        api.send(Method::POST, "/v1/locks/bad/acquire", &headers, body).await
    };
    let deep = format!("{{\"metadata\": {}1{}}}", "[".repeat(500), "]".repeat(500));
    for body in ["{", "{\"ttl_ms\": 1000", "ttl_ms=1000", "{} {}", "\u{0}", &deep, "[]", " [5000]"]
    {
        let reply = send("application/json", body.to_owned()).await;
        reply.problem(Code::InvalidRequest);
    }
    let twice = r#"{"ttl_ms": 1000, "ttl_ms": 2000}"#;
    send("application/json", twice.to_owned()).await.problem(Code::InvalidRequest);
    let large = json!({"metadata": "x".repeat(600_000)}).to_string();
    send("application/json", large).await.problem(Code::PayloadTooLarge);
    send("text/xml", "<lock/>".to_owned()).await.problem(Code::UnsupportedMediaType);
    witness.check().await;
}

/// To the byte, for leases and for sessions.
#[tokio::test]
async fn metadata_is_bounded() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    // With its quotes it has 4096 bytes.
    let most = "x".repeat(4_094);
    for (text, shown) in [
        (format!("{most}y"), "4097 bytes"),
        ("ä".repeat(2_048), "4098 bytes"),
        ("\u{1}".repeat(700), "4202 bytes"),
        ("x".repeat(40_000), "40002 bytes"),
    ] {
        for (path, owner) in [("/v1/locks/bad/acquire", "a"), ("/v1/sessions", "a")] {
            let reply = locks.0.post(path, &json!({"metadata": text, "owner": owner})).await;
            let detail = reply.problem(Code::PayloadTooLarge).detail;
            assert!(detail.contains(shown) && detail.contains("4096"), "{path}: {detail}");
        }
    }
    assert!(locks.show("bad").await.holder.is_none());
    assert_eq!(sessions(&locks.0).await, [] as [Value; 0]);
    let begun = locks.0.post("/v1/sessions", &json!({"owner": "a", "metadata": most})).await;
    assert_eq!(begun.expect(200).json()["metadata"], most);
    witness.check().await;
}

/// Live sessions, as they are listed.
async fn sessions(api: &Api) -> Vec<Value> {
    let page = api.get("/v1/sessions").await.expect(200).json();
    page["sessions"].as_array().unwrap().clone()
}

async fn begin(api: &Api, body: Value) -> String {
    let reply = api.post("/v1/sessions", &body).await.expect(200).json();
    reply["session_id"].as_str().unwrap().to_owned()
}

/// Everything that can be asked of a session which does not serve.
async fn refused_session(locks: &Locks, id: &str, code: Code) {
    let path = format!("/v1/sessions/{id}");
    locks.0.post(&format!("{path}/heartbeat"), &json!({})).await.problem(code);
    for ask in [
        json!({"session_id": id}),
        json!({"session_id": id, "owner": "worker"}),
        json!({"session_id": id, "owner": "worker", "wait_ms": 1_000}),
        json!({"session_id": id, "owner": "worker", "incarnation": "2", "takeover": true}),
    ] {
        let problem = locks.acquire("bad", ask).await.problem(code);
        assert_eq!(problem.extension::<String>("session_id").as_deref(), Some(id), "{problem:?}");
        assert!(problem.detail.contains(id), "{problem:?}");
    }
    if code != Code::SessionBlocked {
        locks.0.get(&path).await.problem(code);
        locks.0.send(Method::DELETE, &path, &[], "").await.problem(code);
        locks.0.post(&format!("{path}/block"), &json!({"reason": "r"})).await.problem(code);
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_that_do_not_serve() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    let api = &locks.0;
    let worker = |ttl_ms: u64| json!({"owner": "worker", "ttl_ms": ttl_ms});
    let lives = begin(api, worker(60_000)).await;

    refused_session(&locks, &session_id().to_string(), Code::SessionUnknown).await;

    let ended = begin(api, worker(60_000)).await;
    api.send(Method::DELETE, &format!("/v1/sessions/{ended}"), &[], "").await.expect(200);
    refused_session(&locks, &ended, Code::SessionEnded).await;
    let again = json!({"owner": "worker", "session_id": ended});
    api.post("/v1/sessions", &again).await.problem(Code::SessionEnded);

    let expired = begin(api, worker(15_000)).await;
    until_true("the session to expire", || async {
        api.get(&format!("/v1/sessions/{expired}")).await.status != 200
    })
    .await;
    refused_session(&locks, &expired, Code::SessionEnded).await;

    let blocked = begin(api, worker(60_000)).await;
    let path = format!("/v1/sessions/{blocked}/block");
    api.post(&path, &json!({"reason": "moved"})).await.expect(200);
    refused_session(&locks, &blocked, Code::SessionBlocked).await;

    for ttl_ms in [json!(0), json!(99), json!(3_600_001), json!(86_400_001), json!(-1), json!("1s")]
    {
        let problem = api.post("/v1/sessions", &json!({"owner": "worker", "ttl_ms": ttl_ms})).await;
        let detail = problem.problem(Code::InvalidRequest).detail;
        assert!(detail.contains(ttl_ms.to_string().trim_matches('"')), "{ttl_ms}: {detail}");
    }
    for id in ["nope", "00000000-0000-0000-0000-000000000000"] {
        let path = format!("/v1/sessions/{id}/heartbeat");
        api.post(&path, &json!({})).await.problem(Code::InvalidRequest);
        let ask = json!({"session_id": id});
        locks.acquire("bad", ask).await.problem(Code::InvalidRequest);
    }

    // Nothing is held or waits, and the two that live are as they were.
    let bad = locks.show("bad").await;
    assert!(bad.holder.is_none() && bad.queue_length == 0, "{bad:?}");
    let mut left: Vec<String> = sessions(api)
        .await
        .iter()
        .map(|one| one["session_id"].as_str().unwrap().to_owned())
        .collect();
    left.sort();
    let mut expected = [lives.clone(), blocked];
    expected.sort();
    assert_eq!(left, expected);
    let beat = api.post(&format!("/v1/sessions/{lives}/heartbeat"), &json!({})).await.expect(200);
    assert_eq!(
        (beat.json()["heartbeats"].as_u64(), beat.json()["lease_count"].as_u64()),
        (Some(1), Some(0))
    );
    witness.check().await;
}

#[tokio::test(start_paused = true)]
async fn takeovers_of_another_owner() {
    let witness = Witness::new().await;
    let locks = witness.server.locks();
    let own = json!({"owner": "billing", "incarnation": "1", "ttl_ms": 60_000});
    let held = locks.acquire("theirs", own).await.lease();
    for (ask, why) in [
        (json!({"owner": "shipping", "incarnation": "2", "takeover": true}), "other-owner"),
        (json!({"owner": "shipping", "takeover_of": held.lease_id}), "other-owner"),
        (json!({"owner": "Billing", "incarnation": "2", "takeover": true}), "other-owner"),
    ] {
        let problem = locks.acquire("theirs", ask).await.problem(Code::TakeoverRefused);
        assert_eq!(problem.extension::<String>("why").as_deref(), Some(why), "{problem:?}");
        assert_eq!(problem.extension::<Value>("holder").unwrap()["owner"], "billing");
    }
    // A caller that is ready to wait waits, as all do.
    let patient =
        json!({"owner": "shipping", "incarnation": "2", "takeover": true, "wait_ms": 10_000});
    locks.acquire("theirs", patient).await.problem(Code::LockHeld);
    // A session of another owner does not lend its name.
    let session = begin(&locks.0, json!({"owner": "billing"})).await;
    let ask = json!({"owner": "shipping", "session_id": session, "takeover_of": held.lease_id});
    locks.acquire("theirs", ask).await.problem(Code::SessionConflict);
    // No waiter was left in the queue, and the holder still holds.
    assert_eq!(locks.show("theirs").await.queue_length, 0);
    assert_eq!(locks.renew("theirs", held.lease_id).await.lease().token, held.token);
    locks.release("theirs", held.lease_id).await.expect(200);
    let next = locks.grant("next", 1_000).await;
    assert_eq!(next.token.get(), held.token.get() + 1, "refused requests spent tokens");
    assert_eq!(locks.renew("witness", witness.lease).await.lease().token.get(), witness.token);
}

#[tokio::test]
async fn bad_paths_and_methods() {
    let witness = Witness::new().await;
    let api = witness.server.locks().0;
    for path in ["/", "/v1", "/v1/locks/a/steal", "/v2/locks/a", "/v1/lock/a/acquire"] {
        let reply = api.post(path, &json!({})).await;
        assert!(matches!(reply.status, 404 | 405), "{path}: {reply:?}");
        assert_eq!(reply.header("content-type"), "application/problem+json");
    }
    let reply = api.send(Method::DELETE, "/v1/locks/a/acquire", &[], "").await;
    reply.problem(Code::MethodNotAllowed);
    assert!(reply.header("allow").contains("POST"), "{reply:?}");
    witness.check().await;
}

#[tokio::test]
async fn bytes_that_are_no_http() {
    let witness = Witness::with_socket().await;
    let base = &witness.server.base;
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET /livez HTTP/1.1\r\n{}\r\n", "x-h: y\r\n".repeat(500));
    for bytes in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "GET /livez HTTP/9.9\r\n\r\n",
        long.as_str(),
        many.as_str(),
    ] {
        let reply = exchange(base, bytes.as_bytes()).await;
        let refused = matches!(status(&reply), None | Some(400..=499 | 505));
        assert!(refused, "{:?}: {reply}", &bytes[..bytes.len().min(40)]);
    }
    let both = "POST /v1/locks/smuggled/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
                transfer-encoding: chunked\r\n\r\n{}";
    let reply = exchange(base, both.as_bytes()).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "{reply}");
    let coded = "POST /v1/locks/bad/acquire HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let reply = exchange(&witness.server.base, coded.as_bytes()).await;
    assert_eq!(status(&reply), Some(400), "{reply}");
    witness.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_trickles_is_cut() {
    // Longer than the pause of a busy machine before the first byte: without one there is no reply.
    let server = Setup::lock_server("memory:")
        .args(&["--header-timeout", "5s", "--body-timeout", "2s"])
        .start()
        .await;
    let head = "POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2000\r\n\r\n{";
    for (begin, what) in [(&head[..20], "header"), (head, "body")] {
        let mut stream = connect(&server.base).await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        let reply = trickle(&mut stream).await;
        assert_eq!(status(&reply), Some(408), "{what}: {reply}");
    }
    server.locks().grant("slow", 1_000).await;
}

/// Sends a byte now and then until the server has had enough.
async fn trickle(stream: &mut tokio::net::TcpStream) -> String {
    let (mut reading, mut writing) = stream.split();
    let feed = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            if writing.write_all(b" ").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let read = async {
        let mut seen = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut seen).await;
        String::from_utf8_lossy(&seen).into_owned()
    };
    let reply = fence_tests::wait::soon("the server to cut a slow sender", async {
        tokio::select! {
            reply = read => reply,
            () = feed => String::new(),
        }
    });
    reply.await
}

#[tokio::test]
async fn a_half_sent_request_changes_nothing() {
    let witness = Witness::with_socket().await;
    let mut stream = connect(&witness.server.base).await;
    let half =
        b"POST /v1/locks/half/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{\"ttl";
    stream.write_all(half).await.unwrap();
    stream.shutdown().await.unwrap();
    let reply = read_reply(&mut stream).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "{reply}");
    witness.check().await;
}

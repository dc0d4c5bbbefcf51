//! Bad input to lock-server: one clear error each, and nothing is lost.

use fence_protocol::{Code, LeaseId};
use fence_tests::raw_http::{connect, exchange, read_reply, status};
use fence_tests::servers::{Server, Setup};
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::memory;

/// A server with a lock that is held; [`Witness::check`] shows that it still is.
struct Witness {
    server: Server,
    lease: LeaseId,
    token: u64,
}

impl Witness {
    async fn new() -> Self {
        let server = memory().await;
        let lease = server.locks().grant("witness", 60_000).await;
        Self { server, lease: lease.lease_id, token: lease.token.get() }
    }

    /// The lease lives, and no token was spent since.
    async fn check(self) {
        let renewed = self.server.locks().renew("witness", self.lease).await.lease();
        assert_eq!(renewed.token.get(), self.token);
        let next = self.server.locks().grant("next", 1_000).await;
        assert_eq!(next.token.get(), self.token + 1, "refused requests spent tokens");
    }
}

#[tokio::test]
async fn bad_names() {
    let witness = Witness::new().await;
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
        // Written by hand: a well-behaved client would resolve a dotted path itself.
        let request = format!(
            "POST /v1/locks/{name}/acquire HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: 2\r\n\r\n{{}}"
        );
        let reply = exchange(&witness.server.base, request.as_bytes()).await;
        assert_eq!(status(&reply), Some(400), "{name}: {reply}");
        let problem: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(problem["code"], "invalid-request");
        assert!(detail.contains("lock") && detail.contains(shown), "{name}: {detail}");
    }
    let empty = exchange(
        &witness.server.base,
        b"POST /v1/locks//acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
    )
    .await;
    assert!(matches!(status(&empty), Some(400 | 404)), "{empty}");
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
    for body in ["{", "{\"ttl_ms\": 1000", "ttl_ms=1000", "{} {}", "\u{0}", &deep] {
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

#[tokio::test]
async fn metadata_is_bounded() {
    let witness = Witness::new().await;
    let body: Value = json!({"metadata": "x".repeat(40_000)});
    let reply = witness.server.locks().acquire("bad", body).await;
    assert!(matches!(reply.status, 400 | 413), "{reply:?}");
    witness.check().await;
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
    let witness = Witness::new().await;
    let base = &witness.server.base;
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
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
    let both = "POST /v1/locks/smuggled/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\
                transfer-encoding: chunked\r\n\r\n{}";
    let reply = exchange(base, both.as_bytes()).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "{reply}");
    witness.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_trickles_is_cut() {
    let server = Setup::lock_server("memory:")
        .args(&["--header-timeout", "300ms", "--body-timeout", "300ms"])
        .start()
        .await;
    let head = "POST /v1/locks/slow/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{";
    for (begin, what) in [(&head[..20], "header"), (head, "body")] {
        let mut stream = connect(&server.base).await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        let reply = trickle(&mut stream).await;
        assert!(matches!(status(&reply), None | Some(408)), "{what}: {reply}");
    }
    server.locks().grant("slow", 1_000).await;
}

/// Goes on with a byte now and then until the server has had enough.
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
    let witness = Witness::new().await;
    let mut stream = connect(&witness.server.base).await;
    let half =
        b"POST /v1/locks/half/acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{\"ttl";
    stream.write_all(half).await.unwrap();
    stream.shutdown().await.unwrap();
    let reply = read_reply(&mut stream).await;
    assert!(matches!(status(&reply), None | Some(400..=499)), "{reply}");
    witness.check().await;
}

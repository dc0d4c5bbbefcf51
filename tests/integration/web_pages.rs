//! A web page in a browser of this machine can send requests to both services. It may not get
//! anything done, whatever it sends; the headers are those that browsers send for such pages.

use fence_protocol::Code;
use fence_tests::api::Api;
use fence_tests::key_file::{lease_id, text, unsigned};
use fence_tests::raw_http::{exchange, status};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::upstream::Upstream;
use http::Method;
use serde_json::{Value, json};

use crate::redis_port::bare_setup;

/// Origins that browsers send for a page of `http://evil.example` or of another port, for requests
/// that they do not ask the server about first; and after DNS rebinding, where the page's own name
/// is sent.
const PAGES: [(&str, u16); 6] = [
    ("host: localhost\r\norigin: http://evil.example\r\n", 403),
    ("host: localhost\r\norigin: http://localhost:3000\r\nsec-fetch-site: same-site\r\n", 403),
    ("host: localhost\r\norigin: null\r\n", 403),
    ("host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n", 403),
    ("host: evil.example\r\norigin: http://evil.example\r\nsec-fetch-site: same-origin\r\n", 421),
    ("origin: http://evil.example\r\n", 400),
];

/// Sends `line` as each of the pages does; each must be refused.
async fn refused_to_pages(base: &str, line: &str, body: &str) {
    let length = body.len();
    let more = format!("connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    for (page, code) in PAGES {
        for content_type in [
            "",
            "content-type: text/plain\r\n",
            "content-type: application/x-www-form-urlencoded\r\n",
            "content-type: application/json\r\n",
        ] {
            let request = format!("{line} HTTP/1.1\r\n{page}{content_type}{more}");
            let reply = exchange(base, request.as_bytes()).await;
            assert_eq!(status(&reply), Some(code), "{line} {page:?}: {reply}");
            assert!(reply.contains("application/problem+json"), "{line} {page:?}: {reply}");
        }
    }
}

#[tokio::test]
async fn a_page_reaches_nothing_of_the_lock_server() {
    let server = Setup::lock_server("memory:").start().await;
    let held = server.locks().grant("held", 60_000).await;
    for (line, body) in [
        ("POST /v1/locks/held/revoke", r#"{"reason":"page"}"#),
        ("POST /v1/locks/free/acquire", r#"{"ttl_ms":3600000}"#),
        ("POST /v1/acquire", r#"{"locks":[{"lock":"free"}]}"#),
        ("POST /v1/sessions", r#"{"owner":"page"}"#),
        ("POST /v1/refusals", r#"{"refusals":[],"dropped":1}"#),
        ("GET /v1/locks", ""),
        ("GET /v1/events", ""),
        ("GET /metrics", ""),
        ("GET /readyz?verbose", ""),
        ("GET /openapi.json", ""),
        ("GET /nowhere", ""),
        ("OPTIONS /v1/locks/held/revoke", ""),
    ] {
        refused_to_pages(&server.base, line, body).await;
    }
    let lease = server.locks().renew("held", held.lease_id).await.lease();
    assert_eq!(lease.token, held.token);
    assert!(server.locks().show("free").await.holder.is_none());
}

#[tokio::test]
async fn a_page_reaches_nothing_of_the_guard() {
    let server = Setup::fenced_store("memory:").args(&["--rule", "open/**=@open"]).start().await;
    for (line, body) in [
        ("POST /v1/floor", r#"{"floor":999999999999999}"#),
        ("POST /v1/fences/a/seal", ""),
        ("POST /v1/lanes/a/quarantine", "{}"),
        ("GET /v1/lanes", ""),
        ("PUT /v1/objects/open/a", "x"),
        ("GET /v1/objects/open/a", ""),
        ("GET /v1/fences", ""),
        ("GET /v1/stores", ""),
        ("GET /metrics", ""),
    ] {
        refused_to_pages(&server.base, line, body).await;
    }
    server.guard().get("open/a").await.problem(Code::NotFound);
}

#[tokio::test]
async fn a_page_reaches_nothing_behind_the_proxy() {
    let upstream = Upstream::start().await;
    let state = DataDir::new();
    let mut server = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--rule", "open/**=@open"])
        .args(&["--upstream", upstream.base(), "--max-request-lifetime", "60s"])
        .args(&["--state", text(&state.path())])
        .start()
        .await;
    let proxy = server.proxy().await;
    for line in ["POST /open/a", "PUT /open/a", "DELETE /open/a", "GET /open/a", "OPTIONS /open/a"]
    {
        refused_to_pages(&proxy, line, "x").await;
    }
    assert!(upstream.log().is_empty(), "{:?}", upstream.log());
    Api::new(&proxy).send(Method::PUT, "/open/a", &[], "x").await.expect(204);
}

/// A page of the server's own origin, and a front proxy that keeps the name, are let in.
#[tokio::test]
async fn own_origins_and_configured_names_are_let_in() {
    let server =
        Setup::lock_server("memory:").args(&["--host-name", "locks.internal"]).start().await;
    let own = server.address();
    for (headers, expected) in [
        (format!("host: {own}\r\norigin: http://{own}\r\nsec-fetch-site: same-origin\r\n"), 200),
        (format!("host: {own}\r\nsec-fetch-site: none\r\n"), 200),
        ("host: locks.internal\r\norigin: https://locks.internal\r\n".to_owned(), 200),
        ("host: other.internal\r\n".to_owned(), 421),
        (format!("host: {own}\r\nhost: evil.example\r\n"), 400),
        (format!("host: {own}\r\norigin: http://{own}\r\norigin: http://evil.example\r\n"), 400),
    ] {
        let request = format!("GET /v1/locks HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        let reply = exchange(&server.base, request.as_bytes()).await;
        assert_eq!(status(&reply), Some(expected), "{headers}: {reply}");
    }
    let old = exchange(&server.base, b"GET /livez HTTP/1.0\r\n\r\n").await;
    assert!(status(&old) == Some(200) || old.starts_with("HTTP/1.0 200"), "{old}");
}

/// One request near the highest token would refuse every holder for ever.
#[tokio::test]
async fn no_request_uses_up_the_tokens() {
    let redis = Redis::start().await;
    let guard = bare_setup(&redis.url()).start().await;
    let highest = 999_999_999_999_999_u64;
    let api = Api::new(&guard.base);
    let floor = async |body: Value| api.post("/v1/floor", &body).await;
    let refused = floor(json!({"floor": highest})).await.problem(Code::InvalidRequest);
    assert!(refused.hint.contains("force"), "{refused:?}");
    let token = unsigned(highest, "a", lease_id());
    guard.guard().seal("a", &token).await.problem(Code::BadSignature);
    guard.guard().put("a", &token, "x").await.problem(Code::BadSignature);
    guard.guard().fenced_get("a", &token).await.problem(Code::BadSignature);
    guard.guard().put("a", &unsigned(7, "a", lease_id()), "x").await.expect(201);

    let locks = Setup::lock_server("memory:").start().await;
    locks.locks().acquire("a", json!({"min_token": highest})).await.problem(Code::InvalidRequest);
    // An operator who knows better says so.
    let forced = floor(json!({"floor": highest, "force": true})).await.expect(200).json();
    assert_eq!(forced["floor"], highest);
}
